// One token of each decoding sequence. A block owns some columns of one value head's S and keeps
// them in registers: it asks for S before the kernels ahead have ended (delta_rule_cuda.h says why
// it may), walks the ring while S is on its way, then multiplies. Sums over K are taken in an order
// that depends on K alone, so how many columns a block has, which depends on the load, changes no
// bit.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/rules/delta_rule/delta_rule_block.cuh"

namespace eddy {
namespace delta {
namespace {

// How a block holds kRows * kKeyGroups rows of kColumns columns of S. kExact: that is K and the
// block's share of V; else K and V end inside it. kVec: floats per access, 4 only if K and V are
// multiples of 4.
template <int kVec_, int kColumns_, int kKeyGroups_, int kRows_, bool kExact_, int kBlocks_>
struct Tile {
  static constexpr int kVec = kVec_, kColumns = kColumns_, kKeyGroups = kKeyGroups_;
  static constexpr int kRows = kRows_, kBlocks = kBlocks_;  // per multiprocessor
  static constexpr bool kExact = kExact_;
  static constexpr int kThreads = kColumns / kVec * kKeyGroups;
  static constexpr int kMostKeys = kKeyGroups * kRows, kKeys = kExact ? kMostKeys : 0;
  static_assert(kThreads % kWarp == 0);
  __device__ static void Sync() { __syncthreads(); }
};

// This thread's part of S: rows key_group, key_group + kKeyGroups, ..., from `column` of the block
// on. What is outside of K and V is zero.
template <typename T>
struct Registers {
  const int key_group = static_cast<int>(threadIdx.x) / (T::kColumns / T::kVec);
  const int column = static_cast<int>(threadIdx.x) % (T::kColumns / T::kVec) * T::kVec;
  float s[T::kRows][T::kVec];

  __device__ int Row(int m) const { return key_group + m * T::kKeyGroups; }
  __device__ bool Holds(const Block& b, int m) const {
    return T::kExact || (Row(m) < KeyDim<T>(b.p) && column < b.columns);
  }
  __device__ float* Address(const Block& b, float* state, int m) const {
    return state + key_group * b.p.value_dim + b.first_column + column +
           m * (T::kKeyGroups * b.p.value_dim);
  }

  __device__ void Load(const Block& b, float* state) {
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if constexpr (T::kVec == 4) {
        float4 x = {0, 0, 0, 0};
        if (Holds(b, m)) x = __ldcs(reinterpret_cast<const float4*>(Address(b, state, m)));
        s[m][0] = x.x, s[m][1] = x.y, s[m][2] = x.z, s[m][3] = x.w;
      } else {
        s[m][0] = Holds(b, m) ? __ldcs(Address(b, state, m)) : 0.0f;
      }
    }
  }

  __device__ void Store(const Block& b, float* state) const {
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if (!Holds(b, m)) continue;
      if constexpr (T::kVec == 4) {
        const float4 x = {s[m][0], s[m][1], s[m][2], s[m][3]};
        __stcs(reinterpret_cast<float4*>(Address(b, state, m)), x);
      } else {
        __stcs(Address(b, state, m), s[m][0]);
      }
    }
  }

  __device__ void Multiply(const Block& b) const {
    float p[T::kVec] = {}, y[T::kVec] = {};
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if (T::kExact || Row(m) < KeyDim<T>(b.p)) MultiplyRow(b.work.reads[Row(m)], s[m], p, y);
    }
    StoreShares<T>(b, key_group, column, p, y);
  }
};

// Starts the copy of `count` floats that lie side by side.
template <typename T, int kVec>
__device__ void Copy(const float* from, int count, float* to) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * kVec; i < count; i += T::kThreads * kVec) {
    CopyAsync<kVec * 4>(to + i, from + i);
  }
}

// Starts the copies of the token's own vectors.
template <typename T>
__device__ void FetchToken(const Block& b, const DeltaInputs& from, const Fetched& to) {
  const int key_dim = KeyDim<T>(b.p);
  Copy<T, 1>(from.k, key_dim, to.k);
  Copy<T, 1>(from.q, key_dim, to.q);
  Copy<T, 1>(from.w, key_dim, to.w + b.p.entries * key_dim);
  Copy<T, 1>(from.v + b.first_column, b.columns, to.n + b.p.entries * T::kColumns);
  if (b.has_decay()) Copy<T, 1>(from.decay, Decays<T>(b.p), to.a + b.p.entries * Decays<T>(b.p));
}

// Starts the copies of the pending pairs.
template <typename T>
__device__ void FetchRing(const Block& b, const DeltaHead& at, int count, const Fetched& to) {
  constexpr int kLanes = T::kColumns / T::kVec;  // for a row of columns
  const int thread = static_cast<int>(threadIdx.x), column = thread % kLanes * T::kVec;
  Copy<T, T::kVec>(at.w, count * KeyDim<T>(b.p), to.w);
  const float* n = at.n + b.first_column + column;
#pragma unroll 1
  for (int pair = thread / kLanes; pair < count; pair += T::kThreads / kLanes) {
    if (!T::kExact && column >= b.columns) break;
    CopyAsync<T::kVec * 4>(to.n + pair * T::kColumns + column, n + pair * b.p.value_dim);
  }
  if (b.has_decay()) Copy<T, 1>(at.a, count * Decays<T>(b.p), to.a);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    DeltaStep(const __grid_constant__ DeltaKernelArgs p, const int32_t* slots) {
  extern __shared__ __align__(16) float memory[];
  const int part = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);
  const int32_t slot = slots[sequence];
  const Fetched fetched(memory, p, KeyDim<T>(p), T::kColumns);
  const int first_column = part * T::kColumns;
  const Block block = {
      .p = p,
      .work = Work(fetched.a + p.pairs * Decays<T>(p), KeyDim<T>(p)),
      .first_column = first_column,
      .columns = T::kExact ? T::kColumns : min(T::kColumns, p.value_dim - first_column)};
  const auto out = [&] {
    return p.out + sequence * p.out_stride + head * p.value_dim + first_column;
  };
  const auto readouts = [&] { return DeltaReadoutPart(p, sequence, head, part); };
  const bool tells = p.readouts != nullptr;
  if (slot == kNoSlot) {
    WaitForPrevious();
    AllowNext();
    return WriteZeros<T>(block, out(), tells ? readouts() : nullptr);
  }

  const DeltaHead at(p, slot, head);
  const int count = p.entries != 0 ? at.count[first_column / kDeltaCountColumns] : 0;
  Registers<T> registers;
  registers.Load(block, at.s);
  const DeltaInputs inputs(p, sequence, head);
  if (count > 0) FetchRing<T>(block, at, count, fetched);
  WaitForPrevious();
  // Not before: so a kernel that starts early, and reads state ahead too, follows on an ended one.
  AllowNext();
  const float beta = *inputs.beta;
  FetchToken<T>(block, inputs, fetched);
  WaitForCopies();
  __syncthreads();
  Walk<T>(block, fetched, count);
  __syncthreads();
  SumProducts<T>(block);
  registers.Multiply(block);
  __syncthreads();
  Correct<T>(block, fetched, count, beta, out());
  __syncthreads();
  if (tells) WriteReadouts<T>(block, fetched, inputs.v, beta, readouts());
  const bool fold = count == p.entries;
  if (fold) {
    TurnKeys<T>(block, fetched);
    __syncthreads();
    Fold<T>(block, fetched, registers.key_group, registers.column, registers.s);
    registers.Store(block, at.s);
  } else {
    Append<T>(block, fetched, at, count);
  }
  SetCount(block, at, fold ? 0 : count + 1);
}

template <typename T>
void Launch(const Step& step, const DeltaRuleCudaArgs& args) {
  const DeltaKernelArgs p = ResolveDeltaArgs(args, T::kColumns);
  constexpr int kMostSequences = 65535;  // of CUDA: the third dimension of a grid
  EDDY_CHECK(step.single_row_sequences <= kMostSequences);
  const int bytes =
      4 * (Fetched::Floats(p, T::kColumns) + Work::Floats(p, T::kColumns, T::kKeyGroups));
  AllowSharedMemory(DeltaStep<T>, bytes);
  LaunchDependent(
      static_cast<cudaStream_t>(step.stream),
      {.grid = dim3(static_cast<unsigned>(p.readout_parts), static_cast<unsigned>(p.value_heads),
                    static_cast<unsigned>(step.single_row_sequences)),
       .threads = T::kThreads,
       .shared_bytes = static_cast<size_t>(bytes)},
      DeltaStep<T>, p, step.slots);
  SumDeltaReadouts(args, p, 0, step.single_row_sequences, step.stream);
}

// Four floats per access: K and V are multiples of 4.
template <int kKeyGroups>
void LaunchVectors(const Step& step, const DeltaRuleCudaArgs& args) {
  constexpr int kRows = 16, kRegistersPerThread = 168;
  constexpr auto blocks = [](int columns) {
    return 65536 / kRegistersPerThread / (columns / 4 * kKeyGroups);
  };
  const bool exact = args.shape.key_dim == kKeyGroups * kRows;
  const int64_t value_dim = args.shape.value_dim;
  if constexpr (kKeyGroups <= 8) {
    // Few heads are cut finer, so that a fold, the longest of all, is shared by more of the GPU.
    constexpr int kFewHeads = 512;
    const bool few = step.single_row_sequences * args.shape.value_heads <= kFewHeads;
    if (exact && value_dim % 128 == 0 && !few) {
      return Launch<Tile<4, 128, kKeyGroups, kRows, true, 2 * 8 / kKeyGroups>>(step, args);
    }
  }
  if (exact && value_dim % 64 == 0) {
    return Launch<Tile<4, 64, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args);
  }
  if (exact && value_dim % 32 == 0) {
    return Launch<Tile<4, 32, kKeyGroups, kRows, true, blocks(32)>>(step, args);
  }
  return Launch<Tile<4, 32, kKeyGroups, kRows, false, blocks(32)>>(step, args);
}

}  // namespace
}  // namespace delta

void DeltaRuleStepCuda(const Step& step, const DeltaRuleCudaArgs& args) {
  if (step.single_row_sequences == 0) return;
  const int64_t key_dim = args.shape.key_dim;
  if (key_dim % 4 != 0 || args.shape.value_dim % 4 != 0) {
    return delta::Launch<delta::Tile<1, 32, 16, 16, false, 1>>(step, args);
  }
  if (key_dim <= 64) return delta::LaunchVectors<4>(step, args);
  if (key_dim <= 128) return delta::LaunchVectors<8>(step, args);
  return delta::LaunchVectors<16>(step, args);
}

}  // namespace eddy
