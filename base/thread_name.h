// Names of threads, as `top -H`, debuggers and profilers show them.
#pragma once

#include <pthread.h>

#include <string>
#include <string_view>

namespace eddy {

// Names the calling thread. Linux keeps the first 15 bytes.
inline void NameThisThread(std::string_view name) {
  pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str());
}

}  // namespace eddy
