// Sequences of random length with their pages on the GPU, for tests of the attention rule: whatever
// was not written, or may no longer be read, is NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/rules/attention/attention_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"

namespace eddy::cuda_test {

struct AttentionCase {
  AttentionShape shape = {};
  DType type = DType::kF32;
  int64_t window = 0;
  double theta = 10000;
  int64_t rows_per_page = 16;
  int64_t most_rows = 1;  // of a sequence in one step
  bool biased = false;
  int64_t page_gap = 0;  // bytes behind the fields of a page
  AttentionTiles tiles = AttentionTiles::kWarpgroups;
  std::string Name() const;
};

// What one sequence brings, and what biases all of them meet: q [T, H, d], k and v [T, HKV, d].
struct AttentionRows {
  AttentionRows(const AttentionCase& of, int64_t count, Random& random, float size);
  int64_t rows;
  Floats q, k, v;
};
struct AttentionBiases {
  AttentionBiases(const AttentionCase& of, Random& random);
  Floats q, k, v;
};

// Output of row t in float64, of keys and values rounded to the case's type.
class AttentionTruth {
 public:
  AttentionTruth(const AttentionCase& of, const AttentionRows& rows, const AttentionBiases& biases);
  std::vector<double> Row(int64_t t) const;  // [H, d]

 private:
  std::vector<double> Turned(const float* x, const float* bias, int64_t position) const;
  const AttentionCase& of_;
  const AttentionRows& rows_;
  const AttentionBiases& biases_;
  std::vector<std::vector<double>> keys_, values_;  // [T * HKV]
};

// Some sequences in pages at random places, fed step by step.
class PagedAttention {
 public:
  PagedAttention(const AttentionCase& of, std::vector<AttentionRows> sequences,
                 const AttentionBiases& biases, Random& random);
  // One step: rows of the sequences that the plan names, appended to their outs. Before it, all
  // positions that no later row reads become NaN.
  void Feed(const Plan& plan);
  const Floats& out(size_t sequence) const { return outs_[sequence]; }  // [rows so far, H, d]
  bool NobodysPageIsUntouched() const;

 private:
  void Poison(size_t sequence);
  std::vector<int32_t> Lines(const Plan& plan) const;

  const AttentionCase of_;
  const std::vector<AttentionRows> sequences_;
  const std::vector<double> frequencies_;
  int64_t max_pages_ = 0, field_bytes_ = 0, stride_ = 0;
  std::vector<std::vector<int32_t>> pages_;  // of each sequence
  std::vector<int64_t> done_, poisoned_;     // positions
  std::vector<Floats> outs_;
  DeviceBytes pool_, device_frequencies_, q_bias_, k_bias_, v_bias_;
  std::unique_ptr<DeviceBytes> scratch_;  // grows; a step finds there what the last one left
};

}  // namespace eddy::cuda_test
