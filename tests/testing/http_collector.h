// An HTTP server on a loopback port, as small as a collector of traces in a test may be: takes one
// request at a time and answers as the test says.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"

namespace eddy {

struct CollectorAnswer {
  int status = 200;
  std::string body = "{}";
  std::string headers = {};  // each with its \r\n
  bool silent = false;       // no answer ever; the connection stays open
  bool hang_up = false;      // no answer, and the connection is closed
};

struct CollectorRequest {
  std::string head = {};  // first line and headers
  std::string body = {};
};

// Thread-safe.
class HttpCollector {
 public:
  using Answer = CollectorAnswer;
  using Request = CollectorRequest;
  // Called for each request, with its number from 0 on, on the server's thread.
  using Reaction = std::function<Answer(int number)>;

  explicit HttpCollector(Reaction reaction = [](int) { return Answer(); })
      : reaction_(std::move(reaction)) {
    listening_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EDDY_CHECK(bind(listening_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    EDDY_CHECK(listen(listening_, 16) == 0);
    EDDY_CHECK(getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    EDDY_CHECK(pipe2(wake_, O_CLOEXEC) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~HttpCollector() {
    EDDY_CHECK(write(wake_[1], "x", 1) == 1);
    thread_.join();
    for (const int fd : connections_) close(fd);
    for (const int fd : {listening_, wake_[0], wake_[1]}) close(fd);
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }
  // Waits until so many requests have come in all; a minute at most.
  void Await(size_t number) {
    MutexLock lock(&mu_);
    const absl::Time late = absl::Now() + absl::Minutes(1);
    while (requests_.size() < number && absl::Now() < late) {
      news_.WaitFor(&mu_, late - absl::Now());
    }
    EXPECT_GE(requests_.size(), number);
  }
  std::vector<Request> requests() {
    MutexLock lock(&mu_);
    return requests_;
  }
  int connections() {
    MutexLock lock(&mu_);
    return accepted_;
  }

 private:
  void Run() {
    while (true) {
      std::vector<pollfd> all = {{.fd = wake_[0], .events = POLLIN, .revents = 0},
                                 {.fd = listening_, .events = POLLIN, .revents = 0}};
      for (const int fd : connections_) all.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      EDDY_CHECK(poll(all.data(), all.size(), -1) > 0);
      if (all[0].revents != 0) return;
      if (all[1].revents != 0) Accept();
      for (size_t i = 2; i < all.size(); ++i) {
        if (all[i].revents != 0) Serve(all[i].fd);
      }
    }
  }
  void Accept() {
    connections_.push_back(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC));
    MutexLock lock(&mu_);
    ++accepted_;
  }
  void Drop(int fd) {
    close(fd);
    std::erase(connections_, fd);
  }
  // Reads a whole request; false: the other side is gone.
  static bool Read(int fd, Request* request) {
    std::string text;
    for (char bytes[1 << 16];;) {
      const size_t end = text.find("\r\n\r\n");
      if (end != std::string::npos) {
        const std::string head = text.substr(0, end + 2);
        const size_t length = absl::AsciiStrToLower(head).find("content-length: ");
        const size_t size =
            length == std::string::npos ? 0 : std::strtoul(head.c_str() + length + 16, nullptr, 10);
        if (text.size() >= end + 4 + size) {
          *request = {.head = head, .body = text.substr(end + 4, size)};
          return true;
        }
      }
      const ssize_t count = read(fd, bytes, sizeof(bytes));
      if (count <= 0) return false;
      text.append(bytes, static_cast<size_t>(count));
    }
  }
  void Serve(int fd) {
    Request request;
    if (!Read(fd, &request)) return Drop(fd);
    int number = 0;
    {
      MutexLock lock(&mu_);
      number = static_cast<int>(requests_.size());
      requests_.push_back(std::move(request));
      news_.NotifyAll();
    }
    const Answer answer = reaction_(number);
    if (answer.hang_up) return Drop(fd);
    if (answer.silent) return;
    const std::string text = absl::StrCat(
        "HTTP/1.1 ", answer.status, " x\r\nContent-Type: application/json\r\n",
        "Content-Length: ", answer.body.size(), "\r\n", answer.headers, "\r\n", answer.body);
    if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) Drop(fd);
  }

  const Reaction reaction_;
  int listening_ = -1, port_ = 0;
  int wake_[2] = {};
  std::vector<int> connections_;  // the thread's
  Mutex mu_;
  CondVar news_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  int accepted_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace eddy
