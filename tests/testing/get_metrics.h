// Reads a metrics page as a scraper does.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace eddy {

// A socket, which the caller closes; connected, if there is somebody at the port.
inline int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  [[maybe_unused]] const int connected =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  return fd;
}

// The answer to a request, "GET /metrics" for example, with its headers; empty if there is none.
inline std::string AskMetricsPort(int port, const std::string& what) {
  const int fd = ConnectTo(port);
  std::string answer;
  const std::string request = what + " HTTP/1.0\r\n\r\n";
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

inline std::string GetMetrics(int port) { return AskMetricsPort(port, "GET /metrics"); }

}  // namespace eddy
