// Copies from global to shared memory that go on while the thread works (sm_80 and later).
#pragma once

namespace eddy {

// Both addresses are multiples of kBytes, 4 or 16.
template <int kBytes>
__device__ inline void CopyAsync(void* shared, const void* global) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
  }
}

// Waits for all of this thread's; a barrier makes them visible to the others.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace eddy
