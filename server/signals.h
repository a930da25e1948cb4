// Waiting for SIGTERM and SIGINT, or for something else to happen.
#pragma once

#include "absl/time/time.h"

namespace eddy {

// Takes both signals from now on, in whatever thread they arrive. Blocking them would not do: a
// library may have started threads before main, as OpenBLAS does, and one of those would get the
// signal and end the process. One per process. Wait from one thread; Wake from any.
class Signals {
 public:
  Signals();
  ~Signals();  // the signals end the process again
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // What came first. `number` is that of the signal.
  struct News {
    enum class What { kSignal, kWoken, kTimeout } what = What::kTimeout;
    int number = 0;
  };
  News Wait(absl::Time deadline);
  // Ends this or the next Wait.
  void Wake();

 private:
  int signal_fd_ = -1;  // one byte per signal, its number
  const int wake_fd_;
};

}  // namespace eddy
