// One token of each decoding sequence. A block owns some columns of one value head's S and keeps
// them in registers: it asks for S before the kernels ahead have ended (delta_rule_cuda.h says why
// it may), walks the ring while S is on its way, then multiplies. Sums over K are taken in an order
// that depends on K alone, so how many columns a block has, which depends on the load, changes no
// bit.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/rules/delta_rule/delta_rule_block.cuh"
#include "kernels/rules/delta_rule/delta_rule_piece.cuh"

namespace eddy {
namespace delta {
namespace {

// How a block holds kRows * kKeyGroups rows of kColumns columns of S, whose numbers are of type
// State. kExact: that is K and the block's share of V; else K and V end inside it. kVec: numbers
// per access, more than 1 only if K and V are multiples of it.
template <typename State_, int kVec_, int kColumns_, int kKeyGroups_, int kRows_, bool kExact_,
          int kBlocks_>
struct Tile {
  using State = State_;
  static constexpr int kVec = kVec_, kColumns = kColumns_, kKeyGroups = kKeyGroups_;
  static constexpr int kRows = kRows_, kBlocks = kBlocks_;  // per multiprocessor
  static constexpr bool kExact = kExact_;
  static constexpr int kThreads = kColumns / kVec * kKeyGroups;
  static constexpr int kMostKeys = kKeyGroups * kRows, kKeys = kExact ? kMostKeys : 0;
  static constexpr int kFloats = kVec < 4 ? kVec : 4;  // per access to what is float
  // Rows of S that a thread folds at once: as float they take 64 registers, beside 64 of bfloat16.
  static constexpr int kFolded = kVec > 4 ? 32 / kVec : kRows;
  static_assert(kThreads % kWarp == 0 && kRows % kFolded == 0);
  __device__ static void Sync() { __syncthreads(); }
};

// This thread's part of S: rows key_group, key_group + kKeyGroups, ..., from `column` of the block
// on. What is outside of K and V is zero.
template <typename T>
struct Registers {
  using State = typename T::State;
  const int key_group = static_cast<int>(threadIdx.x) / (T::kColumns / T::kVec);
  const int column = static_cast<int>(threadIdx.x) % (T::kColumns / T::kVec) * T::kVec;
  Piece<State, T::kVec> s[T::kRows];

  __device__ int Row(int m) const { return key_group + m * T::kKeyGroups; }
  __device__ bool Holds(const Block& b, int m) const {
    return T::kExact || (Row(m) < KeyDim<T>(b.p) && column < b.columns);
  }
  __device__ State* Address(const Block& b, std::byte* state, int m) const {
    return reinterpret_cast<State*>(state) + key_group * b.p.value_dim + b.first_column + column +
           m * (T::kKeyGroups * b.p.value_dim);
  }

  __device__ void Load(const Block& b, std::byte* state) {
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if (Holds(b, m)) s[m].Load(Address(b, state, m));
    }
  }

  __device__ void Multiply(const Block& b) const {
    float p[T::kVec] = {}, y[T::kVec] = {};
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if (!T::kExact && Row(m) >= KeyDim<T>(b.p)) continue;
      float row[T::kVec];
      s[m].Widen(row);
      MultiplyRow(b.work.reads[Row(m)], row, p, y);
    }
    StoreShares<T>(b, key_group, column, p, y);
  }

  // Folds all pairs into S and writes it. After TurnKeys and a barrier.
  __device__ void FoldAndStore(const Block& b, const Fetched& in, std::byte* state) const {
    if constexpr (T::kFolded == T::kRows) {
      FoldRows(b, in, state, 0, s);
    } else {
      // The registers of all rows are wanted, so S is read again.
#pragma unroll 1
      for (int first = 0; first < T::kRows; first += T::kFolded) {
        Piece<State, T::kVec> again[T::kFolded];
#pragma unroll
        for (int m = 0; m < T::kFolded; ++m) {
          if (Holds(b, first + m)) again[m].Load(Address(b, state, first + m));
        }
        FoldRows(b, in, state, first, again);
      }
    }
  }

  // So many rows, from `first` of the thread's on.
  template <int kRows>
  __device__ void FoldRows(const Block& b, const Fetched& in, std::byte* state, int first,
                           const Piece<State, T::kVec> (&from)[kRows]) const {
    float rows[kRows][T::kVec];
#pragma unroll
    for (int m = 0; m < kRows; ++m) from[m].Widen(rows[m]);
    Fold<T>(b, in, Row(first), column, rows);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (!Holds(b, first + m)) continue;
      Piece<State, T::kVec> piece;
      piece.Set(rows[m]);
      piece.Store(Address(b, state, first + m));
    }
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
  constexpr int kLanes = T::kColumns / T::kFloats;  // for a row of columns
  const int thread = static_cast<int>(threadIdx.x), column = thread % kLanes * T::kFloats;
  Copy<T, T::kFloats>(at.w, count * KeyDim<T>(b.p), to.w);
  const float* n = at.n + b.first_column + column;
#pragma unroll 1
  for (int pair = thread / kLanes; pair < count; pair += T::kThreads / kLanes) {
    if (!T::kExact && column >= b.columns) break;
    CopyAsync<T::kFloats * 4>(to.n + pair * T::kColumns + column, n + pair * b.p.value_dim);
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
    registers.FoldAndStore(block, fetched, at.s);
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

int64_t Heads(const Step& step, const DeltaRuleCudaArgs& args) {
  return step.single_row_sequences * args.shape.value_heads;
}

// Four floats per access: K and V are multiples of 4.
template <int kKeyGroups>
void LaunchFloats(const Step& step, const DeltaRuleCudaArgs& args) {
  constexpr int kRows = 16, kRegistersPerThread = 168;
  constexpr auto blocks = [](int columns) {
    return 65536 / kRegistersPerThread / (columns / 4 * kKeyGroups);
  };
  const bool exact = args.shape.key_dim == kKeyGroups * kRows;
  const int64_t value_dim = args.shape.value_dim;
  if constexpr (kKeyGroups <= 8) {
    // Few heads are cut finer, so that a fold, the longest of all, is shared by more of the GPU.
    constexpr int kFewHeads = 512;
    if (exact && value_dim % 128 == 0 && Heads(step, args) > kFewHeads) {
      return Launch<Tile<float, 4, 128, kKeyGroups, kRows, true, 2 * 8 / kKeyGroups>>(step, args);
    }
  }
  if (exact && value_dim % 64 == 0) {
    return Launch<Tile<float, 4, 64, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args);
  }
  if (exact && value_dim % 32 == 0) {
    return Launch<Tile<float, 4, 32, kKeyGroups, kRows, true, blocks(32)>>(step, args);
  }
  return Launch<Tile<float, 4, 32, kKeyGroups, kRows, false, blocks(32)>>(step, args);
}

// The same with bfloat16 states. Wide accesses take few threads, of which many heads make enough;
// few heads get more threads each, and the fewest of all more registers. Where one begins to be
// faster than the other is measured.
template <int kKeyGroups>
void LaunchHalves(const Step& step, const DeltaRuleCudaArgs& args) {
  using Half = __nv_bfloat16;
  constexpr int kRows = 16, kFewHeads = 512, kManyHeads = 2048;
  const bool exact = args.shape.key_dim == kKeyGroups * kRows;
  const int64_t value_dim = args.shape.value_dim, heads = Heads(step, args);
  if constexpr (kKeyGroups <= 8) {
    if (exact && value_dim % 128 == 0 && heads > kManyHeads) {
      return Launch<Tile<Half, 8, 128, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args);
    }
    if (exact && value_dim % 64 == 0 && heads > kFewHeads) {
      return Launch<Tile<Half, 4, 64, kKeyGroups, kRows, true, 40 / kKeyGroups>>(step, args);
    }
  } else {
    if (exact && value_dim % 64 == 0 && heads > kFewHeads) {
      return Launch<Tile<Half, 8, 64, kKeyGroups, kRows, true, 64 / kKeyGroups>>(step, args);
    }
  }
  if (exact && value_dim % 64 == 0) {
    return Launch<Tile<Half, 4, 64, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args);
  }
  return Launch<Tile<Half, 4, 32, kKeyGroups, kRows, false, 64 / kKeyGroups>>(step, args);
}

template <int kKeyGroups>
void LaunchVectors(const Step& step, const DeltaRuleCudaArgs& args) {
  if (args.state.dtype == DType::kBF16) return LaunchHalves<kKeyGroups>(step, args);
  LaunchFloats<kKeyGroups>(step, args);
}

// Any K and V.
template <typename State>
void LaunchSingles(const Step& step, const DeltaRuleCudaArgs& args) {
  Launch<Tile<State, 1, 32, 16, 16, false, 1>>(step, args);
}

}  // namespace
}  // namespace delta

void DeltaRuleStepCuda(const Step& step, const DeltaRuleCudaArgs& args) {
  if (step.single_row_sequences == 0) return;
  const int64_t key_dim = args.shape.key_dim;
  if (key_dim % 4 != 0 || args.shape.value_dim % 4 != 0) {
    if (args.state.dtype == DType::kBF16) return delta::LaunchSingles<__nv_bfloat16>(step, args);
    return delta::LaunchSingles<float>(step, args);
  }
  if (key_dim <= 64) return delta::LaunchVectors<4>(step, args);
  if (key_dim <= 128) return delta::LaunchVectors<8>(step, args);
  return delta::LaunchVectors<16>(step, args);
}

}  // namespace eddy
