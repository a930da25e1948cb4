// The step kernel of the delta rule: one token of each decoding sequence. A block owns some columns
// of one value head's S and keeps them in registers: it asks for S before the kernels ahead have
// ended (delta_rule_cuda.h says why it may), walks the ring while S is on its way, then multiplies.
// Sums over K are taken in an order that depends on K alone, so how many columns a block has, which
// depends on the load, changes no bit.
//
// Where the token's vectors come from and where o goes is up to Ends, a struct that travels as an
// argument of the kernel:
//   bool kEarly                        whether blocks are few: they let the next kernel start, and
//                                      walk the ring, before those ahead have ended
//   int RoomFloats()                   of shared memory that it wants, a multiple of four
//   Zeros<T>(block, place)             the output of a row without a slot
//   Held Ahead<T>(block, place)        starts reading what no kernel ahead on the stream writes
//   Token<T>(block, place, held, to)   starts the copies of k, q, w, v, a and beta, or writes them
//   float* Out(block, place)           where o of the block's columns goes
//   const float* Values(block, place)  v of the head, for the read-outs
//   Finish<T>(block, place)            when o is there
// The barriers of the kernel stand between Ahead, Token, and Finish.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/rules/delta_rule/delta_rule_block.cuh"
#include "kernels/rules/delta_rule/delta_rule_piece.cuh"

namespace eddy::delta {

// Whose token it is.
struct Place {
  int sequence, head, part;  // part: of the head's columns
  int32_t slot;
  float* room;  // of Ends
};

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

  __device__ void Multiply(const Block& b, const Fetched& in) const {
    float p[T::kVec] = {}, y[T::kVec] = {};
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      if (!T::kExact && Row(m) >= KeyDim<T>(b.p)) continue;
      float row[T::kVec];
      s[m].Widen(row);
      MultiplyRow(b.work.reads[Row(m)], row, p, y);
    }
    AddPairs<T>(b, in, key_group, column, p, y);
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

template <typename T, typename Ends>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    DeltaStep(const __grid_constant__ DeltaKernelArgs p, const int32_t* slots,
              const __grid_constant__ Ends ends) {
  extern __shared__ __align__(16) float memory[];
  const int sequence = static_cast<int>(blockIdx.z);
  const Place place = {.sequence = sequence,
                       .head = static_cast<int>(blockIdx.y),
                       .part = static_cast<int>(blockIdx.x),
                       .slot = slots[sequence],
                       .room = memory};
  const Fetched fetched(memory + ends.RoomFloats(), p, KeyDim<T>(p), T::kColumns);
  const int first_column = place.part * T::kColumns;
  const Block block = {
      .p = p,
      .work = Work(fetched.beta + Fetched::kBeta, KeyDim<T>(p)),
      .first_column = first_column,
      .columns = T::kExact ? T::kColumns : min(T::kColumns, p.value_dim - first_column)};
  const auto readouts = [&] { return DeltaReadoutPart(p, place.sequence, place.head, place.part); };
  const bool tells = p.readouts != nullptr;
  if (place.slot == kNoSlot) {
    WaitForPrevious();
    AllowNext();
    if (tells) WriteZeros(readouts(), kReadoutParts);
    return ends.template Zeros<T>(block, place);
  }

  const DeltaHead at(p, place.slot, place.head);
  const int count = p.entries != 0 ? at.count[first_column / kDeltaCountColumns] : 0;
  Registers<T> registers;
  registers.Load(block, at.s);
  const auto held = ends.template Ahead<T>(block, place);
  if (count > 0) FetchRing<T>(block, at, count, fetched);
  if constexpr (Ends::kEarly) {
    AllowNext();
    WaitForCopies();
    __syncthreads();
    WalkRing<T>(block, fetched, count);
    WaitForPrevious();
    ends.template Token<T>(block, place, held, fetched);
  } else {
    CommitCopies();
    WaitForPrevious();
    // Not before: so a kernel that starts early, and reads state ahead too, follows on an ended
    // one.
    AllowNext();
    ends.template Token<T>(block, place, held, fetched);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    WalkRing<T>(block, fetched, count);
  }
  WaitForCopies();
  __syncthreads();
  Walk<T>(block, fetched);
  __syncthreads();
  registers.Multiply(block, fetched);
  __syncthreads();
  const float beta = *fetched.beta;
  Correct<T>(block, fetched, beta, ends.Out(block, place));
  __syncthreads();
  ends.template Finish<T>(block, place);
  if (tells) WriteReadouts<T>(block, fetched, ends.Values(block, place), beta, readouts());
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

template <typename T, typename Ends>
void Launch(const Step& step, const DeltaRuleCudaArgs& args, const Ends& ends) {
  const DeltaKernelArgs p = ResolveDeltaArgs(args, T::kColumns);
  constexpr int kMostSequences = 65535;  // of CUDA: the third dimension of a grid
  EDDY_CHECK(step.single_row_sequences <= kMostSequences);
  const int bytes = 4 * (ends.RoomFloats() + Fetched::Floats(p, T::kColumns) +
                         Work::Floats(p, T::kColumns, T::kKeyGroups));
  AllowSharedMemory(DeltaStep<T, Ends>, bytes);
  LaunchDependent(
      static_cast<cudaStream_t>(step.stream),
      {.grid = dim3(static_cast<unsigned>(p.readout_parts), static_cast<unsigned>(p.value_heads),
                    static_cast<unsigned>(step.single_row_sequences)),
       .threads = T::kThreads,
       .shared_bytes = static_cast<size_t>(bytes)},
      DeltaStep<T, Ends>, p, step.slots, ends);
  SumDeltaReadouts(args, p, 0, step.single_row_sequences, step.stream);
}

}  // namespace eddy::delta
