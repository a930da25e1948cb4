// Products of four neighbouring warps together, which only sm_90a has: EDDY_WGMMA is defined there.
//
// wgmma.m64n64k16 (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"): each warp
// has 16 rows, in the fragments of mma.cuh. The right operand lies in shared memory in the 128-byte
// swizzle: rows of 64 elements, and 16-byte piece p of row r at place p ^ (r % 8) of its 128 bytes;
// groups of eight rows follow each other and begin on multiples of 1024 bytes.
#pragma once

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define EDDY_WGMMA
#endif

namespace eddy {

#ifdef EDDY_WGMMA

// Before the first product after registers were written.
__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kLeft committed groups are under way.
template <int kLeft>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// After a wait: keeps the compiler from reading the sums before it.
__device__ inline void WgmmaReceive(float (&c)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
  }
}

// Makes what this thread wrote to shared memory visible to the products; then a barrier.
__device__ inline void WgmmaPublish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// c = a b, plus c if `add`. Memory at `shared` holds b [16, 64] as rows n with 16 neighbours k
// each, or, transposed, as rows k with 64 neighbours n each.
template <bool kTransposed>
__device__ inline void Wgmma(float (&c)[8][4], const uint32_t (&a)[4], uint32_t shared, int add) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32,
                     kUnused = uint64_t{1} << 16;
  const uint64_t b = kSwizzle128 | kEightRows | kUnused | ((shared & 0x3ffff) >> 4);
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, %38; }"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed ? 1 : 0)
      : "memory");
}

#endif

// Gives registers of this warp and its three neighbours back, or takes some: all of them call, in a
// branch of their own. Where there is no such thing nothing happens.
template <int kRegisters>
__device__ inline void LimitRegisters() {
#ifdef EDDY_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void ExtendRegisters() {
#ifdef EDDY_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace eddy
