#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/selective_scan/selective_scan_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 128;

struct Sequences {
  const int32_t* row_start;
  const int32_t* slots;
  int first;  // that of blockIdx.y 0
};

// 2^x, to two units in the last place; 0 below 2^-126.
__device__ inline float PowerOfTwo(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// s <- a s + k step x, with input = step x; `rate` is read only if kExponential.
template <bool kExponential>
__device__ inline float Advance(float s, float step, float rate, float k, float input) {
  const float a =
      kExponential ? PowerOfTwo(__fmul_rn(step, rate)) : __fmaf_rn(-step, __fmul_rn(k, k), 1.0f);
  return __fmaf_rn(k, input, __fmul_rn(a, s));
}

// A decoding sequence: y runs over sequences, x over channels, of which a thread has kVec with all
// their states. kUnroll states are in flight at once.
template <bool kExponential, int kVec>
__global__ void __launch_bounds__(kThreads)
    StepKernel(const Sequences sequences, const SelectiveScanCudaArgs p) {
  constexpr int kUnroll = 8;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int i = sequences.first + static_cast<int>(blockIdx.y);
  const int64_t row = sequences.row_start[i];
  const int32_t slot = sequences.slots[i];
  Floats<kVec> out = {};
  if (slot != kNoSlot) {
    float* const state = FieldAt<float>(p.state, slot);
    const auto step = LoadFloats<kVec>(p.step, row * p.channels + channel);
    auto input = LoadTyped<kVec>(p.x, p.x_type, row * p.channels + channel);
#pragma unroll
    for (int j = 0; j < kVec; ++j) input.v[j] *= step.v[j];
    const float* const k = p.k + row * p.row_stride;
    const float* const q = p.q + row * p.row_stride;
    for (int64_t first = 0; first < p.states; first += kUnroll) {
      Floats<kVec> s[kUnroll], rate[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u >= p.states) break;
        const int64_t at = (first + u) * p.channels + channel;
        s[u] = LoadOnce<kVec>(state, at);
        if (kExponential) rate[u] = LoadFloats<kVec>(p.rates, at);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u >= p.states) break;
        const float kn = k[first + u], qn = q[first + u];
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          s[u].v[j] = Advance<kExponential>(s[u].v[j], step.v[j], rate[u].v[j], kn, input.v[j]);
          out.v[j] = __fmaf_rn(qn, s[u].v[j], out.v[j]);
        }
        StoreOnce(state, (first + u) * p.channels + channel, s[u]);
      }
    }
  }
  StoreFloats(p.out, row * p.channels + channel, out);
}

// All rows of a sequence. kGroup neighbouring threads share a channel, of which each has kStates
// states, in registers. What tokens bring is loaded kAhead tokens before it is needed. kWhole:
// there are just as many states, and four of k and q can be read at once.
template <bool kExponential, int kGroup, int kStates, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    RowsKernel(const Sequences sequences, const SelectiveScanCudaArgs p) {
  constexpr int kAhead = kStates <= 4 ? 4 : 1;
  const int64_t channel =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  const bool live = channel < p.channels;
  const int lane = threadIdx.x % kGroup;
  const int n = lane * kStates;  // its first state
  const int i = sequences.first + static_cast<int>(blockIdx.y);
  const int64_t first = sequences.row_start[i];
  const int rows = static_cast<int>(sequences.row_start[i + 1] - first);
  const int32_t slot = sequences.slots[i];
  const int channels = static_cast<int>(p.channels), states = static_cast<int>(p.states);
  float* const out = p.out + first * channels + channel;
  if (slot == kNoSlot) {
    for (int64_t t = lane; t < rows && live; t += kGroup) out[t * channels] = 0.0f;
    return;
  }
  float* const state = FieldAt<float>(p.state, slot) + int64_t{n} * channels + channel;
  float s[kStates] = {}, rate[kStates] = {};
#pragma unroll
  for (int j = 0; j < kStates; ++j) {
    if (!live || n + j >= states) continue;
    s[j] = state[j * p.channels];
    if (kExponential) rate[j] = p.rates[(n + j) * p.channels + channel];
  }
  // Loads of rows need no bounds: beyond the last one they repeat it, and threads without a channel
  // read that of others, which they do not use.
  const int64_t own = first * channels + (live ? channel : 0);
  const float* const step = p.step + own;
  const float* const k = p.k + first * p.row_stride + n;
  const float* const q = p.q + first * p.row_stride + n;
  const int key_bytes = static_cast<int>(p.row_stride) * 4;
  const int x_bytes = channels * static_cast<int>(p.x_type == DType::kF32 ? 4 : 2);
  const auto* const x =
      static_cast<const std::byte*>(p.x) + (p.x_type == DType::kF32 ? own * 4 : own * 2);
  struct Token {
    float step, x, k[kStates], q[kStates];
  };
  const auto load = [&](Token(&to)[kAhead], int begin) {
#pragma unroll
    for (int t = 0; t < kAhead; ++t) {
      const int row = min(begin + t, rows - 1);
      const float* const k_row = RowsOn(k, row, key_bytes);
      const float* const q_row = RowsOn(q, row, key_bytes);
      to[t].step = *RowsOn(step, row, channels * 4);
      to[t].x = LoadTyped<1>(RowsOn(x, row, x_bytes), p.x_type, 0).v[0];
      if constexpr (kWhole) {
#pragma unroll
        for (int j = 0; j < kStates; j += 4) {
          *reinterpret_cast<Floats<4>*>(to[t].k + j) = LoadFloats<4>(k_row, j);
          *reinterpret_cast<Floats<4>*>(to[t].q + j) = LoadFloats<4>(q_row, j);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kStates; ++j) {
          const bool there = n + j < states;
          to[t].k[j] = there ? k_row[j] : 0.0f;
          to[t].q[j] = there ? q_row[j] : 0.0f;
        }
      }
    }
  };
  Token tokens[kAhead], next[kAhead];
  load(tokens, 0);
  for (int begin = 0; begin < rows; begin += kAhead) {
    load(next, begin + kAhead);
    float sums[kAhead] = {};
    const auto advance = [&](int t) {
      const float input = tokens[t].step * tokens[t].x;
#pragma unroll
      for (int j = 0; j < kStates; ++j) {
        s[j] = Advance<kExponential>(s[j], tokens[t].step, rate[j], tokens[t].k[j], input);
        sums[t] = __fmaf_rn(tokens[t].q[j], s[j], sums[t]);
      }
    };
    // Without a branch for each token where all are there, so that they can overlap.
    if (begin + kAhead <= rows) {
#pragma unroll
      for (int t = 0; t < kAhead; ++t) advance(t);
    } else {
#pragma unroll
      for (int t = 0; t < kAhead; ++t) {
        if (begin + t < rows) advance(t);
      }
    }
    const int64_t row = begin + ReduceMany<kGroup>(sums);
    constexpr int kSame = kGroup / kAhead;  // lanes with the same sum
    if (lane % kSame == 0 && live && row < rows) out[row * channels] = sums[0];
#pragma unroll
    for (int t = 0; t < kAhead; ++t) tokens[t] = next[t];
  }
#pragma unroll
  for (int j = 0; j < kStates; ++j) {
    if (live && n + j < states) state[j * p.channels] = s[j];
  }
}

__global__ void __launch_bounds__(kThreads)
    RatesKernel(int64_t channels, int64_t states, const float* rate_log, float* rates) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= channels * states) return;
  constexpr double kLog2E = 1.4426950408889634;
  const int64_t n = i / channels, channel = i % channels;
  rates[i] = static_cast<float>(-kLog2E * exp(static_cast<double>(rate_log[channel * states + n])));
}

unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

struct Part {
  const Step& step;
  const SelectiveScanCudaArgs& args;
  int first, end;
  int count() const { return end - first; }
  Sequences sequences() const { return {step.row_start, step.slots, first}; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(step.stream); }
};

template <int kVec>
void LaunchSteps(const Part& part) {
  const auto kernel = part.args.rates != nullptr ? StepKernel<true, kVec> : StepKernel<false, kVec>;
  const dim3 grid(Blocks(part.args.channels, kThreads * kVec), static_cast<unsigned>(part.count()));
  kernel<<<grid, kThreads, 0, part.stream()>>>(part.sequences(), part.args);
}

template <int kGroup, int kStates>
void LaunchRows(const Part& part) {
  const SelectiveScanCudaArgs& p = part.args;
  constexpr bool kFours = kStates % 4 == 0;
  const bool whole = kFours && p.states == kGroup * kStates && TakesFour(p.k, p.row_stride) &&
                     TakesFour(p.q, p.row_stride);
  const dim3 grid(Blocks(p.channels, kThreads / kGroup), static_cast<unsigned>(part.count()));
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, part.stream()>>>(part.sequences(), p);
  };
  if (whole) {
    p.rates != nullptr ? launch(RowsKernel<true, kGroup, kStates, kFours>)
                       : launch(RowsKernel<false, kGroup, kStates, kFours>);
  } else {
    p.rates != nullptr ? launch(RowsKernel<true, kGroup, kStates, false>)
                       : launch(RowsKernel<false, kGroup, kStates, false>);
  }
}

void LaunchRows(const Part& part) {
  const int64_t states = part.args.states;
  if (states <= 4) return LaunchRows<4, 1>(part);
  if (states <= 16) return LaunchRows<4, 4>(part);
  if (states <= 32) return LaunchRows<8, 4>(part);
  if (states <= 64) return LaunchRows<16, 4>(part);
  if (states <= 128) return LaunchRows<32, 4>(part);
  EDDY_CHECK(states <= 1024);
  LaunchRows<32, 32>(part);
}

}  // namespace

void SelectiveScanCuda(const Step& step, const SelectiveScanCudaArgs& p) {
  const bool four = p.channels % 4 == 0 && TakesFour(p.x, 0, p.x_type) && TakesFour(p.step, 0) &&
                    TakesFour(p.rates, 0) && TakesFour(p.state) && TakesFour(p.out, 0);
  const Part single = {.step = step, .args = p, .first = 0, .end = step.single_row_sequences};
  const Part many = {
      .step = step, .args = p, .first = step.single_row_sequences, .end = step.sequences};
  if (single.count() > 0) four ? LaunchSteps<4>(single) : LaunchSteps<1>(single);
  if (many.count() > 0) LaunchRows(many);
}

void SelectiveScanRatesCuda(Stream stream, int64_t channels, int64_t states, const float* rate_log,
                            float* rates) {
  RatesKernel<<<Blocks(channels * states, kThreads), kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(channels, states, rate_log, rates);
}

}  // namespace eddy
