// Barriers by which parts of a block hand each other shared memory.
#pragma once

#include <cstdint>

namespace eddy {

// Barriers of `threads` threads, a multiple of 32, of a block; index 0 is __syncthreads. The one
// that arrives goes on at once; what it has read and written came before.
__device__ inline void BarrierSync(int index, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}
__device__ inline void BarrierArrive(int index, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

// A barrier in shared memory: each time `arrivals` have come, its phase ends.
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
               : "memory");
}
// Arrives when all that this thread has begun to copy (async_copy.cuh) is there.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of that parity has ended; parity 1 before any has counts as ended.
__device__ inline void AwaitPhase(uint32_t barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EDDY_TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define EDDY_TRY_WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n" EDDY_TRY_WAIT
      " done, [%0], %1;\n"
      "@!done bra again%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#undef EDDY_TRY_WAIT
}

}  // namespace eddy
