// Kernels by name. A kernel `name<T>` becomes a function that takes its arguments as 8-byte slots, so that one C entry
// point launches them all.
#pragma once

#include "runtime.h"

#include <utility>

namespace registry {

using Trampoline = void (*)(dim3 grid, dim3 block, const uint64_t* slots);

struct Entry {
  Entry(const char* name, const char* scalar, Trampoline call);
};

template <class T>
T unpack(uint64_t slot) {
  static_assert(sizeof(T) == 8, "kernel parameters are pointers, Index or double: 8 bytes each");
  T value;
  std::memcpy(&value, &slot, 8);
  return value;
}

template <auto Kernel, class... Parameters, size_t... I>
void call_with(void (*)(Parameters...), dim3 grid, dim3 block, const uint64_t* slots, std::index_sequence<I...>) {
  auto body = [slots] { Kernel(unpack<Parameters>(slots[I])...); };
  fibre::launch(grid, block, [](void* closure) { (*static_cast<decltype(body)*>(closure))(); }, &body);
}

template <auto Kernel, class... Parameters>
void call(void (*signature)(Parameters...), dim3 grid, dim3 block, const uint64_t* slots) {
  call_with<Kernel>(signature, grid, block, slots, std::index_sequence_for<Parameters...>{});
}

template <auto Kernel>
void trampoline(dim3 grid, dim3 block, const uint64_t* slots) {
  call<Kernel>(Kernel, grid, block, slots);
}

}  // namespace registry

#define GJ_TEXT_(x) #x
#define GJ_TEXT(x) GJ_TEXT_(x)
#define GJ_REGISTER_(name) \
  static const ::registry::Entry registered_##name{#name, GJ_TEXT(GJ_SCALAR), &::registry::trampoline<&name<GJ_SCALAR>>};

// GJ_SCALAR is the scalar of this translation unit; GJ_SCALAR_IS_DUAL tells that only forward kernels make sense for it.
#define GJ_FORWARD_KERNEL(name) GJ_REGISTER_(name)
#if defined(GJ_SCALAR_IS_DUAL)
#define GJ_KERNEL(name)
#else
#define GJ_KERNEL(name) GJ_REGISTER_(name)
#endif
