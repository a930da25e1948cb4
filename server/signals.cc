#include "server/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"
#include "base/check.h"

namespace eddy {
namespace {

constexpr int kTaken[] = {SIGTERM, SIGINT};

// Where the handler writes; -1: there is no Signals. A handler may touch nothing but this.
std::atomic<int> handler_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void Handle(int number) {
  const int saved_errno = errno;
  const char byte = static_cast<char>(number);
  // Fails only if thousands of signals wait already.
  [[maybe_unused]] const ssize_t written = write(handler_fd.load(), &byte, 1);
  errno = saved_errno;
}

void SetHandler(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int number : kTaken) EDDY_CHECK(sigaction(number, &action, nullptr) == 0);
}

// Rounded up, so that a wait does not end just before its deadline; an hour at most.
int MillisecondsUntil(absl::Time deadline) {
  const absl::Duration left =
      std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999)));
}

}  // namespace

Signals::Signals() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  int ends[2];
  EDDY_CHECK(wake_fd_ >= 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  signal_fd_ = ends[0];
  EDDY_CHECK(handler_fd.exchange(ends[1]) == -1);
  SetHandler(Handle);
}

Signals::~Signals() {
  SetHandler(SIG_DFL);
  close(handler_fd.exchange(-1));
  close(signal_fd_);
  close(wake_fd_);
}

Signals::News Signals::Wait(absl::Time deadline) {
  while (true) {
    pollfd fds[] = {{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                    {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    poll(fds, 2, MillisecondsUntil(deadline));
    unsigned char number = 0;
    if (read(signal_fd_, &number, 1) == 1) {
      return {.what = News::What::kSignal, .number = number};
    }
    uint64_t count = 0;
    if (read(wake_fd_, &count, sizeof(count)) == sizeof(count)) {
      return {.what = News::What::kWoken};
    }
    if (absl::Now() >= deadline) return {.what = News::What::kTimeout};
  }
}

void Signals::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the wait ends anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

}  // namespace eddy
