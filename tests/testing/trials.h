// How often a test repeats itself with fresh random inputs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace eddy::testing {

// for (int i : Trials(40)): i = 0 .. 39. Under tools that slow everything down a hundredfold
// EDDY_TEST_SECONDS ends it once so many seconds have passed, after the first trial at the
// earliest.
class Trials {
 public:
  explicit Trials(int count) : count_(count) {}

  struct End {};
  class Iterator {
   public:
    explicit Iterator(int count) : count_(count) {
      const char* const seconds = std::getenv("EDDY_TEST_SECONDS");
      if (seconds != nullptr) seconds_ = std::atof(seconds);
    }
    int operator*() const { return at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator!=(End) const { return at_ < count_ && (at_ == 0 || InTime()); }

   private:
    bool InTime() const {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
      return seconds_ < 0 || passed.count() < seconds_;
    }

    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    const int count_;
    double seconds_ = -1;
    int at_ = 0;
  };
  Iterator begin() const { return Iterator(count_); }
  End end() const { return {}; }

 private:
  const int count_;
};

// Of `count` cases of a list as many as there is time for.
inline int InTime(int count, int in_a_hurry) {
  return std::getenv("EDDY_TEST_SECONDS") == nullptr ? count : std::min(count, in_a_hurry);
}

}  // namespace eddy::testing
