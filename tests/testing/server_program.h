// The program eddy-server under test: started with flags, asked by signals, read by its log. Needs
// EDDY_SERVER_BINARY, its path, of the build; where it was copied elsewhere, the environment's
// EDDY_TEST_SERVER_BINARY says so. Its device is EDDY_TEST_DEVICE, if that is set and no flag says
// another.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "tests/engine/model_files.h"

namespace eddy {

class ServerProgram {
 public:
  explicit ServerProgram(std::vector<std::string> arguments) {
    const char* const elsewhere = std::getenv("EDDY_TEST_SERVER_BINARY");
    const std::string binary = elsewhere == nullptr ? EDDY_SERVER_BINARY : elsewhere;
    arguments.insert(arguments.begin(), binary);
    arguments.push_back(absl::StrCat("--port_file=", dir_ / "ports"));
    const char* const device = std::getenv("EDDY_TEST_DEVICE");
    const auto says_device = [](const std::string& flag) {
      return flag.rfind("--device=", 0) == 0;
    };
    if (device != nullptr && std::none_of(arguments.begin(), arguments.end(), says_device)) {
      arguments.push_back(absl::StrCat("--device=", device));
    }
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = dir_ / "log";
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EDDY_CHECK(posix_spawn(&pid_, binary.c_str(), &files, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~ServerProgram() {
    if (!ended_) Send(SIGKILL), Await();
  }

  void Send(int signal) { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // The exit status, or 128 + n if signal n ended it.
  int Await() {
    int status = 0;
    EDDY_CHECK(waitpid(pid_, &status, 0) == pid_);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits until it serves.
  nlohmann::json Ports() {
    for (const absl::Time late = absl::Now() + patience(); absl::Now() < late;) {
      std::ifstream file(dir_ / "ports");
      if (file) return nlohmann::json::parse(file);
      std::this_thread::yield();
    }
    ADD_FAILURE() << "it does not serve; its log:\n" << Log();
    return {};
  }
  std::string Log() { return ReadFile(dir_ / "log"); }
  // The lines of an event, or all lines that are no JSON if the event is empty.
  std::vector<std::string> LogLines(const std::string& event) {
    std::vector<std::string> lines;
    std::istringstream log(Log());
    for (std::string line; std::getline(log, line);) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      const std::string its = json.is_discarded() ? "" : json.value("event", "");
      if (its == event) lines.push_back(line);
    }
    return lines;
  }
  void AwaitLog(const std::string& event) {
    for (const absl::Time late = absl::Now() + patience(); absl::Now() < late;) {
      if (!LogLines(event).empty()) return;
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no " << event << " in its log:\n" << Log();
  }

 private:
  static absl::Duration patience() { return absl::Seconds(60); }

  const TempDir dir_;
  pid_t pid_ = 0;
  bool ended_ = false;
};

}  // namespace eddy
