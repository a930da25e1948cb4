// Finds the longest of some strings at a place in a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace eddy {

// A trie over bytes. After the last Add any thread may search.
class PrefixTrie {
 public:
  struct Found {
    int32_t value = 0;
    size_t size = 0;  // bytes
  };
  // Of equal keys the first counts. REQUIRES: `key` is not empty.
  void Add(std::string_view key, int32_t value);
  // The longest key that text[at, ...) begins with. O(length of the longest key).
  std::optional<Found> Longest(std::string_view text, size_t at) const;
  bool empty() const { return values_.empty(); }

 private:
  static uint64_t Edge(uint32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
  }
  std::array<bool, 256> first_ = {};  // the bytes that keys begin with
  uint32_t nodes_ = 1;                // node 0 is the root
  absl::flat_hash_map<uint64_t, uint32_t> next_;
  absl::flat_hash_map<uint32_t, int32_t> values_;
};

}  // namespace eddy
