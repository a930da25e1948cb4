#include "engine/recorded_steps.h"

#include <algorithm>

#include "base/check.h"

namespace eddy {
namespace {

// Powers of two and what lies half way, so that at most a third of a step is for nobody.
std::vector<int> BucketsUpTo(int most) {
  std::vector<int> buckets;
  for (int power = 1; power < 2 * most; power *= 2) {
    buckets.push_back(power);
    if (power >= 16) buckets.push_back(power + power / 2);
  }
  std::erase_if(buckets, [&](int bucket) { return bucket >= most; });
  buckets.push_back(most);
  return buckets;
}

}  // namespace

RecordedSteps::RecordedSteps(Device* device, int most, const std::function<void(int bucket)>& fill,
                             const std::function<void(int bucket)>& enqueue)
    : buckets_(BucketsUpTo(most)) {
  for (const int bucket : buckets_) {
    fill(bucket);
    enqueue(bucket);
    // The buffers that it sends are filled anew for the next one.
    if (device->Finish()) return;  // the device remembers its error
    programs_.push_back(device->Record([enqueue, bucket] { enqueue(bucket); }));
  }
}

int RecordedSteps::BucketFor(int sequences) const {
  const auto found = std::lower_bound(buckets_.begin(), buckets_.end(), sequences);
  return found == buckets_.end() || programs_.size() < buckets_.size() ? 0 : *found;
}

void RecordedSteps::Run(int bucket) {
  const auto found = std::lower_bound(buckets_.begin(), buckets_.end(), bucket);
  EDDY_CHECK(found != buckets_.end() && *found == bucket);
  programs_[static_cast<size_t>(found - buckets_.begin())]->Run();
}

}  // namespace eddy
