// The C interface of the CPU engine: what Python calls.
#include <map>
#include <mutex>
#include <string>

#include "arithmetic.cuh"
#include "registry.h"

namespace {

std::map<std::string, registry::Trampoline>& kernels() {
  static std::map<std::string, registry::Trampoline> table;
  return table;
}

}  // namespace

namespace registry {

Entry::Entry(const char* name, const char* scalar, Trampoline call) {
  kernels().emplace(std::string(name) + "<" + scalar + ">", call);
}

}  // namespace registry

namespace gradjury {

Arithmetic current_arithmetic;

}  // namespace gradjury

#define GJ_API extern "C" __attribute__((visibility("default")))

// The kernel called e.g. "relu_forward<float>"; null if there is none.
GJ_API void* gradjury_kernel(const char* name) {
  auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : reinterpret_cast<void*>(found->second);
}

// All kernel names, one a line.
GJ_API const char* gradjury_kernels() {
  static const std::string names = [] {
    std::string text;
    for (const auto& entry : kernels()) text += entry.first + "\n";
    return text;
  }();
  return names.c_str();
}

// Runs a kernel to its end. Launches from several OS threads take turns: the arithmetic is one for all blocks.
GJ_API void gradjury_launch(
    void* kernel, const unsigned* grid, const unsigned* block, const uint64_t* slots, const gradjury::Arithmetic* arithmetic) {
  static std::mutex turn;
  std::lock_guard<std::mutex> guard(turn);
  gradjury::current_arithmetic = *arithmetic;
  reinterpret_cast<registry::Trampoline>(kernel)({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, slots);
}

GJ_API void gradjury_threads(int count) { fibre::set_threads(count); }
GJ_API void gradjury_seed(long seed) { fibre::set_seed(seed); }
