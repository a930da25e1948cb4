// Decoding steps that the device has recorded: one for each bucket of sequences.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/device.h"

namespace eddy {

// A step in which all sequences have one row costs more to enqueue than to run when they are few.
// So it is recorded once for each of a few numbers of sequences, and run again with other contents
// of the same buffers; the places that are left over belong to nobody (kNoSlot). Since no kernel
// makes a row depend on how many there are, a recorded step gives the same bits as any other.
// Engine thread only, and loading before that. The device outlives it.
class RecordedSteps {
 public:
  RecordedSteps() = default;
  // Records `enqueue(bucket)` for all buckets up to `most`. `fill` puts a step of nobody into the
  // host's buffers; such a step is run once before, so that nothing is loaded or chosen while the
  // device records.
  RecordedSteps(Device* device, int most, const std::function<void(int bucket)>& fill,
                const std::function<void(int bucket)>& enqueue);

  // The least bucket that holds so many sequences; 0 if none does.
  int BucketFor(int sequences) const;
  // Enqueues what was recorded. REQUIRES: BucketFor returned it.
  void Run(int bucket);

 private:
  std::vector<int> buckets_;  // ascending
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace eddy
