// The laws that every layer type obeys on every device that has it. A test of a layer makes a
// LayerCase for each family of its options and calls CheckLayerLaws; what it adds itself is the
// float64 reference. Law "twin" (CUDA equals CPU) belongs to tests of the CUDA plugin.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/layer.h"
#include "kernels/state_layout.h"

namespace eddy::testing {

// Weights under the names of LayerNeeds.
using Weights = std::map<std::string, std::vector<float>>;

// One sequence run from the initial state: its outputs [rows, d_model], and its state fields, by
// name, after the last row.
struct Trace {
  std::vector<double> out;
  std::map<std::string, std::vector<double>> state = {};
  // What the layer tells of each row, if the reference can say: [rows].
  std::map<Readout, std::vector<double>> readouts = {};
};
using Reference = std::function<Trace(const LayerSpec& spec, const Weights& weights,
                                      std::span<const float> x, int64_t rows)>;

struct LayerCase {
  std::string name;
  LayerSpec spec = {};
  Reference reference = nullptr;  // float64, written from the formula
  // Moves random weights to where the options make sense. Null: they do as they are.
  std::function<void(const LayerSpec& spec, Weights& weights)> prepare = nullptr;
  // Whether a rule that gives zeros makes the layer add nothing; not so with a skip or a bias.
  bool adds_nothing_without_rule = true;
  // Of the distance from the reference, relative to max(1, greatest magnitude of the tensor). Its
  // size is that of float rounding, 6e-8, times the root of the sums' lengths and the depth of the
  // recurrence.
  double tolerance = 2e-5;
  // Rows of a sequence that the laws use: enough for a whole chunk and a ragged rest.
  int rows = 70;
  // Null: the one that the table has under spec.type.
  const LayerType* type = nullptr;
};

// Plausible weights of all that the layer asks for. `type` as in LayerCase.
Weights RandomWeights(const LayerSpec& spec, uint32_t seed, const LayerType* type = nullptr);
// To the nearest value that bfloat16 has, the even one of two; finite numbers only.
float RoundToBF16(float value);
std::vector<float> RandomRows(int64_t rows, int64_t d_model, uint32_t seed);

// A layer with its weights, rounded where the device holds them as bfloat16, and a pool of records
// in which consecutive slots lie `gap` bytes further apart than they must; likewise the pages of a
// layer that attends, of which each slot has enough for kMaxPositions. Everything outside the
// fields holds canaries.
class LayerRig {
 public:
  static constexpr int64_t kMaxPositions = 256;
  LayerRig(Device& device, const LayerSpec& spec, const Weights& weights, int32_t slots,
           int64_t gap = 0, int64_t rows_per_page = 7, const LayerType* type = nullptr);
  ~LayerRig();

  // Gives a slot the layer's initial state.
  void Fill(int32_t slot);
  void Poison(int32_t slot);  // all bytes 0xFF: every float a NaN
  // The same of a part of it: one of the fields that a record keeps or, behind them, its pages.
  void Lose(int32_t slot, int part);
  int parts() const;
  struct Feed {
    int32_t slot = 0;
    std::vector<float> x;  // [rows, d_model]
  };
  // One step; the rows' outputs, one sequence after another.
  std::vector<float> Run(const std::vector<Feed>& feeds);
  // Flushes the slot, then its persistent bytes, and behind them its keys and values.
  std::vector<std::byte> Record(int32_t slot);
  void SetRecord(int32_t slot, const std::vector<std::byte>& record);
  // What stands in a record: its fields, then keys and values.
  std::vector<float> Numbers(const std::vector<std::byte>& record) const;
  // The bytes between two slots' records, and those of the null slot; likewise of the pages.
  std::vector<std::byte> Record0AndGaps(int32_t slots);
  // From now on steps ask for read-outs; readouts() are those of the last Run, each [rows].
  void AskForReadouts() { asks_ = true; }
  const std::map<Readout, std::vector<float>>& readouts() const { return readouts_; }
  std::vector<float> StateField(int32_t slot, const std::string& name);
  // Heap allocations of the last Run's Forward.
  int64_t allocations() const { return allocations_; }
  bool stateless() const { return needs_.state.empty() && needs_.kv.empty(); }

 private:
  std::byte* At(int32_t slot) { return static_cast<std::byte*>(pool_.data()) + slot * stride_; }
  std::byte* PageAt(int32_t page) {
    return static_cast<std::byte*>(page_pool_.data()) + page * page_stride_;
  }
  // The `index`th page of a slot: those of all slots lie in turns. kNoPage for the null slot.
  int32_t PageOf(int32_t slot, int64_t index) const {
    return slot == kNoSlot ? kNoPage : static_cast<int32_t>(1 + index * slots_ + slot - 1);
  }
  int64_t pages_per_slot() const { return (kMaxPositions + rows_per_page_ - 1) / rows_per_page_; }
  void MakePages();
  void PoisonPages(int32_t slot);
  void Reserve(int64_t rows);
  // Calls copy(bytes in a page, how many) for each token of each kv field of the slot, in order.
  template <typename Copy>
  void ForEachToken(int32_t slot, int64_t positions, Copy copy);

  Device& device_;
  const LayerSpec spec_;
  const LayerType& type_;
  const LayerNeeds needs_;
  const StateLayout layout_;
  const int32_t slots_;
  const int64_t rows_per_page_;
  int64_t stride_ = 0;
  int64_t page_bytes_ = 0, page_stride_ = 0;
  int64_t token_bytes_ = 0;               // of all kv fields
  std::vector<int64_t> kv_offsets_;       // in a page
  std::map<int32_t, int64_t> positions_;  // of each slot
  std::vector<std::byte> fresh_;          // a record with the initial state
  std::vector<TensorView> weights_;
  Buffer weight_buffer_, pool_, page_pool_, scratch_, x_, arrays_, readout_buffer_;
  bool asks_ = false;
  std::map<Readout, std::vector<float>> readouts_;
  std::unique_ptr<Layer> layer_;
  int64_t allocations_ = 0;
};

// Golden, chunking, company, padding, stride, fresh, lost, record, quiet, and that read-outs change
// nothing else. Failures name case and seed.
void CheckLayerLaws(Device& device, const LayerCase& test, uint32_t seed);

// Stride, fresh, lost and record alone, which need no reference and hold to the bit whatever is
// rounded. The tolerance is that of steps with pages of another size.
void CheckLayerBits(Device& device, const LayerCase& test, uint32_t seed);

// Fails the test where |a - b| exceeds tolerance * max(1, max |b|).
void ExpectClose(std::span<const float> a, std::span<const double> b, double tolerance,
                 const std::string& what);

// A fresh seed each run, printed, unless EDDY_TEST_SEED is set.
uint32_t TestSeed();

}  // namespace eddy::testing
