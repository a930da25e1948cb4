// Proves that merges are taken in order of rank, leftmost first, by comparing with the plain
// definition on random merges; what becomes of unknown characters; and that the work on a long word
// grows as n log n, by counting the rules' calls.
#include "server/text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace eddy {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Ids(const Bpe& bpe, const std::string& word) {
  std::vector<WordToken> tokens;
  bpe.Encode(word, &tokens);
  std::vector<int32_t> ids;
  for (const WordToken& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(Bpe, MergesByRankAndFromTheLeft) {
  Bpe bpe;
  int32_t id = 0;
  for (const char* token : {"a", "b", "aa", "ab", "aab"}) bpe.AddToken(token, id++);
  bpe.AddMerge(0, 1, {.rank = 0, .id = 3});
  bpe.AddMerge(0, 0, {.rank = 1, .id = 2});
  bpe.AddMerge(0, 3, {.rank = 2, .id = 4});
  EXPECT_THAT(Ids(bpe, "aab"), ElementsAre(4));
  EXPECT_THAT(Ids(bpe, "aaa"), ElementsAre(2, 0));
  EXPECT_THAT(Ids(bpe, ""), ElementsAre());
}

TEST(Bpe, TakesAWholeWordIfMergesAreIgnored) {
  Bpe bpe;
  int32_t id = 0;
  for (const char* token : {"a", "b", "ab"}) bpe.AddToken(token, id++);
  EXPECT_THAT(Ids(bpe, "ab"), ElementsAre(0, 1));
  bpe.SetOptions({.unknown = {}, .ignore_merges = true});
  EXPECT_THAT(Ids(bpe, "ab"), ElementsAre(2));
}

TEST(Bpe, FallsBackToBytesOrTheUnknownToken) {
  Bpe bpe;
  bpe.AddToken("a", 0);
  bpe.AddToken("<unk>", 1);
  bpe.AddToken("<0xC3>", 2);
  bpe.AddToken("<0xA9>", 3);
  bpe.SetOptions({.unknown = 1, .fuse_unknown = true, .byte_fallback = true});
  EXPECT_THAT(Ids(bpe, "a\u00e9"), ElementsAre(0, 2, 3));
  // U+00E8 has a byte that is not there.
  EXPECT_THAT(Ids(bpe, "\u00e8\u00e8a"), ElementsAre(1, 0));
  bpe.SetOptions({.unknown = 1, .fuse_unknown = false});
  EXPECT_THAT(Ids(bpe, "\u00e8\u00e8a"), ElementsAre(1, 1, 0));
  bpe.SetOptions({.unknown = {}});
  EXPECT_THAT(Ids(bpe, "\u00e8a"), ElementsAre(0));
}

TEST(Bpe, SaysWhatEachTokenCovers) {
  Bpe bpe;
  bpe.AddToken("a", 0);
  bpe.AddToken("aa", 1);
  bpe.AddMerge(0, 0, {.rank = 0, .id = 1});
  std::vector<WordToken> tokens;
  bpe.Encode("\u00e9aa\u00e9a", &tokens);
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].begin, 2u);
  EXPECT_EQ(tokens[0].end, 4u);
  EXPECT_EQ(tokens[1].begin, 6u);
}

// The definition: of all pairs of neighbours that merge, the one of lowest rank, leftmost, until
// there is none.
std::vector<int32_t> ByDefinition(std::vector<int32_t> ids,
                                  const std::vector<std::vector<Merge>>& merges) {
  while (true) {
    size_t best = ids.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge& merge = merges[ids[i]][ids[i + 1]];
      if (merge.id < 0) continue;
      if (best == ids.size() || merge.rank < merges[ids[best]][ids[best + 1]].rank) best = i;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges[ids[best]][ids[best + 1]].id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsItsDefinition) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  for (int round = 0; round < 300; ++round) {
    Bpe bpe;
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (int32_t id = 0; id < 3; ++id) bpe.AddToken(tokens[id], id);
    std::vector<std::vector<Merge>> merges(40, std::vector<Merge>(40, {.rank = 0, .id = -1}));
    for (uint32_t rank = 0; rank < 20; ++rank) {
      const auto left = static_cast<int32_t>(rng() % tokens.size());
      const auto right = static_cast<int32_t>(rng() % tokens.size());
      const std::string joined = tokens[left] + tokens[right];
      // A new pair for each token, so that no merge could be taken for another.
      if (bpe.IdOf(joined).has_value()) continue;
      const auto id = static_cast<int32_t>(tokens.size());
      tokens.push_back(joined);
      bpe.AddToken(joined, id);
      merges[left][right] = {.rank = rank, .id = id};
      bpe.AddMerge(left, right, merges[left][right]);
    }
    std::string word;
    std::vector<int32_t> ids;
    for (size_t i = rng() % 30; i > 0; --i) {
      ids.push_back(static_cast<int32_t>(rng() % 3));
      word += tokens[ids.back()];
    }
    ASSERT_EQ(Ids(bpe, word), ByDefinition(ids, merges)) << word;
  }
}

// Any two neighbours of equal id merge, and into an id of their length; counts its calls.
struct CountingRules {
  size_t calls = 0;
  std::optional<Merge> Find(const Symbol& left, const Symbol& right) {
    ++calls;
    if (left.id != right.id) return std::nullopt;
    return Merge{.rank = static_cast<uint32_t>(left.id), .id = left.id + 1};
  }
  void Offered(const Symbol&, const Symbol&, const Merge&) {}
};

TEST(Bpe, WorkOnALongWordGrowsAsNLogN) {
  constexpr size_t kLength = 1 << 20;
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < kLength; ++i) symbols.push_back({.id = 0, .begin = i, .end = i + 1});
  CountingRules rules;
  MergeSymbols(&symbols, &rules);
  EXPECT_EQ(symbols.size(), 1u);
  EXPECT_EQ(symbols[0].id, 20);
  EXPECT_LE(rules.calls, 6 * kLength);
}

}  // namespace
}  // namespace eddy
