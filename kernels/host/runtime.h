// Runs CUDA kernels on the CPU: every CUDA thread of a block is a stackful fibre, blocks are spread over OS threads.
// Barriers, shuffles and shared memory mean what they mean on a GPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace fibre {

// What a running kernel can see of itself.
struct Thread {
  uint3 index;
  unsigned linear;
};
struct Block {
  struct Shared {
    const void* key;
    char* place;
  };
  uint3 index;
  dim3 size, grid;
  Thread* current;
  char* arena;
  size_t arena_size, arena_used;
  Shared shared[16];
  int shared_count;
};
extern __attribute__((tls_model("initial-exec"))) __thread Block* block;

void block_barrier(const char* file, int line);
void warp_barrier(unsigned mask, const char* file, int line);
// Publishes `bytes` (at most 16) of this lane and returns the values of all 32 lanes, 16 bytes apart.
const void* warp_exchange(unsigned mask, const void* value, unsigned bytes, const char* file, int line);
char* shared_memory(const void* key, size_t bytes, size_t align);

using Body = void (*)(void* closure);
void launch(dim3 grid, dim3 block, Body body, void* closure);

// OS threads that run blocks; 0: all of the machine.
void set_threads(int count);
// Below 0: blocks and threads run in order. From 0 on: in an order drawn from the seed, on one OS thread, and shared
// memory starts as NaN, so that a missing barrier or an unwritten value shows.
void set_seed(long seed);

template <class Array, class Tag>
inline __attribute__((always_inline)) Array& shared_array() {
  static const char key = 0;
  Block* b = block;
  for (int i = 0; i < b->shared_count; i++)
    if (b->shared[i].key == &key) return *reinterpret_cast<Array*>(b->shared[i].place);
  return *reinterpret_cast<Array*>(shared_memory(&key, sizeof(Array), alignof(Array) < 64 ? 64 : alignof(Array)));
}

template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, const char* file, int line) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>);
  const char* lanes = static_cast<const char*>(warp_exchange(mask, &value, sizeof(T), file, line));
  T result;
  std::memcpy(&result, lanes + 16 * (source & 31), sizeof(T));
  return result;
}

}  // namespace fibre

#define threadIdx (::fibre::block->current->index)
#define blockIdx (::fibre::block->index)
#define blockDim (::fibre::block->size)
#define gridDim (::fibre::block->grid)

// One declaration is one array of the block, whichever thread comes to it first.
#define GJ_SHARED(name, ...) \
  using name##_type = __VA_ARGS__; \
  struct name##_tag {}; \
  name##_type& name = ::fibre::shared_array<name##_type, name##_tag>()

#define GJ_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
inline void __syncthreads(GJ_SITE) { fibre::block_barrier(file, line); }
inline void __syncwarp(unsigned mask = ~0u, GJ_SITE) { fibre::warp_barrier(mask, file, line); }
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int = 32, GJ_SITE) {
  return fibre::shuffle(mask, value, fibre::block->current->linear ^ static_cast<unsigned>(lane_mask), file, line);
}
