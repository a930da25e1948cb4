// Proves that a thread has the name it gave itself, cut to what the system keeps.
#include "base/thread_name.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace eddy {
namespace {

// The name of a thread that names itself `name`.
std::string NameAfter(std::string_view name) {
  std::string read(32, '\0');
  std::thread([&] {
    NameThisThread(name);
    EXPECT_EQ(pthread_getname_np(pthread_self(), read.data(), read.size()), 0);
  }).join();
  return read.c_str();
}

TEST(ThreadName, IsWhatTheThreadCalledItself) { EXPECT_EQ(NameAfter("delivery0"), "delivery0"); }

TEST(ThreadName, KeepsTheFirstFifteenBytes) {
  EXPECT_EQ(NameAfter("0123456789abcdef"), "0123456789abcde");
}

}  // namespace
}  // namespace eddy
