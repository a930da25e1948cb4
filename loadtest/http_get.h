// One GET of a page, by hand: a page of a server of one's own needs no library.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eddy::loadtest {

// Body of the answer to GET `url`, which is http://host:port/path. InvalidArgument if it is not of
// that form; else Unavailable with what went wrong, such as a status other than 200. Each wait ends
// after `timeout`; at most 16 MiB are read.
absl::StatusOr<std::string> HttpGet(const std::string& url, absl::Duration timeout);

}  // namespace eddy::loadtest
