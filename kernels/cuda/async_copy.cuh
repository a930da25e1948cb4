// Copies from global to shared memory that go on while the thread works (sm_80 and later).
#pragma once

#include <cstdint>

namespace eddy {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Both addresses are multiples of kBytes, 4 or 16; 16 go past the first-level cache.
template <int kBytes>
__device__ inline void CopyAsync(void* shared, const void* global) {
  const uint32_t to = SharedAddress(shared);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
  }
}

__device__ inline void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Or writes zeros if not `valid`, and then `global` is not read.
__device__ inline void CopyAsync16(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void CopyAsync8(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 8 : 0)
               : "memory");
}

// Waits for all of this thread's; a barrier makes them visible to the others.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Or in groups: until at most `kLeft` of the thread's committed groups are under way.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Asks for `floats`, a multiple of four, to be brought to the second cache; a hint.
__device__ inline void PrefetchRow(const float* global, int floats) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(floats * 4));
#endif
}

}  // namespace eddy
