// What the noise and low-precision scalars assume about the arithmetic they stand for; one block for a whole launch.
#pragma once

#include "platform.cuh"

namespace gradjury {

struct Arithmetic {
  double u;               // unit roundoff
  double kappa;           // weight of coherent rounding in a sum (docs/numerics.md)
  double eta;             // smallest subnormal: what an operation may lose to underflow
  double function_error;  // error of tanh, exp, ... in half units in the last place
  Index coherent;         // 1: one draw per function and replica, shared by all elements
  Index operand_bits;     // significant bits of the operands of products; 0: all
  Index operand_toward_zero;
  Index storage_bits;      // significant bits of every stored result; 0: all
  Index accumulator_bits;  // significant bits of a running sum; 0: all
};

#if defined(GJ_DEVICE)
extern "C" {
__constant__ Arithmetic gradjury_arithmetic;
}
__device__ __forceinline__ const Arithmetic& arithmetic() {
  return gradjury_arithmetic;
}
#else
extern Arithmetic current_arithmetic;
GJ_FN const Arithmetic& arithmetic() { return current_arithmetic; }
#endif

// (η/u)²: the variance that underflow adds to every operation, in units of u².
GJ_FN double underflow_variance() {
  const double e = arithmetic().eta / arithmetic().u;
  return e * e;
}

// The smallest normal number, η/(2u). exp and sigmoid may lose a result below it: 1/(1 + exp(−x)) is 0 where exp(−x)
// overflows.
GJ_FN double smallest_normal() { return arithmetic().eta / (2 * arithmetic().u); }

}  // namespace gradjury
