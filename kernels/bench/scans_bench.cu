// Times the recurrent rules around the scans on the GPU: decoding at several batches, where memory
// is the bound, and prompts, where the tokens of a sequence follow one another.
//   scans_bench
// Bytes are those of the states, read and written once, and of the rows.
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/bench/bench.cuh"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"
#include "kernels/rules/kalman/kalman_cuda.h"
#include "kernels/rules/selective_scan/selective_scan_cuda.h"
#include "kernels/rules/short_conv/short_conv_cuda.h"

namespace eddy::bench {
namespace {

constexpr int kMostSequences = 1024;

// Steps of `sequences` of `rows` each, that go round the slots of a pool.
struct Steps {
  Steps(int sequences, int rows) : sequences_(sequences), rows_(rows) {
    std::vector<int32_t> starts, slots;
    for (int i = 0; i <= sequences; ++i) starts.push_back(i * rows);
    for (int i = 1; i <= kMostSequences; ++i) slots.push_back(i);
    starts_ = Upload(starts);
    slots_ = Upload(slots);
  }
  int rounds() const { return std::min(8, kMostSequences / sequences_); }
  Step At(cudaStream_t stream, int round) const {
    return {.rows = sequences_ * rows_,
            .sequences = sequences_,
            .single_row_sequences = rows_ == 1 ? sequences_ : 0,
            .max_rows_per_sequence = rows_,
            .row_start = starts_,
            .slots = slots_ + round * sequences_,
            .stream = stream};
  }

 private:
  int sequences_, rows_;
  int32_t* starts_ = nullptr;
  int32_t* slots_ = nullptr;
};

// Records of all slots, of one field.
FieldView Records(int64_t floats) {
  const int64_t stride = (floats + 63) / 64 * 64;
  return {.base = reinterpret_cast<std::byte*>(Zeros(stride * (kMostSequences + 1))),
          .stride = stride * 4};
}

std::string Name(const char* rule, const char* shape, int sequences, int rows) {
  return std::string(rule) + " " + shape + ", " + std::to_string(sequences) + " x " +
         std::to_string(rows);
}

constexpr std::pair<int, int> kSteps[] = {{1, 1},    {8, 1},    {64, 1},   {256, 1},
                                          {1024, 1}, {1, 4096}, {4, 1024}, {16, 256}};
// The rules whose prompts stream: also a piece of a prompt as a server makes it, and a long one.
constexpr std::pair<int, int> kStreams[] = {{1, 1},    {8, 1},    {64, 1},    {256, 1},
                                            {1024, 1}, {16, 256}, {4, 1024},  {1, 256},
                                            {1, 2048}, {1, 4096}, {1, 131072}};

// 0.75, nearly.
float* Ones(int64_t count) {
  float* data = Zeros(count);
  Check(cudaMemset(data, 0x3f, static_cast<size_t>(count) * 4));
  return data;
}

void Kalman(int64_t kChannels) {
  constexpr int64_t kStates = 16, kRows = 131072;
  const FieldView precision = Records(kChannels * kStates),
                  information = Records(kChannels * kStates);
  const float *v = Ones(kRows * kChannels), *certainty = Ones(kRows * kChannels);
  const float *kq = Ones(kRows * 2 * kStates), *model = Ones(kChannels * kStates);
  float* y = Zeros(kRows * kChannels);
  for (const auto& [sequences, count] : kStreams) {
    const Steps steps(sequences, count);
    const double us = Time(steps.rounds(), [&](cudaStream_t stream, int round) {
      KalmanCuda(steps.At(stream, round), {.channels = kChannels,
                                           .state_dim = kStates,
                                           .transition = model,
                                           .noise = model,
                                           .v = v,
                                           .certainty = certainty,
                                           .k = kq,
                                           .q = kq + kStates,
                                           .v_stride = kChannels,
                                           .certainty_stride = kChannels,
                                           .k_stride = 2 * kStates,
                                           .q_stride = 2 * kStates,
                                           .precision = precision,
                                           .information = information,
                                           .y = y});
    });
    const double bytes = 4.0 * sequences * (4 * kChannels * kStates) +
                         4.0 * sequences * count * (3 * kChannels + 2 * kStates);
    Line(Name("kalman", (std::to_string(kChannels) + " x 16").c_str(), sequences, count).c_str(),
         us, bytes);
  }
  for (const float* data : {v, certainty, kq, model}) Check(cudaFree(const_cast<float*>(data)));
  Check(cudaFree(y));
  Check(cudaFree(precision.base));
  Check(cudaFree(information.base));
}

void ShortConv() {
  constexpr int64_t kChannels = 8192, kWidth = 4, kRows = 4096;
  const FieldView state = Records((kWidth - 1) * kChannels);
  const uint16_t* x = Zeros<uint16_t>(kRows * kChannels);
  const uint16_t* taps = Zeros<uint16_t>(kChannels * kWidth);
  uint16_t* out = Zeros<uint16_t>(kRows * kChannels);
  for (const auto& [sequences, count] : kSteps) {
    const Steps steps(sequences, count);
    const double us = Time(steps.rounds(), [&](cudaStream_t stream, int round) {
      ShortConvCuda(steps.At(stream, round), {.channels = kChannels,
                                              .width = kWidth,
                                              .x = x,
                                              .x_type = DType::kBF16,
                                              .x_stride = kChannels,
                                              .taps = taps,
                                              .taps_type = DType::kBF16,
                                              .activation = Activation::kSilu,
                                              .state = state,
                                              .out = out,
                                              .out_type = DType::kBF16,
                                              .out_stride = kChannels});
    });
    const double bytes =
        4.0 * sequences * 2 * (kWidth - 1) * kChannels + 2.0 * sequences * count * 2 * kChannels;
    Line(Name("short_conv", "8192 x 4 bf16", sequences, count).c_str(), us, bytes);
  }
}

void SelectiveScan() {
  constexpr int64_t kChannels = 4096, kStates = 16, kRows = 131072;
  const FieldView state = Records(kChannels * kStates);
  const float* rates = Zeros(kChannels * kStates);
  const uint16_t* x = Zeros<uint16_t>(kRows * kChannels);
  const float *rows = Zeros(kRows * kChannels), *kq = Zeros(kRows * 2 * kStates);
  float* out = Zeros(kRows * kChannels);
  for (const auto& [sequences, count] : kStreams) {
    const Steps steps(sequences, count);
    const double us = Time(steps.rounds(), [&](cudaStream_t stream, int round) {
      SelectiveScanCuda(steps.At(stream, round), {.channels = kChannels,
                                                  .states = kStates,
                                                  .x = x,
                                                  .x_type = DType::kBF16,
                                                  .step = rows,
                                                  .k = kq,
                                                  .q = kq + kStates,
                                                  .row_stride = 2 * kStates,
                                                  .rates = rates,
                                                  .state = state,
                                                  .out = out});
    });
    const double bytes = 4.0 * sequences * 2 * kChannels * kStates +
                         1.0 * sequences * count * (10 * kChannels + 8 * kStates);
    Line(Name("selective_scan", "4096 x 16", sequences, count).c_str(), us, bytes);
  }
}

struct DecayShape {
  const char* name;
  DecayScanShape shape;
  bool channel_decay;
};

void DecayScan(const DecayShape& d) {
  constexpr int64_t kRows = 4096;
  const DecayScanShape& s = d.shape;
  const int64_t size = s.states * s.key_dim * s.value_dim, outputs = s.states * s.value_dim;
  const int64_t keys = s.key_heads * s.key_dim;
  const int64_t decays = s.states * (d.channel_decay ? s.key_dim : 1);
  const FieldView state = Records(size);
  const float* qk = Zeros(kRows * 2 * keys);
  const float* v = Zeros(kRows * outputs);
  const float* decay = Zeros(kRows * decays);
  float* out = Zeros(kRows * outputs);
  for (const auto& [sequences, count] : kSteps) {
    const Steps steps(sequences, count);
    const double us = Time(steps.rounds(), [&](cudaStream_t stream, int round) {
      DecayScanCuda(steps.At(stream, round), {.shape = s,
                                              .q = qk,
                                              .k = qk + keys,
                                              .v = v,
                                              .query_stride = 2 * keys,
                                              .key_stride = 2 * keys,
                                              .value_stride = outputs,
                                              .decay = decay,
                                              .channel_decay = d.channel_decay,
                                              .state = state,
                                              .out = out});
    });
    const double bytes = 4.0 * sequences * (2 * size + count * (2 * keys + 2 * outputs + decays));
    Line(Name("decay_scan", d.name, sequences, count).c_str(), us, bytes);
  }
  Check(cudaFree(state.base));
}

}  // namespace
}  // namespace eddy::bench

int main() {
  eddy::bench::Kalman(2048);
  eddy::bench::Kalman(512);
  eddy::bench::ShortConv();
  eddy::bench::SelectiveScan();
  // Mamba2 of 2048 channels; GLA of 4 heads at half and full width.
  eddy::bench::DecayScan(
      {.name = "64 x 128 x 64",
       .shape = {.states = 64, .key_heads = 1, .query_heads = 1, .key_dim = 128, .value_dim = 64},
       .channel_decay = false});
  eddy::bench::DecayScan(
      {.name = "4 x 256 x 512 vector",
       .shape = {.states = 4, .key_heads = 4, .query_heads = 4, .key_dim = 256, .value_dim = 512},
       .channel_decay = true});
}
