// One kernel source for two worlds. Under nvcc and NVRTC this header only names a few attributes; on the host it brings
// the runtime that executes CUDA threads as fibres (kernels/host/runtime.h).
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define GJ_DEVICE 1
#define GJ_FN __host__ __device__ __forceinline__
#define GJ_HOT __device__ __forceinline__
#define GJ_UNROLL _Pragma("unroll")
#define GJ_UNROLL_DEVICE _Pragma("unroll")
#define GJ_SHARED(name, ...) \
  using name##_type = __VA_ARGS__; \
  __shared__ name##_type name
#define GJ_KERNEL(name)
#define GJ_FORWARD_KERNEL(name)

#else

#include "runtime.h"

#define GJ_FN inline __attribute__((always_inline))
// A hot loop without barriers gets a function of its own: inlined, its accumulators would be spilled at every barrier.
#define GJ_HOT static __attribute__((noinline))
// Loops that need unrolling on a GPU only, so that an array stays in registers.
#define GJ_UNROLL_DEVICE
#if defined(__clang__)
#define GJ_UNROLL _Pragma("unroll")
#else
#define GJ_UNROLL _Pragma("GCC unroll 64")
#endif
#include "registry.h"

#endif

namespace gradjury {

using Index = long long;

GJ_FN Index round_up_divide(Index a, Index b) { return (a + b - 1) / b; }

}  // namespace gradjury
