// Gives the threads of the metrics port enough stack.
//
// civetweb asks for 100 KB a thread, which is compiled into the packaged library. Thread-local
// storage of all libraries of a program comes out of it, and its way to an answer that is not the
// page (404, 405) needs tens of KB for paths: in eddy-server it ran over the end. The request for a
// stack goes through this function, since a program's own symbols come before those of libc.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>

extern "C" int pthread_attr_setstacksize(pthread_attr_t* attributes, size_t bytes) {
  using Real = int (*)(pthread_attr_t*, size_t);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  constexpr size_t kLeast = size_t{1} << 20;
  return real(attributes, std::max(bytes, kLeast));
}
