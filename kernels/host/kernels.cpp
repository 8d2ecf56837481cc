// All kernels at one scalar: compiled once per scalar, with GJ_SCALAR (and, for dual numbers, GJ_SCALAR_IS_DUAL) defined.
#include "ops.cuh"

#if defined(GJ_SCALAR_IS_SPREAD)
namespace gradjury {
GJ_KERNEL(batchnorm_spread_forward)
GJ_KERNEL(batchnorm_spread_backward)
}  // namespace gradjury
#endif
