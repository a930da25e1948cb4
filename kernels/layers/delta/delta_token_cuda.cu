#include <algorithm>

#include "base/check.h"
#include "kernels/layers/delta/delta_prepare_cuda.cuh"
#include "kernels/layers/delta/delta_token_cuda.h"
#include "kernels/rules/delta_rule/delta_rule_step.cuh"

namespace eddy {
namespace {

using delta::Block;
using delta::Fetched;
using delta::Place;

constexpr int kWarp = 32, kElements = 4;
using L = Lanes<kWarp, 4, kElements>;  // as the kernels for one of the three have it
constexpr int kRow = kWarp * kElements;

// What is before and after the rule. A warp has one of the roles, or every so manieth; a role's
// numbers in shared memory are a lane's own from Ahead to Finish, so it needs no barrier for them.
struct TokenEnds {
  enum Role { kKey, kQuery, kValue, kGates, kOutput, kDecay, kRoles };
  // Rows of the room behind those of the convolutions.
  enum Row { kScale, kDecayBias, kOutNorm, kGateBias, kGate, kV, kO, kRows };
  static constexpr bool kEarly = true;
  struct Held {
    DeltaGateInputs gates = {};
  };

  DeltaPrepareParams prepare;
  DeltaGateArgs gate;
  DeltaOptions::Gate gate_function;
  float norm_eps;

  // Of the convolution of q, k or v, the window with the token's own row and the taps.
  __host__ __device__ int ConvolutionRows() const { return 2 * (prepare.o.history + 1); }
  __host__ __device__ int RoomFloats() const { return (3 * ConvolutionRows() + kRows) * kRow; }
  __device__ float* Window(const Place& place, int role) const {
    return place.room + role * ConvolutionRows() * kRow;
  }
  __device__ float* At(const Place& place, Row row) const {
    return place.room + (3 * ConvolutionRows() + row) * kRow;
  }
  __device__ DeltaUnit Unit(const Place& place, int role) const {
    return DeltaUnitOf(prepare, role * prepare.o.heads + place.head);
  }
  // Row `j` of the window in the record.
  __device__ float* History(const Place& place, const DeltaUnit& unit, int j) const {
    const int heads = prepare.o.heads;
    return FieldAt<float>(DeltaHistoryOf(prepare.a, unit), place.slot) + unit.channel +
           int64_t{j} * heads * unit.dim;
  }
  __device__ float* Out(const Block&, const Place& place) const { return At(place, kO); }
  __device__ const float* Values(const Block&, const Place& place) const { return At(place, kV); }
  __device__ bool GatesNeedKey() const { return DeltaUsesKeyLength(prepare.o) || prepare.o.scaled; }

  __device__ const float* Logits(const Place& place) const {
    return prepare.a.logits + place.sequence * prepare.a.logits_stride;
  }

  template <typename T, typename Function>
  __device__ static void ForRoles(Function function) {
    static_assert(T::kColumns <= kRow && T::kMostKeys <= kRow);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
    for (int role = static_cast<int>(threadIdx.x) / kWarp; role < kRoles;
         role += T::kThreads / kWarp) {
      function(role, lane);
    }
  }
  __device__ static void CopyRow(const float* from, int dim, int lane, float* to) {
    const int at = lane * kElements;
    if (at < dim) CopyAsync<16>(to + at, from + at);
  }

  template <typename T>
  __device__ void Zeros(const Block& b, const Place& place) const {
    const int64_t first = (int64_t{place.sequence} * b.p.value_heads + place.head) * b.p.value_dim;
    for (int i = static_cast<int>(threadIdx.x); i < b.p.value_dim; i += T::kThreads) {
      StoreTyped(gate.y, gate.y_type, first + i, Floats<1>{0});
    }
  }

  template <typename T>
  __device__ Held Ahead(const Block& b, const Place& place) const {
    Held held;
    ForRoles<T>([&](int role, int lane) {
      const int j = place.head;
      if (role <= kValue) CopyConvolution(place, role, lane);
      if (role == kKey && prepare.o.scaled) {
        CopyRow(FieldAt<float>(prepare.a.scale, place.slot) + j * b.p.key_dim, b.p.key_dim, lane,
                At(place, kScale));
      }
      if (role == kGates || role == kKey) held.gates.ReadWeights(prepare, j);
      if (role == kOutput) {
        CopyRow(gate.out_norm, b.p.value_dim, lane, At(place, kOutNorm));
        if (gate.bias != nullptr) {
          CopyRow(gate.bias + j * b.p.value_dim, b.p.value_dim, lane, At(place, kGateBias));
        }
      }
      if (role == kDecay && b.p.channel_decay) {
        CopyRow(prepare.a.vectors.decay_bias + j * b.p.key_dim, b.p.key_dim, lane,
                At(place, kDecayBias));
        held.gates.rate = prepare.a.vectors.decay_rate_log[j];
      }
    });
    return held;
  }

  __device__ void CopyConvolution(const Place& place, int role, int lane) const {
    const int history = prepare.o.history;
    if (history == 0) return;
    const DeltaUnit unit = Unit(place, role);
    float* const window = Window(place, role);
    const int first = static_cast<int>(DeltaTaps(history + 1)) - history - 1;
#pragma unroll 1
    for (int j = 0; j <= history; ++j) {
      CopyRow(prepare.a.vectors.taps + (first + j) * prepare.a.vectors.taps_stride + unit.column,
              unit.dim, lane, window + (history + 1 + j) * kRow);
      if (j == history) continue;
      CopyRow(History(place, unit, j), unit.dim, lane, window + j * kRow);
    }
  }

  template <typename T>
  __device__ void Token(const Block& b, const Place& place, const Held& held,
                        const Fetched& to) const {
    ForRoles<T>([&](int role, int lane) {
      if (role <= kValue) {
        MakeVector<T>(b, place, role, lane, held, to);
      } else if (role == kGates) {
        if (!GatesNeedKey()) MakeGates<T>(b, place, lane, held, 0.0f, to);
      } else if (role == kOutput) {
        ReadGate(b, place, lane);
      } else if (b.p.channel_decay) {
        MakeChannelDecay<T>(b, place, lane, held, to);
      }
    });
  }

  template <typename T>
  __device__ void MakeVector(const Block& b, const Place& place, int role, int lane,
                             const Held& held, const Fetched& to) const {
    const DeltaUnit unit = Unit(place, role);
    const int history = prepare.o.history, own = b.p.entries;
    float x[kElements];
    const float* const projected = static_cast<const float*>(prepare.a.projected) +
                                   place.sequence * prepare.a.projected_stride + unit.column;
    L::Load(projected, unit.dim, lane, x);
    if (history > 0) {
      WaitForCopies();
      float* const window = Window(place, role);
      L::Store(x, unit.dim, lane, window + history * kRow);
      float sum[kElements] = {};
#pragma unroll 4
      for (int j = 0; j <= history; ++j) {
        float tap[kElements], input[kElements];
        L::Load(window + (history + 1 + j) * kRow, unit.dim, lane, tap);
        L::Load(window + j * kRow, unit.dim, lane, input);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += tap[e] * input[e];
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) x[e] = sum[e];
    }
    DeltaActivate<L>(prepare, unit, lane, x);
    if (role == kQuery) return L::Store(x, unit.dim, lane, to.q);
    if (role == kValue) {
      L::Store(x, unit.dim, lane, At(place, kV));
      return L::Store(x, unit.dim, lane, to.n + own * T::kColumns);
    }
    L::Store(x, unit.dim, lane, to.k);
    if (!prepare.o.scaled) L::Store(x, unit.dim, lane, to.w + own * b.p.key_dim);
    if (!GatesNeedKey()) return;
    const float square = DeltaUsesKeyLength(prepare.o) ? L::Dot(x, x) : 0.0f;
    const float beta = MakeGates<T>(b, place, lane, held, square, to);
    if (prepare.o.scaled) ScaleKey(b, place, lane, held, beta, x, to);
  }

  // All lanes make the same. Returns beta.
  template <typename T>
  __device__ float MakeGates(const Block& b, const Place& place, int lane, const Held& held,
                             float square, const Fetched& to) const {
    DeltaGateInputs inputs = held.gates;
    inputs.ReadLogits(prepare, Logits(place), place.head);
    const DeltaGates gates = DeltaMakeGates(prepare, inputs, square);
    if (lane == 0) *to.beta = gates.beta;
    if (lane == 0 && b.has_decay() && !b.p.channel_decay) to.a[b.p.entries] = gates.decay;
    return gates.beta;
  }

  __device__ void ScaleKey(const Block& b, const Place& place, int lane, const Held& held,
                           float beta, const float (&k)[kElements], const Fetched& to) const {
    const int key_dim = b.p.key_dim;
    DeltaGateInputs inputs = held.gates;
    inputs.ReadLogits(prepare, Logits(place), place.head);
    float retention = 1.0f;
    if (prepare.a.retention_at >= 0) {
      retention = Sigmoid(inputs.retention);
    } else if (prepare.a.vectors.fixed_retention != nullptr) {
      retention = inputs.retention;
    }
    WaitForCopies();
    float d[kElements], w[kElements];
    L::Load(At(place, kScale), key_dim, lane, d);
    OsdnScaleToken<L>(prepare.o.scale, beta, retention, k, 0xffffffffu, d, w);
    L::Store(d, key_dim, lane, FieldAt<float>(prepare.a.scale, place.slot) + place.head * key_dim);
    L::Store(w, key_dim, lane, to.w + b.p.entries * key_dim);
  }

  __device__ void ReadGate(const Block& b, const Place& place, int lane) const {
    if (gate.z == nullptr) return;
    const int value_dim = b.p.value_dim, at = place.head * value_dim;
    float z[kElements], bias[kElements] = {};
    const float* const from =
        static_cast<const float*>(gate.z) + place.sequence * gate.z_stride + at;
    L::Load(from, value_dim, lane, z);
    WaitForCopies();
    if (gate.bias != nullptr) L::Load(At(place, kGateBias), value_dim, lane, bias);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float x = z[e] + bias[e];
      z[e] = gate_function == DeltaOptions::Gate::kSilu ? Silu(x) : Sigmoid(x);
    }
    L::Store(z, value_dim, lane, At(place, kGate));
  }

  template <typename T>
  __device__ void MakeChannelDecay(const Block& b, const Place& place, int lane, const Held& held,
                                   const Fetched& to) const {
    const int key_dim = b.p.key_dim;
    float f[kElements], bias[kElements];
    const float* const from = prepare.a.channel_decay +
                              (int64_t{place.sequence} * b.p.value_heads + place.head) * key_dim;
    L::Load(from, key_dim, lane, f);
    WaitForCopies();
    L::Load(At(place, kDecayBias), key_dim, lane, bias);
    const float rate = expf(held.gates.rate);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      f[e] = expf(DeltaLogDecay(prepare.o, rate, f[e] + bias[e]));
    }
    L::Store(f, key_dim, lane, to.a + b.p.entries * key_dim);
  }

  template <typename T>
  __device__ void Finish(const Block& b, const Place& place) const {
    ForRoles<T>([&](int role, int lane) {
      if (role == kOutput) WriteOutput(b, place, lane);
      if (role <= kValue && prepare.o.history > 0) MoveWindow(place, role, lane);
    });
  }

  __device__ void WriteOutput(const Block& b, const Place& place, int lane) const {
    const int value_dim = b.p.value_dim;
    float o[kElements], weight[kElements], z[kElements];
    L::Load(At(place, kO), value_dim, lane, o);
    L::Load(At(place, kOutNorm), value_dim, lane, weight);
    const float mean = L::Dot(o, o) / static_cast<float>(value_dim);
    const float scale = 1.0f / sqrtf(mean + norm_eps);
#pragma unroll
    for (int e = 0; e < kElements; ++e) o[e] = o[e] * scale * weight[e];
    if (gate.z != nullptr) {
      L::Load(At(place, kGate), value_dim, lane, z);
#pragma unroll
      for (int e = 0; e < kElements; ++e) o[e] *= z[e];
    }
    if (lane * kElements >= value_dim) return;
    StoreTyped(
        gate.y, gate.y_type,
        (int64_t{place.sequence} * b.p.value_heads + place.head) * value_dim + lane * kElements,
        Floats<kElements>{o[0], o[1], o[2], o[3]});
  }

  __device__ void MoveWindow(const Place& place, int role, int lane) const {
    const DeltaUnit unit = Unit(place, role);
    const float* const window = Window(place, role);
#pragma unroll 1
    for (int j = 0; j < prepare.o.history; ++j) {
      float x[kElements];
      L::Load(window + (j + 1) * kRow, unit.dim, lane, x);
      L::Store(x, unit.dim, lane, History(place, unit, j));
    }
  }
};

template <typename State, int kKeyGroups>
void Launch(const Step& step, const DeltaRuleCudaArgs& rule, const TokenEnds& ends) {
  constexpr int kRows = 16, kBlocks = kKeyGroups == 8 ? 2 : 3;
  using delta::Tile;
  if (rule.shape.value_dim == 128) {
    return delta::Launch<Tile<State, 4, 128, kKeyGroups, kRows, true, kBlocks>>(step, rule, ends);
  }
  delta::Launch<Tile<State, 4, 64, kKeyGroups, kRows, true, kBlocks + 1>>(step, rule, ends);
}

template <typename State>
void LaunchForKeys(const Step& step, const DeltaRuleCudaArgs& rule, const TokenEnds& ends) {
  if (rule.shape.key_dim == 64) return Launch<State, 4>(step, rule, ends);
  Launch<State, 8>(step, rule, ends);
}

}  // namespace

bool DeltaTokenFits(const DeltaOptions& options, int rows) {
  // A step of 24 layers with 8 heads is as fast either way at 64 rows, and 8 % slower at 256.
  constexpr int64_t kMostHeads = 512;
  const auto fits = [](int64_t dim) { return dim == 64 || dim == 128; };
  const DeltaRuleShape& shape = options.shape;
  return shape.heads == shape.value_heads && fits(shape.key_dim) && fits(shape.value_dim) &&
         rows * shape.value_heads <= kMostHeads;
}

void DeltaTokenCuda(const Step& step, const DeltaOptions& options, const DeltaPrepareArgs& prepare,
                    const DeltaRuleCudaArgs& rule, const DeltaGateArgs& gate) {
  if (step.single_row_sequences == 0) return;
  EDDY_CHECK(DeltaTokenFits(options, step.single_row_sequences) && prepare.part.single &&
             prepare.part.first_row == 0);
  const TokenEnds ends = {.prepare = DeltaPrepareParamsOf(step, options, prepare),
                          .gate = gate,
                          .gate_function = options.gate,
                          .norm_eps = options.norm_eps};
  if (rule.state.dtype == DType::kBF16) return LaunchForKeys<__nv_bfloat16>(step, rule, ends);
  LaunchForKeys<float>(step, rule, ends);
}

}  // namespace eddy
