// Kernels that use the runtime as it is meant to be used, and kernels with one planted mistake each.
//   planted NAME SEED OS_THREADS GRID BLOCK N
// launches NAME<float>(N, x, y) with x[i] = i + 1 and y = 0, and prints y.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "arithmetic.cuh"
#include "platform.cuh"

namespace gradjury {

// ---- as it should be

// y[t] = x[t + 1], across the whole block.
template <class T>
__global__ void neighbour(Index n, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  for (Index first = static_cast<Index>(blockIdx.x) * blockDim.x; first < n; first += static_cast<Index>(gridDim.x) * blockDim.x) {
    values[threadIdx.x] = x[first + threadIdx.x];
    __syncthreads();
    y[first + threadIdx.x] = values[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
  }
}
GJ_KERNEL(neighbour)

// A declaration is one array of its block; two declarations are two arrays, of equal type too.
template <class T>
__global__ void two_arrays(Index, const T* x, T* y) {
  GJ_SHARED(first, T[1024]);
  GJ_SHARED(second, T[1024]);
  first[threadIdx.x] = x[threadIdx.x];
  second[threadIdx.x] = -x[threadIdx.x];
  __syncthreads();
  const unsigned other = blockDim.x - 1 - threadIdx.x;
  y[threadIdx.x] = first[other] * 1000 + second[other];
}
GJ_KERNEL(two_arrays)

// Every lane gets the sum over its warp.
template <class T>
__global__ void warp_sum(Index, const T* x, T* y) {
  T sum = x[threadIdx.x];
  for (int mask = 16; mask; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  y[threadIdx.x] = sum;
}
GJ_KERNEL(warp_sum)

// Only the even lanes exchange; the odd ones do something else meanwhile.
template <class T>
__global__ void even_lanes(Index, const T* x, T* y) {
  T value = x[threadIdx.x];
  if (threadIdx.x % 2 == 0) value = __shfl_xor_sync(0x55555555u, value, 2);
  y[threadIdx.x] = value;
}
GJ_KERNEL(even_lanes)

// Lanes of a warp hand values on through shared memory, __syncwarp between.
template <class T>
__global__ void through_warp(Index, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  values[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}
GJ_KERNEL(through_warp)

// Threads that have returned hold nobody back at a barrier.
template <class T>
__global__ void early_return(Index n, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  if (threadIdx.x >= n) return;
  values[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = values[n - 1 - threadIdx.x];
}
GJ_KERNEL(early_return)

// Which block and thread wrote what.
template <class T>
__global__ void places(Index, const T*, T* y) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<T>(blockIdx.x * 1000 + threadIdx.x);
}
GJ_KERNEL(places)

// ---- one mistake each

// In order, thread t − 1 has always written before thread t reads: only another order shows that a barrier is missing.
template <class T>
__global__ void missing_barrier(Index, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  values[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = threadIdx.x ? values[threadIdx.x - 1] : T(0);
}
GJ_KERNEL(missing_barrier)

template <class T>
__global__ void missing_second_barrier(Index n, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  T sum = T(0);
  for (Index i = 0; i < 3; i++) {
    values[threadIdx.x] = x[threadIdx.x] + static_cast<T>(i);
    __syncthreads();
    sum += values[(threadIdx.x + 1) % n];
  }
  y[threadIdx.x] = sum;
}
GJ_KERNEL(missing_second_barrier)

template <class T>
__global__ void unwritten_shared(Index n, const T* x, T* y) {
  GJ_SHARED(values, T[1024]);
  if (threadIdx.x != 7) values[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = values[(threadIdx.x + 1) % n];
}
GJ_KERNEL(unwritten_shared)

template <class T>
__global__ void divergent_barrier(Index, const T* x, T* y) {
  if (threadIdx.x < 8) {
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
  } else {
    __syncthreads();
    y[threadIdx.x] = -x[threadIdx.x];
  }
}
GJ_KERNEL(divergent_barrier)

// Half of the warp waits at a shuffle for lanes that wait at a barrier.
template <class T>
__global__ void half_a_warp(Index, const T* x, T* y) {
  T value = x[threadIdx.x];
  if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(~0u, value, 8);
  __syncthreads();
  y[threadIdx.x] = value;
}
GJ_KERNEL(half_a_warp)

template <class T>
__global__ void outside_own_mask(Index, const T* x, T* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);
}
GJ_KERNEL(outside_own_mask)

template <class T>
__global__ void too_much_shared(Index, const T* x, T* y) {
  GJ_SHARED(values, T[1 << 20]);
  values[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = values[threadIdx.x];
}
GJ_KERNEL(too_much_shared)

template <class T>
__global__ void beyond_global(Index n, const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x + n * (threadIdx.x == 3)];
}
GJ_KERNEL(beyond_global)

template <class T>
__global__ void beyond_shared(Index n, const T* x, T* y) {
  GJ_SHARED(values, T[64]);
  values[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = values[n + threadIdx.x];
}
GJ_KERNEL(beyond_shared)

// All threads of a block add to one element.
template <class T>
__global__ void race_in_block(Index, const T* x, T* y) {
  y[blockIdx.x] += x[threadIdx.x];
}
GJ_KERNEL(race_in_block)

// Blocks add to one element.
template <class T>
__global__ void race_of_blocks(Index, const T* x, T* y) {
  if (threadIdx.x == 0) y[0] += x[blockIdx.x];
}
GJ_KERNEL(race_of_blocks)

}  // namespace gradjury

extern "C" void* gradjury_kernel(const char* name);
extern "C" void gradjury_launch(
    void* kernel, const unsigned* grid, const unsigned* block, const uint64_t* slots, const gradjury::Arithmetic* arithmetic);
extern "C" void gradjury_threads(int count);
extern "C" void gradjury_seed(long seed);

int main(int, char** arguments) {
  void* kernel = gradjury_kernel((std::string(arguments[1]) + "<float>").c_str());
  if (!kernel) return 2;
  gradjury_seed(std::atol(arguments[2]));
  gradjury_threads(std::atoi(arguments[3]));
  const unsigned grid[3] = {static_cast<unsigned>(std::atoi(arguments[4])), 1, 1};
  const unsigned block[3] = {static_cast<unsigned>(std::atoi(arguments[5])), 1, 1};
  const uint64_t n = std::strtoull(arguments[6], nullptr, 10);
  std::vector<float> x(n), y(n);
  for (size_t i = 0; i < n; i++) x[i] = static_cast<float>(i + 1);
  const uint64_t slots[] = {n, reinterpret_cast<uint64_t>(x.data()), reinterpret_cast<uint64_t>(y.data())};
  const gradjury::Arithmetic arithmetic{};
  gradjury_launch(kernel, grid, block, slots, &arithmetic);
  for (const float value : y) std::printf("%.9g\n", value);
}
