#include <cuda_runtime.h>

#include "kernels/cuda/typed.cuh"
#include "kernels/rules/selective_scan/selective_scan_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = kSelectiveThreads;

struct Sequences {
  const int32_t* row_start;
  const int32_t* slots;
  int first;  // that of blockIdx.y 0
};

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
          const float decay = SelectiveDecay<kExponential>(step.v[j], rate[u].v[j], kn);
          s[u].v[j] = __fmaf_rn(kn, input.v[j], __fmul_rn(decay, s[u].v[j]));
          out.v[j] = __fmaf_rn(qn, s[u].v[j], out.v[j]);
        }
        StoreOnce(state, (first + u) * p.channels + channel, s[u]);
      }
    }
  }
  StoreFloats(p.out, row * p.channels + channel, out);
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

}  // namespace

void SelectiveScanCuda(const Step& step, const SelectiveScanCudaArgs& p) {
  const bool four = p.channels % 4 == 0 && TakesFour(p.x, 0, p.x_type) && TakesFour(p.step, 0) &&
                    TakesFour(p.rates, 0) && TakesFour(p.state) && TakesFour(p.out, 0);
  const Part single = {.step = step, .args = p, .first = 0, .end = step.single_row_sequences};
  if (single.count() > 0) four ? LaunchSteps<4>(single) : LaunchSteps<1>(single);
  if (step.sequences > step.single_row_sequences) {
    SelectiveScanRowsCuda(step, p, step.single_row_sequences, step.sequences);
  }
}

void SelectiveScanRatesCuda(Stream stream, int64_t channels, int64_t states, const float* rate_log,
                            float* rates) {
  RatesKernel<<<Blocks(channels * states, kThreads), kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(channels, states, rate_log, rates);
}

}  // namespace eddy
