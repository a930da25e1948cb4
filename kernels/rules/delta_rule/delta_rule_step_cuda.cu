// The step kernel between kernels that prepare the token's vectors and take o.
#include <algorithm>

#include "base/check.h"
#include "kernels/rules/delta_rule/delta_rule_step.cuh"

namespace eddy {
namespace delta {
namespace {

// Vectors and o lie in rows in global memory, where other kernels write and read them.
struct RowEnds {
  static constexpr bool kEarly = false;
  struct Held {};

  __host__ __device__ static int RoomFloats() { return 0; }
  __device__ static float* Out(const Block& b, const Place& place) {
    return b.p.out + place.sequence * b.p.out_stride + place.head * b.p.value_dim + b.first_column;
  }
  template <typename T>
  __device__ static void Zeros(const Block& b, const Place& place) {
    WriteZeros(Out(b, place), b.columns);
  }
  template <typename T>
  __device__ static Held Ahead(const Block&, const Place&) {
    return {};
  }
  template <typename T>
  __device__ static void Token(const Block& b, const Place& place, const Held&, const Fetched& to) {
    const DeltaInputs from(b.p, place.sequence, place.head);
    const int key_dim = KeyDim<T>(b.p);
    Copy<T, 1>(from.beta, 1, to.beta);
    Copy<T, 1>(from.k, key_dim, to.k);
    Copy<T, 1>(from.q, key_dim, to.q);
    Copy<T, 1>(from.w, key_dim, to.w + b.p.entries * key_dim);
    Copy<T, 1>(from.v + b.first_column, b.columns, to.n + b.p.entries * T::kColumns);
    if (b.has_decay()) Copy<T, 1>(from.decay, Decays<T>(b.p), to.a + b.p.entries * Decays<T>(b.p));
  }
  __device__ static const float* Values(const Block& b, const Place& place) {
    return DeltaInputs(b.p, place.sequence, place.head).v;
  }
  template <typename T>
  __device__ static void Finish(const Block&, const Place&) {}
};

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
      return Launch<Tile<float, 4, 128, kKeyGroups, kRows, true, 2 * 8 / kKeyGroups>>(step, args,
                                                                                      RowEnds());
    }
  }
  if (exact && value_dim % 64 == 0) {
    return Launch<Tile<float, 4, 64, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args,
                                                                                RowEnds());
  }
  if (exact && value_dim % 32 == 0) {
    return Launch<Tile<float, 4, 32, kKeyGroups, kRows, true, blocks(32)>>(step, args, RowEnds());
  }
  return Launch<Tile<float, 4, 32, kKeyGroups, kRows, false, blocks(32)>>(step, args, RowEnds());
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
      return Launch<Tile<Half, 8, 128, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args,
                                                                                  RowEnds());
    }
  } else {
    if (exact && value_dim % 64 == 0 && heads > kFewHeads) {
      return Launch<Tile<Half, 8, 64, kKeyGroups, kRows, true, 64 / kKeyGroups>>(step, args,
                                                                                 RowEnds());
    }
  }
  if (exact && value_dim % 64 == 0) {
    return Launch<Tile<Half, 4, 64, kKeyGroups, kRows, true, 32 / kKeyGroups>>(step, args,
                                                                               RowEnds());
  }
  return Launch<Tile<Half, 4, 32, kKeyGroups, kRows, false, 64 / kKeyGroups>>(step, args,
                                                                              RowEnds());
}

template <int kKeyGroups>
void LaunchVectors(const Step& step, const DeltaRuleCudaArgs& args) {
  if (args.state.dtype == DType::kBF16) return LaunchHalves<kKeyGroups>(step, args);
  LaunchFloats<kKeyGroups>(step, args);
}

// Any K and V.
template <typename State>
void LaunchSingles(const Step& step, const DeltaRuleCudaArgs& args) {
  Launch<Tile<State, 1, 32, 16, 16, false, 1>>(step, args, RowEnds());
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
