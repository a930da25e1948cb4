// Steps of random sizes and company for tests of layer "delta" on the GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy {

using Feed = testing::LayerRig::Feed;
using Random = std::mt19937;

inline constexpr int kSequences = 5, kRows = 100;

template <typename T>
T Draw(Random& random, const std::vector<T>& from) {
  return from[std::uniform_int_distribution<size_t>(0, from.size() - 1)(random)];
}

// Feeds of one step, and the sequences they are of; -1 for padding.
struct Plan {
  std::vector<Feed> feeds = {};
  std::vector<int> sequences = {};
};

// Steps of random sizes and company that feed each sequence its rows.
class Plans {
 public:
  Plans(int64_t d_model, uint32_t seed)
      : d_model_(d_model), random_(seed), done_(kSequences, 0), padding_(4 * d_model, 0.5f) {
    for (uint32_t i = 0; i < kSequences; ++i) {
      rows_.push_back(testing::RandomRows(kRows, d_model, seed + 1 + i));
    }
  }
  // False when all rows have been fed.
  bool Next(Plan* plan) {
    *plan = {};
    if (done_ == std::vector<int>(kSequences, kRows)) return false;
    std::vector<std::pair<size_t, int>> many;
    for (size_t i = 0; i < kSequences; ++i) {
      const int left = kRows - done_[i];
      if (left == 0 || Draw<int>(random_, {0, 1, 2}) == 0) continue;
      const int count = std::min(left, Draw<int>(random_, {1, 1, 1, 2, 3, 5, 16, 17, 64, 65}));
      // A single row may stand among the others too.
      if (count == 1 && Draw<int>(random_, {0, 1, 2, 3}) > 0) {
        Pad(plan, 1);
        Add(plan, i, 1);
      } else {
        many.emplace_back(i, count);
      }
    }
    for (const auto& [i, count] : many) {
      Pad(plan, Draw<int>(random_, {1, 4}));
      Add(plan, i, count);
    }
    return true;
  }
  // Sequence i lives in this slot.
  static int32_t SlotOf(size_t i) { return static_cast<int32_t>(1 + (i * 3 + 1) % kSequences); }

 private:
  void Add(Plan* plan, size_t i, int count) {
    const auto begin = rows_[i].begin() + done_[i] * d_model_;
    plan->feeds.push_back({.slot = SlotOf(i), .x = {begin, begin + count * d_model_}});
    plan->sequences.push_back(static_cast<int>(i));
    done_[i] += count;
  }
  void Pad(Plan* plan, int count) {
    if (Draw<int>(random_, {0, 1, 2, 3}) != 0) return;
    const auto begin = padding_.begin();
    plan->feeds.push_back({.slot = kNoSlot, .x = {begin, begin + count * d_model_}});
    plan->sequences.push_back(-1);
  }

  const int64_t d_model_;
  Random random_;
  std::vector<int> done_;
  std::vector<float> padding_;
  std::vector<std::vector<float>> rows_;  // [sequence][rows, d_model]
};

}  // namespace eddy
