#include "server/text/prefix_trie.h"

#include "base/check.h"

namespace eddy {

void PrefixTrie::Add(std::string_view key, int32_t value) {
  EDDY_CHECK(!key.empty());
  first_[static_cast<uint8_t>(key[0])] = true;
  uint32_t node = 0;
  for (const char c : key) {
    const auto [edge, is_new] = next_.try_emplace(Edge(node, c), nodes_);
    if (is_new) ++nodes_;
    node = edge->second;
  }
  values_.try_emplace(node, value);
}

std::optional<PrefixTrie::Found> PrefixTrie::Longest(std::string_view text, size_t at) const {
  if (at >= text.size() || !first_[static_cast<uint8_t>(text[at])]) return std::nullopt;
  std::optional<Found> found;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge = next_.find(Edge(node, text[i]));
    if (edge == next_.end()) break;
    node = edge->second;
    if (const auto value = values_.find(node); value != values_.end()) {
      found = Found{.value = value->second, .size = i + 1 - at};
    }
  }
  return found;
}

}  // namespace eddy
