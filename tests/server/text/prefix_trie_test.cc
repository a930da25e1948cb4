// Proves that the longest key is found, by comparing with a search through all keys.
#include "server/text/prefix_trie.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace eddy {
namespace {

TEST(PrefixTrie, FindsTheLongestAndKeepsTheFirstOfEquals) {
  PrefixTrie trie;
  EXPECT_TRUE(trie.empty());
  trie.Add("ab", 1);
  trie.Add("abcd", 2);
  trie.Add("ab", 3);
  ASSERT_TRUE(trie.Longest("xabcx", 1).has_value());
  EXPECT_EQ(trie.Longest("xabcx", 1)->value, 1);
  EXPECT_EQ(trie.Longest("xabcx", 1)->size, 2u);
  EXPECT_EQ(trie.Longest("xabcdx", 1)->value, 2);
  EXPECT_FALSE(trie.Longest("xabcx", 0).has_value());
  EXPECT_FALSE(trie.Longest("ab", 2).has_value());
}

TEST(PrefixTrie, EqualsASearchThroughAllKeys) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const auto random_text = [&](size_t length) {
    std::string text(length, ' ');
    for (char& c : text) c = "ab\xFF"[rng() % 3];
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    PrefixTrie trie;
    std::vector<std::string> keys;
    for (size_t i = rng() % 8; i > 0; --i) {
      keys.push_back(random_text(1 + rng() % 5));
      trie.Add(keys.back(), static_cast<int32_t>(keys.size()));
    }
    const std::string text = random_text(12);
    for (size_t at = 0; at < text.size(); ++at) {
      size_t longest = 0;
      for (const std::string& key : keys) {
        if (text.substr(at).starts_with(key)) longest = std::max(longest, key.size());
      }
      const auto found = trie.Longest(text, at);
      ASSERT_EQ(found.has_value() ? found->size : 0, longest);
    }
  }
}

}  // namespace
}  // namespace eddy
