// Runs plans with a model on a device.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/kv_pages.h"
#include "engine/model.h"
#include "engine/readouts.h"
#include "engine/recorded_steps.h"
#include "engine/records.h"
#include "engine/step_buffers.h"

namespace eddy {

// A step is: slots are filled, done records flushed and saved, rows fed, and then head and sampler
// run over the rows whose logits somebody wants, a tile at a time, so that the logits take little
// memory whatever is scored. Engine thread only. The device outlives it.
class DeviceExecutor : public Executor {
 public:
  // What clients call a block of the model.
  struct BlockName {
    int layer = 0;  // of the model; a mixer and the MLP after it share one
    std::string type = {};
  };

  struct Parts {
    Device* device = nullptr;
    Model model;
    Records records;
    KvPages kv;
    StepBuffers steps;
    int logit_rows = 0;  // DeviceTraits
    Buffer logits = {};  // [logit_rows, vocab] fp32
    Readouts readouts;
    std::vector<BlockName> blocks = {};
    int64_t vocab = 0;
    int pages_per_sequence = 0;  // most pages that a sequence has; 0 without attention layers
    uint64_t model_hash = 0;     // of the checkpoints that it makes and takes
  };
  explicit DeviceExecutor(Parts parts) : parts_(std::move(parts)) {}

  // Records the decoding steps of up to so many sequences, to be run again instead of enqueued
  // anew. While loading.
  void RecordSteps(int most_sequences);

  absl::StatusOr<StepResult> Run(const BatchPlan& plan) override;

 private:
  // A row of the step whose logits are wanted, and what for.
  struct Wanted {
    enum Use { kScored, kSampled, kNext };
    size_t entry = 0;
    Use use = kSampled;
    int64_t position = 0;  // of the token in the row
  };

  void Fill(const Sequence& sequence);
  std::shared_ptr<Checkpoint> Copy(const Sequence& sequence);
  std::vector<FieldStats> Stats(std::span<const std::byte> record) const;
  absl::Status Save(const std::vector<Sequence*>& done, StepResult* result);
  absl::Status Feed(const BatchPlan& plan, StepResult* result);
  // How many sequences a recorded step must have to do for the plan; 0: it cannot be recorded.
  int BucketFor(const BatchPlan& plan);
  void EnqueueDecodingStep(int bucket);
  void WantRowsOf(const BatchPlan::Entry& entry, size_t index, int first_row);
  void Want(int row, const Wanted& wanted, const SampleRow& sample);
  // Head and sampler over what is wanted of the step. Returns when the device is done.
  absl::Status RunHead(TensorView x);
  absl::Status Report(const BatchPlan& plan, StepResult* result);
  absl::StatusOr<NotFinite> Diagnose(const BatchPlan::Entry& entry, int64_t position);
  absl::Status Finish();  // waits for the device

  Parts parts_;
  RecordedSteps recorded_;
  // What the step wants of head and sampler, one entry each per row; kept to be used again.
  std::vector<int32_t> rows_;
  std::vector<Wanted> wanted_;
  std::vector<SampleRow> samples_;
  std::vector<SampleResult> results_;
  bool asks_ = false;  // one of these rows is to be reported with what the layers tell of it
};

}  // namespace eddy
