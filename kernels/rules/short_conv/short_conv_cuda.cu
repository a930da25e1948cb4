#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/short_conv/short_conv_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 32;  // rows that a thread goes through

struct Sequences {
  const int32_t* row_start;
  const int32_t* slots;
  int first;  // that of blockIdx.y 0
};

// A thread has kVec channels of kTile rows of a sequence: x runs over channels, y over sequences, z
// over tiles. The thread of a sequence's first tile is the only one that reads and writes the
// history of its channels.
template <int kWidth, int kVec>
__global__ void __launch_bounds__(kThreads)
    ShortConvKernel(const Sequences sequences, const ShortConvCudaArgs p) {
  constexpr int kHistory = kWidth - 1;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int sequence = sequences.first + static_cast<int>(blockIdx.y);
  const int64_t first = sequences.row_start[sequence];
  const int rows = static_cast<int>(sequences.row_start[sequence + 1] - first);
  const int begin = static_cast<int>(blockIdx.z) * kTile, end = min(rows, begin + kTile);
  if (begin >= end) return;
  const int32_t slot = sequences.slots[sequence];
  if (slot == kNoSlot) {
    for (int t = begin; t < end; ++t) {
      StoreTyped<kVec>(p.out, p.out_type, (first + t) * p.out_stride + channel, Floats<kVec>{});
    }
    return;
  }

  Floats<kVec> input_bias = {}, bias = {};
  if (p.input_bias != nullptr) input_bias = LoadFloats<kVec>(p.input_bias, channel);
  if (p.bias != nullptr) bias = LoadFloats<kVec>(p.bias, channel);
  // Of all its channels side by side: tap j of channel i is taps[(i * kWidth + j) / kVec].v[...].
  Floats<kVec> taps[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    taps[j] = LoadTyped<kVec>(p.taps, p.taps_type, channel * kWidth + j * kVec);
  }
  float* const state = kHistory > 0 ? FieldAt<float>(p.state, slot) : nullptr;
  // z of row t, where negative rows lie in the history.
  const auto input = [&](int t) {
    if (t < 0) return LoadFloats<kVec>(state, (kHistory + t) * p.channels + channel);
    auto z = LoadTyped<kVec>(p.x, p.x_type, (first + t) * p.x_stride + channel);
#pragma unroll
    for (int i = 0; i < kVec; ++i) z.v[i] += input_bias.v[i];
    return z;
  };

  Floats<kVec> window[kWidth];  // z of the row and of kHistory ones before it
#pragma unroll
  for (int j = 0; j < kHistory; ++j) window[j] = input(begin - kHistory + j);
  for (int t = begin; t < end; ++t) {
    window[kHistory] = input(t);
    Floats<kVec> y;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      float sum = bias.v[i];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int tap = i * kWidth + j;
        sum = fmaf(taps[tap / kVec].v[tap % kVec], window[j].v[i], sum);
      }
      y.v[i] = Activate(p.activation, sum);
    }
    StoreTyped<kVec>(p.out, p.out_type, (first + t) * p.out_stride + channel, y);
#pragma unroll
    for (int j = 0; j < kHistory; ++j) window[j] = window[j + 1];
  }
  if (begin > 0) return;
    // Oldest first, so that no row is overwritten before it has moved.
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    StoreFloats<kVec>(state, j * p.channels + channel, input(rows - kHistory + j));
  }
}

template <int kWidth, int kVec>
void Launch(const Step& step, const ShortConvCudaArgs& p, int first, int count, int max_rows) {
  if (count == 0 || max_rows == 0) return;
  const auto blocks = [](int64_t n, int64_t each) {
    return static_cast<unsigned>((n + each - 1) / each);
  };
  const dim3 grid(blocks(p.channels, kThreads * kVec), static_cast<unsigned>(count),
                  blocks(max_rows, kTile));
  ShortConvKernel<kWidth, kVec><<<grid, kThreads, 0, static_cast<cudaStream_t>(step.stream)>>>(
      {.row_start = step.row_start, .slots = step.slots, .first = first}, p);
}

template <int kVec>
void LaunchWidth(const Step& step, const ShortConvCudaArgs& p, int first, int count, int max_rows) {
  const auto launch = [&]<int kWidth>() { Launch<kWidth, kVec>(step, p, first, count, max_rows); };
  switch (p.width) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 3:
      return launch.template operator()<3>();
    case 4:
      return launch.template operator()<4>();
    case 5:
      return launch.template operator()<5>();
    case 6:
      return launch.template operator()<6>();
    case 7:
      return launch.template operator()<7>();
    case 8:
      return launch.template operator()<8>();
  }
  EDDY_CHECK(false && "the layers allow widths 1 to 8");
}

}  // namespace

void ShortConvCuda(const Step& step, const ShortConvCudaArgs& p) {
  const bool four = p.channels % 4 == 0 && TakesFour(p.x, p.x_stride, p.x_type) &&
                    TakesFour(p.out, p.out_stride, p.out_type) && TakesFour(p.state) &&
                    TakesFour(p.taps, 0, p.taps_type) && TakesFour(p.input_bias, 0) &&
                    TakesFour(p.bias, 0);
  const auto launch = four ? LaunchWidth<4> : LaunchWidth<1>;
  // Two grids, so that decoding sequences have no empty tiles of a long prompt.
  const int single = step.single_row_sequences;
  launch(step, p, 0, single, 1);
  launch(step, p, single, step.sequences - single, step.max_rows_per_sequence);
}

}  // namespace eddy
