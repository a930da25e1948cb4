// Proves that the bytes behind the slots are filled, copied and examined by the layout alone, each
// slot its own, and that step arrays say what was added: with fields that no real layer has.
#include "engine/records.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/step_buffers.h"

namespace eddy {
namespace {

// Two layers: a constant, a learned start and a transient count; then one more field.
std::vector<LayerNeeds> Layers() {
  LayerNeeds first;
  first.weights = {{.name = "start", .shape = {3, 1, 1, 1}}};
  first.state = {{.name = "count", .dtype = DType::kI32, .initial = 2, .transient = true},
                 {.name = "precision", .shape = {5, 1, 1, 1}, .initial = 1},
                 {.name = "scale", .shape = {3, 1, 1, 1}, .initial_weight = "start"},
                 {.name = "certainty",
                  .shape = {3, 1, 1, 1},
                  .initial_weight = "start",
                  .initial_is_log = true}};
  LayerNeeds second;
  second.state = {{.name = "memory", .dtype = DType::kBF16, .shape = {2, 2, 1, 1}}};
  return {first, second};
}

class RecordsTest : public ::testing::Test {
 protected:
  RecordsTest() {
    const std::vector<std::vector<TensorView>> weights = {{{.data = start_, .shape = {3, 1, 1, 1}}},
                                                          {}};
    const auto fresh = MakeFreshRecord(device_.get(), layers_, weights);
    EXPECT_TRUE(fresh.ok()) << fresh.status();
    records_ = Records::Allocate(device_.get(), layers_, /*slots=*/3, *fresh);
  }
  float* Field0(int32_t slot, size_t field) { return records_->View(0, field).at<float>(slot); }
  std::vector<std::byte> Saved(int32_t slot) {
    std::vector<std::byte> bytes(static_cast<size_t>(records_->layout().persistent_bytes()));
    records_->Save(slot, bytes);
    return bytes;
  }

  float start_[3] = {0.5f, -1, 8};
  std::unique_ptr<Device> device_ = OpenCpuDevice({.threads = 1});
  std::vector<LayerNeeds> layers_ = Layers();
  std::optional<Records> records_;
};

TEST_F(RecordsTest, FillASlotWithItsInitialValuesAndNoOther) {
  records_->Fill(2);
  Field0(2, 1)[0] = 7;
  records_->Fill(1);
  EXPECT_EQ(records_->View(0, 0).at<int32_t>(1)[0], 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Field0(1, 1)[i], 1);
  EXPECT_EQ(std::memcmp(Field0(1, 2), start_, sizeof(start_)), 0);
  for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(Field0(1, 3)[i], std::exp(start_[i]));
  EXPECT_EQ(Field0(2, 1)[0], 7);
}

TEST_F(RecordsTest, RefuseALogarithmThatIsTooGreatForItsState) {
  start_[2] = 89;
  const std::vector<std::vector<TensorView>> weights = {{{.data = start_, .shape = {3, 1, 1, 1}}},
                                                        {}};
  const auto fresh = MakeFreshRecord(device_.get(), layers_, weights);
  EXPECT_EQ(fresh.status().message(),
            "block 0: start holds a logarithm above 88, too great for the state certainty");
}

TEST_F(RecordsTest, BringASavedRecordToAnotherSlotWithFreshTransientFields) {
  records_->Fill(1);
  Field0(1, 1)[4] = 3;
  records_->View(1, 0).at<uint16_t>(1)[3] = 0x4000;
  records_->View(0, 0).at<int32_t>(1)[0] = 9;
  const std::vector<std::byte> saved = Saved(1);
  records_->Fill(3, saved);
  EXPECT_EQ(Field0(3, 1)[4], 3);
  EXPECT_EQ(records_->View(1, 0).at<uint16_t>(3)[3], 0x4000);
  EXPECT_EQ(records_->View(0, 0).at<int32_t>(3)[0], 2);
  EXPECT_EQ(Saved(3), saved);
}

TEST_F(RecordsTest, FindTheFirstPersistentFieldThatIsNotFinite) {
  records_->Fill(1);
  EXPECT_FALSE(records_->FirstNotFinite(1)->has_value());
  records_->View(1, 0).at<uint16_t>(1)[1] = 0x7F80;  // infinity
  EXPECT_EQ((*records_->FirstNotFinite(1))->layer, 1);
  EXPECT_EQ((*records_->FirstNotFinite(1))->name, "memory");
  Field0(1, 2)[0] = NAN;
  EXPECT_EQ((*records_->FirstNotFinite(1))->layer, 0);
  EXPECT_EQ((*records_->FirstNotFinite(1))->name, "scale");
  // Any bits may stand in a count, and in what means nothing after a flush.
  records_->Fill(1);
  records_->View(0, 0).at<int32_t>(1)[0] = -1;
  EXPECT_FALSE(records_->FirstNotFinite(1)->has_value());
}

TEST_F(RecordsTest, GiveFiguresOfEachPersistentFieldAndCountWhatIsNotFinite) {
  records_->Fill(1);
  const float precision[] = {3, -1, NAN, 2, INFINITY};
  std::memcpy(Field0(1, 1), precision, sizeof(precision));
  std::fill_n(Field0(1, 3), 3, NAN);
  records_->View(1, 0).at<uint16_t>(1)[1] = 0xC000;  // -2
  const std::vector<FieldStats> stats = records_->Stats(Saved(1));
  ASSERT_EQ(stats.size(), 4u);
  EXPECT_EQ(stats[0].field, "precision");
  EXPECT_EQ(stats[0].elements, 5);
  EXPECT_EQ(stats[0].nonfinite, 2);
  EXPECT_EQ(stats[0].min, -1);
  EXPECT_EQ(stats[0].max, 3);
  EXPECT_FLOAT_EQ(stats[0].mean, 4.0f / 3);
  EXPECT_FLOAT_EQ(stats[0].rms, std::sqrt(14.0f / 3));
  EXPECT_EQ(stats[1].field, "scale");
  EXPECT_EQ(stats[1].min, -1);
  EXPECT_EQ(stats[1].max, 8);
  EXPECT_EQ(stats[2].nonfinite, 3);
  EXPECT_EQ(stats[2].min, 0);
  EXPECT_EQ(stats[2].rms, 0);
  EXPECT_EQ(stats[3].layer, 1);
  EXPECT_EQ(stats[3].min, -2);
  EXPECT_EQ(stats[3].max, 0);
  EXPECT_EQ(stats[3].rms, 1);
}

TEST_F(RecordsTest, ArePoisonedBeforeTheyBelongToSomebody) {
#ifdef NDEBUG
  GTEST_SKIP() << "debug builds only";
#endif
  for (int32_t slot : {1, 2, 3}) EXPECT_TRUE(std::isnan(Field0(slot, 1)[4]));
  EXPECT_FALSE(std::isnan(Field0(kNoSlot, 1)[4]));
  records_->Fill(2);
  records_->Fill(3);
  records_->Poison(2);
  EXPECT_TRUE(std::isnan(Field0(2, 1)[0]));
  EXPECT_EQ(Field0(3, 1)[0], 1);
  EXPECT_FALSE(std::isnan(Field0(kNoSlot, 1)[4]));
}

TEST(LayoutFingerprint, FollowsWhatGivesTheBytesTheirMeaning) {
  const std::vector<LayerNeeds> layers = Layers();
  const auto original = LayoutFingerprint(layers);
  EXPECT_EQ(LayoutFingerprint(Layers()), original);
  std::vector<LayerNeeds> other = Layers();
  other[0].state[0].transient = false;
  EXPECT_NE(LayoutFingerprint(other), original);
  other = Layers();
  other[0].state[0].shape[0] = 4;  // transient: not in a checkpoint
  EXPECT_EQ(LayoutFingerprint(other), original);
  other = Layers();
  other[1].state[0].name = "state";
  EXPECT_NE(LayoutFingerprint(other), original);
  other = Layers();
  other[1].state[0].shape = {4, 1, 1, 1};
  EXPECT_NE(LayoutFingerprint(other), original);
  other = Layers();
  other[1].state[0].dtype = DType::kF32;
  EXPECT_NE(LayoutFingerprint(other), original);
}

TEST(StepBuffers, SayWhatWasAdded) {
  const auto device = OpenCpuDevice({.threads = 1});
  auto buffers = StepBuffers::Allocate(device.get(), {.rows = 6, .sequences = 3, .pages = 4});
  ASSERT_TRUE(buffers.has_value());
  for (int i = 0; i < 2; ++i) {  // the second time over the first one's remains
    buffers->Clear(/*max_pages=*/2);
    buffers->Add(3, 10, std::vector<int32_t>{7}, std::vector<int32_t>{9, 8});
    buffers->Add(1, 0, std::vector<int32_t>{4, 5, 6}, std::vector<int32_t>{5});
    const Step step = buffers->Upload(/*single_row_sequences=*/1);
    EXPECT_EQ(step.rows, 4);
    EXPECT_EQ(step.sequences, 2);
    EXPECT_EQ(step.single_row_sequences, 1);
    EXPECT_EQ(step.max_pages, 2);
    EXPECT_EQ(std::vector<int32_t>(step.pages, step.pages + 4),
              (std::vector<int32_t>{9, 8, 5, kNoPage}));
    EXPECT_EQ(step.max_rows_per_sequence, 3);
    EXPECT_EQ(std::vector<int32_t>(step.tokens, step.tokens + 4),
              (std::vector<int32_t>{7, 4, 5, 6}));
    EXPECT_EQ(std::vector<int32_t>(step.row_start, step.row_start + 3),
              (std::vector<int32_t>{0, 1, 4}));
    EXPECT_EQ(std::vector<int32_t>(step.slots, step.slots + 2), (std::vector<int32_t>{3, 1}));
    EXPECT_EQ(std::vector<int32_t>(step.positions, step.positions + 2),
              (std::vector<int32_t>{10, 0}));
  }
  buffers->Clear(/*max_pages=*/0);
  for (int32_t slot : {1, 2, 3}) buffers->Add(slot, 5, {}, {});
  const Step flush = buffers->Upload(0);
  EXPECT_EQ(flush.pages, nullptr);
  EXPECT_EQ(flush.rows, 0);
  EXPECT_EQ(flush.sequences, 3);
  EXPECT_EQ(flush.row_start[3], 0);
}

}  // namespace
}  // namespace eddy
