#include "loadtest/http_get.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace eddy::loadtest {
namespace {

constexpr size_t kPageBytesMax = 16 << 20;

struct Url {
  std::string host, port, path;
};

absl::StatusOr<Url> ParseUrl(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const absl::Status fault =
      absl::InvalidArgumentError(absl::StrCat(url, ": not of the form http://host:port/path"));
  if (url.rfind(kScheme, 0) != 0) return fault;
  const size_t path = url.find('/', kScheme.size());
  const std::string authority = url.substr(kScheme.size(), path - kScheme.size());
  const size_t colon = authority.rfind(':');
  if (path == std::string::npos || colon == std::string::npos || colon == 0) return fault;
  return Url{authority.substr(0, colon), authority.substr(colon + 1), url.substr(path)};
}

// A socket that closes itself.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Failed(const std::string& url, const std::string& what) {
  return absl::UnavailableError(absl::StrCat(url, ": ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<Socket> Connect(const Url& url, const std::string& name, absl::Duration timeout) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found)) {
    return absl::UnavailableError(absl::StrCat(name, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  Socket socket(::socket(found->ai_family, found->ai_socktype, found->ai_protocol));
  const timeval wait = absl::ToTimeval(timeout);
  if (socket.fd() < 0 ||
      setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0 ||
      setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0 ||
      connect(socket.fd(), found->ai_addr, found->ai_addrlen) != 0) {
    return Failed(name, "cannot connect");
  }
  return socket;
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& url, absl::Duration timeout) {
  EDDY_ASSIGN_OR_RETURN(const Url parts, ParseUrl(url));
  EDDY_ASSIGN_OR_RETURN(const Socket socket, Connect(parts, url, timeout));
  // HTTP/1.0: the answer is not chunked, and ends with the connection.
  const std::string request =
      absl::StrCat("GET ", parts.path, " HTTP/1.0\r\nHost: ", parts.host, "\r\n\r\n");
  if (send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return Failed(url, "cannot send");
  }
  std::string answer;
  char buffer[65536];
  while (true) {
    const ssize_t got = recv(socket.fd(), buffer, sizeof(buffer), 0);
    if (got < 0) return Failed(url, "cannot read");
    if (got == 0) break;
    answer.append(buffer, static_cast<size_t>(got));
    if (answer.size() > kPageBytesMax) {
      return absl::UnavailableError(
          absl::StrCat(url, ": the page is longer than the limit, ", kPageBytesMax, " bytes"));
    }
  }
  const size_t body = answer.find("\r\n\r\n");
  const size_t code = answer.find(' ');
  if (body == std::string::npos || code == std::string::npos ||
      answer.compare(code, 5, " 200 ") != 0) {
    return absl::UnavailableError(
        absl::StrCat(url, ": answered \"", answer.substr(0, answer.find("\r\n")), "\""));
  }
  return answer.substr(body + 4);
}

}  // namespace eddy::loadtest
