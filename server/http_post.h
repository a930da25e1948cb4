// Sends requests to one HTTP server, one after another: the only file that knows libcurl.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace eddy {

// One thread, but for Wake. A connection is kept between requests. Proxies of the environment are
// not used, and redirects are not followed: the server is the one that was named.
class HttpPost {
 public:
  struct Answer {
    int status = 0;                                  // 0: there was none
    std::string body = {};                           // its first 64 KiB
    std::string error = {};                          // why there was none, in libcurl's words
    std::optional<absl::Duration> retry_after = {};  // of the header Retry-After
  };

  // `url` begins with http://.
  explicit HttpPost(const std::string& url);
  ~HttpPost();

  // Posts JSON. Gives up when `time_left`, which is asked whenever something happens, at each Wake,
  // and when what it said last has passed, says zero or less.
  Answer Send(const std::string& json, absl::FunctionRef<absl::Duration()> time_left);
  // Lets a Send under way, or the next, ask again. Any thread.
  void Wake();

 private:
  struct Handles;
  const std::unique_ptr<Handles> handles_;
};

}  // namespace eddy
