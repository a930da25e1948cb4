// Linked into eddy-server alone: what keeps it listening when it has no descriptors left.
//
// gRPC 1.51 stops listening for good at the first accept4 that fails, so that a flood of
// connections would end the service until somebody starts it again. It finds this function before
// that of libc. Connections for which there is no descriptor are closed at once, so that clients
// hear of it and none is left waiting; to accept them at all, one descriptor is kept in reserve.
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mutex.h"

namespace eddy {
namespace {

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

int Accept(int listener, sockaddr* address, socklen_t* length, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
}

class Reserve {
 public:
  // Closes the connection that waits longest. What gRPC is to take errno for: EINTR, it looks for
  // the next one, or EAGAIN, it waits until one comes.
  int CloseOne(int listener) {
    MutexLock lock(&mu_);
    close(fd_);
    const int taken = Accept(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (taken >= 0) close(taken);
    fd_ = OpenReserve();
    return taken >= 0 ? EINTR : EAGAIN;
  }

 private:
  Mutex mu_;
  int fd_ ABSL_GUARDED_BY(mu_) = OpenReserve();
};

Reserve reserve;  // from the start, while there still are descriptors

}  // namespace
}  // namespace eddy

extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  const int taken = eddy::Accept(listener, address, length, flags);
  if (taken >= 0) return taken;
  switch (errno) {
    case EMFILE:
    case ENFILE:
      errno = eddy::reserve.CloseOne(listener);
      break;
    case ENOBUFS:
    case ENOMEM:
      errno = EAGAIN;
      break;
    case ECONNABORTED:  // faults of one connection, which is gone; the next may be well
    case EPERM:         // a firewall forbids it
    case EPROTO:
    case ENETDOWN:
    case ENETUNREACH:
    case ENONET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
      errno = EINTR;
      break;
    default:
      break;
  }
  return -1;
}
