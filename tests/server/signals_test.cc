// Proves that SIGTERM and SIGINT are heard whichever thread they arrive in, also one that was there
// before, in their order, and that waits end as told.
#include "server/signals.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <future>
#include <thread>

#include "absl/time/clock.h"

namespace eddy {
namespace {

using What = Signals::News::What;

TEST(Signals, HearsASignalInAThreadThatWasThereBefore) {
  // The thread waits for Signals to exist, then a signal is sent to it alone.
  std::promise<void> raise, raised;
  std::thread before([&] {
    raise.get_future().wait();
    EXPECT_EQ(pthread_kill(pthread_self(), SIGTERM), 0);
    raised.set_value();
  });
  Signals signals;
  raise.set_value();
  const Signals::News news = signals.Wait(absl::Now() + absl::Seconds(30));
  raised.get_future().wait();
  before.join();
  EXPECT_EQ(news.what, What::kSignal);
  EXPECT_EQ(news.number, SIGTERM);
}

TEST(Signals, KeepsTheOrder) {
  Signals signals;
  for (const int number : {SIGINT, SIGTERM, SIGINT}) EXPECT_EQ(raise(number), 0);
  for (const int number : {SIGINT, SIGTERM, SIGINT}) {
    EXPECT_EQ(signals.Wait(absl::InfiniteFuture()).number, number);
  }
  EXPECT_EQ(signals.Wait(absl::InfinitePast()).what, What::kTimeout);
}

TEST(Signals, EndsOneWaitPerWakeAtMost) {
  Signals signals;
  signals.Wake();
  signals.Wake();
  EXPECT_EQ(signals.Wait(absl::InfiniteFuture()).what, What::kWoken);
  EXPECT_EQ(signals.Wait(absl::InfinitePast()).what, What::kTimeout);
}

TEST(SignalsDeathTest, LeavesSignalsAsTheyWere) {
  EXPECT_EXIT(
      {
        { Signals signals; }
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace eddy
