// Proves the state machine of one client's mailbox: one write at a time, what arrives meanwhile
// goes out in one message, exactly one finish, and never beside a write. The last test lets three
// threads at it in random order and counts; run it under ThreadSanitizer.
#include "server/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace eddy {
namespace {

constexpr int64_t kBytesMax = 1000;

absl::Time At(int seconds) { return absl::FromUnixSeconds(seconds); }

Output Text(const std::string& text) { return {.num_tokens = 1, .text = text}; }

TEST(Mailbox, GivesTheFirstOutputToBeWrittenAtOnce) {
  Mailbox mailbox(kBytesMax);
  Mailbox::Todo todo = mailbox.Put(Text("a"), At(0));
  ASSERT_TRUE(todo.write.has_value());
  EXPECT_EQ(todo.write->text, "a");
  EXPECT_FALSE(todo.finish.has_value());
}

TEST(Mailbox, JoinsWhatArrivesWhileAWriteIsUnderWay) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  EXPECT_FALSE(mailbox.Put(Text("b"), At(1)).write.has_value());
  EXPECT_FALSE(mailbox.Put(Text("c"), At(2)).write.has_value());
  EXPECT_EQ(mailbox.waiting_bytes(), 2);
  Mailbox::Todo todo = mailbox.Written(true, At(3));
  ASSERT_TRUE(todo.write.has_value());
  EXPECT_EQ(todo.write->text, "bc");
  EXPECT_EQ(todo.write->num_tokens, 2);
  EXPECT_EQ(mailbox.waiting_bytes(), 0);
}

TEST(Mailbox, FinishesAtOnceWhenNothingIsBeingWritten) {
  Mailbox mailbox(kBytesMax);
  Mailbox::Todo todo = mailbox.End({.error = Cancelled()});
  ASSERT_TRUE(todo.finish.has_value());
  EXPECT_EQ(todo.finish->error->reason, "CANCELLED");
}

TEST(Mailbox, WritesWhatWaitsBeforeItFinishesAndFinishesOnce) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  mailbox.Put(Text("b"), At(0));
  EXPECT_FALSE(mailbox.End({}).finish.has_value());
  Mailbox::Todo second = mailbox.Written(true, At(1));
  EXPECT_EQ(second.write->text, "b");
  EXPECT_FALSE(second.finish.has_value());
  Mailbox::Todo last = mailbox.Written(true, At(2));
  EXPECT_FALSE(last.write.has_value());
  EXPECT_TRUE(last.finish.has_value());
}

TEST(Mailbox, DropsWhatWaitsWhenTheClientIsGone) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  mailbox.Put(Text("b"), At(0));
  Mailbox::Todo todo = mailbox.Written(false, At(1));
  EXPECT_FALSE(todo.write.has_value());
  EXPECT_FALSE(todo.finish.has_value());
  EXPECT_FALSE(mailbox.Put(Text("c"), At(2)).write.has_value());
  EXPECT_TRUE(mailbox.End({}).finish.has_value());
}

TEST(Mailbox, OverflowsOnceWhenMoreWaitsThanMay) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  EXPECT_FALSE(mailbox.Put(Text(std::string(kBytesMax, 'b')), At(1)).overflow);
  EXPECT_TRUE(mailbox.Put(Text("c"), At(1)).overflow);
  EXPECT_EQ(mailbox.waiting_bytes(), 0);
  EXPECT_FALSE(mailbox.Put(Text("d"), At(1)).overflow);
  EXPECT_FALSE(mailbox.End({.error = SlowReader(kBytesMax)}).finish.has_value());
  EXPECT_TRUE(mailbox.Written(true, At(2)).finish.has_value());
}

TEST(Mailbox, TakesAnOutputLargerThanTheBoundIfItCanBeWrittenAtOnce) {
  Mailbox mailbox(kBytesMax);
  Mailbox::Todo todo = mailbox.Put(Text(std::string(2 * kBytesMax, 'a')), At(0));
  EXPECT_FALSE(todo.overflow);
  EXPECT_TRUE(todo.write.has_value());
}

TEST(Mailbox, IsCutOnlyWhenAWriteHasBeenUnderWayForLong) {
  Mailbox mailbox(kBytesMax);
  EXPECT_FALSE(mailbox.BeginCut(At(100)));
  mailbox.Put(Text("a"), At(10));
  EXPECT_FALSE(mailbox.BeginCut(At(9)));
  EXPECT_TRUE(mailbox.BeginCut(At(10)));
  EXPECT_FALSE(mailbox.BeginCut(At(10)));  // it is being cut already
}

TEST(Mailbox, WithholdsTheFinishWhileItIsBeingCut) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  ASSERT_TRUE(mailbox.BeginCut(At(0)));
  EXPECT_FALSE(mailbox.End({}).finish.has_value());
  EXPECT_FALSE(mailbox.Written(false, At(1)).finish.has_value());
  EXPECT_TRUE(mailbox.EndCut().finish.has_value());
}

TEST(Mailbox, FinishesAfterACutWhenTheWriteComesBack) {
  Mailbox mailbox(kBytesMax);
  mailbox.Put(Text("a"), At(0));
  ASSERT_TRUE(mailbox.BeginCut(At(0)));
  mailbox.End({});
  EXPECT_FALSE(mailbox.EndCut().finish.has_value());
  EXPECT_TRUE(mailbox.Written(false, At(1)).finish.has_value());
}

// Plays gRPC: `writes` says whether a write is under way; whoever gets a write to do hands it to
// the writer thread.
struct Story {
  Mailbox mailbox{1 << 20};
  std::atomic<int> under_way{0};
  std::atomic<int> finishes{0};
  std::atomic<bool> wrong{false};
  std::atomic<int> tokens{0};

  void Do(Mailbox::Todo todo) {
    if (todo.write.has_value()) {
      tokens += todo.write->num_tokens;
      if (under_way.fetch_add(1) != 0 || finishes > 0) wrong = true;
    } else if (todo.finish.has_value()) {
      if (under_way != 0 || finishes.fetch_add(1) != 0) wrong = true;
    }
  }
};

TEST(Mailbox, NeverWritesTwiceAtATimeNorFinishesBesideAWrite) {
  const unsigned first_seed = std::random_device{}();
  for (unsigned round = 0; round < 300; ++round) {
    const unsigned seed = first_seed + round;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const int tokens = static_cast<int>(rng() % 200);
    const bool cut = rng() % 2 == 0;
    Story story;
    std::thread delivery([&] {
      for (int i = 0; i < tokens; ++i) story.Do(story.mailbox.Put(Text("x"), At(i)));
      story.Do(story.mailbox.End({}));
    });
    std::thread grpc([&] {
      while (story.finishes == 0) {
        if (story.under_way == 0) {
          std::this_thread::yield();
          continue;
        }
        --story.under_way;
        story.Do(story.mailbox.Written(true, At(0)));
      }
    });
    std::thread housekeeper([&] {
      if (cut && story.mailbox.BeginCut(absl::InfiniteFuture())) {
        story.Do(story.mailbox.EndCut());
      }
    });
    delivery.join();
    grpc.join();
    housekeeper.join();
    EXPECT_FALSE(story.wrong);
    EXPECT_EQ(story.finishes, 1);
    if (!cut) {
      EXPECT_EQ(story.tokens, tokens);
    }
  }
}

}  // namespace
}  // namespace eddy
