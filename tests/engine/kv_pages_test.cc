// Proves that the bytes behind the pages lie where the layout says, each field its own, and that
// what is saved from pages of one size is the same in pages of another: with fields that no real
// layer has.
#include "engine/kv_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace eddy {
namespace {

// Two layers that attend, one that does not between them. A token takes 3 * 2 * 4 + 5 * 4 + 2 * 2
// bytes.
std::vector<LayerNeeds> Layers(int64_t first_window, int64_t last_window) {
  std::vector<LayerNeeds> layers(3);
  layers[0].kv = {{.name = "a", .shape = {3, 2, 1, 1}}, {.name = "b", .shape = {5, 1, 1, 1}}};
  layers[0].kv_window = first_window;
  layers[2].kv = {{.name = "c", .dtype = DType::kBF16, .shape = {2, 1, 1, 1}}};
  layers[2].kv_window = last_window;
  return layers;
}

class KvPagesTest : public ::testing::Test {
 protected:
  KvPages Make(int rows_per_page, int64_t window, int pages) {
    return *KvPages::Allocate(device_.get(), KvLayout(Layers(window, window), rows_per_page),
                              pages);
  }
  // Writes a number that tells field and position into all fields of position t.
  static void Write(KvPages& kv, const std::vector<int32_t>& lease, int64_t t) {
    const int64_t rows = kv.layout().rows_per_page();
    const int32_t page = lease[static_cast<size_t>(t / rows) % lease.size()];
    for (int i = 0; i < 6; ++i) {
      kv.View(0, 0).at<float>(page)[t % rows * 6 + i] = static_cast<float>(1000 * t + i);
    }
    for (int i = 0; i < 5; ++i) {
      kv.View(0, 1).at<float>(page)[t % rows * 5 + i] = static_cast<float>(1000 * t + 10 + i);
    }
    for (int i = 0; i < 2; ++i) {
      kv.View(2, 0).at<uint16_t>(page)[t % rows * 2 + i] = static_cast<uint16_t>(10 * t + i);
    }
  }
  static std::vector<std::byte> Saved(KvPages& kv, const std::vector<int32_t>& lease,
                                      int64_t position) {
    std::vector<std::byte> bytes(static_cast<size_t>(kv.layout().checkpoint_bytes(position)));
    kv.Save(lease, position, bytes);
    return bytes;
  }

  std::unique_ptr<Device> device_ = OpenCpuDevice({.threads = 1});
};

TEST_F(KvPagesTest, LayoutCountsTokensWithoutAndPagesWithAlignment) {
  const KvLayout layout(Layers(0, 0), 16);
  EXPECT_EQ(layout.bytes_per_token(), 48);
  EXPECT_EQ(layout.page_bytes(), 512 + 512 + 256);  // 384, 320 and 64 on multiples of 256
  EXPECT_EQ(layout.offset(2, 0), 1024);
  EXPECT_EQ(KvLayout(std::vector<LayerNeeds>(4), 16).page_bytes(), 0);
}

TEST_F(KvPagesTest, OneLayerThatReadsAllMakesTheWindowsOfTheOthersUseless) {
  EXPECT_EQ(KvLayout(Layers(7, 9), 16).window(), 9);
  EXPECT_EQ(KvLayout(Layers(7, 0), 16).window(), 0);
  EXPECT_EQ(KvLayout(Layers(0, 7), 16).window(), 0);
  EXPECT_EQ(KvLayout(Layers(7, 9), 16).first_kept(5), 0);
  EXPECT_EQ(KvLayout(Layers(7, 9), 16).first_kept(100), 92);
  EXPECT_EQ(KvLayout(Layers(7, 0), 16).first_kept(100), 0);
}

TEST_F(KvPagesTest, WhatIsSavedFitsPagesOfAnySize) {
  KvPages four = Make(4, /*window=*/0, 9), seven = Make(7, 0, 9);
  const std::vector<int32_t> many = {3, 9, 1, 4, 7}, few = {2, 6, 5};
  for (int64_t t = 0; t < 18; ++t) Write(four, many, t);
  const auto bytes = Saved(four, many, 18);
  ASSERT_EQ(bytes.size(), 18u * 48);
  float value = 0;
  std::memcpy(&value, bytes.data() + (13 * 6 + 5) * 4, 4);  // field a, position 13, last element
  EXPECT_EQ(value, 13005);
  seven.Fill(few, 18, bytes);
  EXPECT_EQ(seven.View(0, 1).at<float>(6)[5], 8010);  // position 8: page 1, row 1
  EXPECT_EQ(Saved(seven, few, 18), bytes);
}

TEST_F(KvPagesTest, OfARingOnlyTheWindowIsSaved) {
  KvPages four = Make(4, /*window=*/6, 9), three = Make(3, 6, 9);
  const std::vector<int32_t> ring = {5, 2, 8}, other = {7, 1, 3, 4};
  for (int64_t t = 0; t < 30; ++t) Write(four, ring, t);
  const auto bytes = Saved(four, ring, 30);
  ASSERT_EQ(bytes.size(), 5u * 48);
  float value = 0;
  std::memcpy(&value, bytes.data(), 4);
  EXPECT_EQ(value, 25000);  // position 25
  three.Fill(other, 30, bytes);
  EXPECT_EQ(three.View(0, 0).at<float>(1)[2 * 6], 29000);  // 29 / 3 % 4 is 1, and 29 % 3 is 2
  EXPECT_EQ(Saved(three, other, 30), bytes);
}

TEST_F(KvPagesTest, FindTheFieldThatIsNotFinite) {
  KvPages kv = Make(4, 0, 3);
  const std::vector<int32_t> lease = {3, 1};
  for (int64_t t = 0; t < 7; ++t) Write(kv, lease, t);
  EXPECT_FALSE(kv.FirstNotFinite(lease, 7)->has_value());
  kv.View(2, 0).at<uint16_t>(1)[5] = 0x7F80;  // position 6: infinity in bfloat16
  EXPECT_FALSE(kv.FirstNotFinite(lease, 6)->has_value());
  const auto found = kv.FirstNotFinite(lease, 7);
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->layer, 2);
  EXPECT_EQ((*found)->name, "c");
}

TEST_F(KvPagesTest, ArePoisonedInDebugBuilds) {
  KvPages kv = Make(4, 0, 3);
  const std::vector<int32_t> lease = {3, 1}, others = {2};
  for (int64_t t = 0; t < 4; ++t) Write(kv, others, t);
  kv.Poison(lease);
#ifndef NDEBUG
  for (int32_t page : lease) EXPECT_TRUE(std::isnan(kv.View(0, 0).at<float>(page)[23]));
#endif
  EXPECT_EQ(kv.View(0, 0).at<float>(2)[18], 3000);
}

}  // namespace
}  // namespace eddy
