// Warp-wide matrix products, as sm_80 and later have them.
//
// Fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"), for lane = 4 g + t:
//   A [16, 16] row-major: a[0] = (g, 2t..2t+1), a[1] = (g+8, 2t..), a[2] = (g, 2t+8..),
//                         a[3] = (g+8, 2t+8..)
//   B [16, 8]  stored [n][k]: b[0] = (k = 2t..2t+1, n = g), b[1] = (k = 2t+8.., n = g)
//   C [16, 8]: c[0..1] = (g, 2t..2t+1), c[2..3] = (g+8, 2t..2t+1)
// so two neighbouring C tiles, rounded, are an A tile.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace eddy {

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float HighBf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// c += a b
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// mma.m16n8k8 of tf32 numbers, c += a b: A [16, 8] a[0] = (g, t), a[1] = (g+8, t), a[2] = (g, t+4),
// a[3] = (g+8, t+4); B [8, 8] b[0] = (k = t, n = g), b[1] = (k = t+4, n = g).
__device__ inline void MmaTf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// x = high + low up to 2^-22 of it, both tf32.
__device__ inline void SplitTf32(float x, uint32_t& high, uint32_t& low) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
}

// Four 8x8 tiles of 16-bit elements; lanes 8 i .. 8 i + 7 give the rows of tile i (shared
// addresses). Lane 4 g + t gets elements (g, 2t..2t+1) of each.
__device__ inline void LoadTiles(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same of the transposed tiles.
__device__ inline void LoadTilesTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8x8 tile that the warp holds.
__device__ inline uint32_t TransposeTile(uint32_t tile) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(tile));
  return r;
}

}  // namespace eddy
