// Every error a client can get, one function each: code, reason and the numbers behind it. Plain
// values that know no gRPC; grpc_status.h turns them into what goes over the wire. Programs rely on
// code, reason and the metadata keys, so none of them changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request.h"

namespace eddy {

// One thing that is wrong with a request.
struct FieldFault {
  std::string field;        // path, such as "sampling.top_p"
  std::string description;  // with the value and the bound
};

// What was not found.
struct MissingResource {
  std::string type;  // "eddy.v1/Model"
  std::string name;
};

struct Error {
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string reason = {};   // UPPER_SNAKE_CASE, ErrorInfo.reason
  std::string message = {};  // for people: English, one line
  std::vector<std::pair<std::string, std::string>> metadata = {};  // ErrorInfo.metadata
  std::vector<FieldFault> faults = {};                             // BadRequest
  std::optional<MissingResource> missing = {};                     // ResourceInfo
  // RetryInfo and the trailer grpc-retry-pushback-ms.
  std::optional<absl::Duration> retry_after = {};
};

// Collects all that is wrong with one request.
class Faults {
 public:
  // Of one list, so many wrong elements are described; the rest is only counted.
  static constexpr int kDescribedPerList = 8;

  void Add(std::string_view field, std::string description) {
    Add("INVALID_FIELD", field, std::move(description), {});
  }
  // A fault that has a reason of its own, which the error bears if nothing else is wrong.
  void Add(std::string_view reason, std::string_view field, std::string description,
           std::vector<std::pair<std::string, std::string>> metadata);
  void Add(const Faults& others);
  bool empty() const { return faults_.empty(); }
  // REQUIRES: !empty().
  Error ToError() const;

 private:
  std::vector<FieldFault> faults_;
  std::vector<std::string> reasons_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

Error ModelNotFound(std::string_view model, std::string_view served);
// `features` by their names in features.h, joined by commas.
Error FeatureDisabled(std::string_view features);
// `what` is full: "requests" or "prompt tokens".
Error QueueFull(std::string_view what, int64_t waiting, int64_t limit, absl::Duration retry_after);
Error DeadlinePassed(Phase phase);
Error RequestTimePassed(absl::Duration limit);
Error Cancelled();
Error NotReady();
Error Draining();
Error DrainTimeout();
Error DeviceLost(std::string_view why);
Error StateNotFinite(const NotFinite& what);
Error SlowReader(int64_t outbox_bytes);
// A fault of the server itself, which it survives.
Error Internal(std::string_view what);

std::string_view PhaseName(Phase phase);

// A text from outside as it may stand in a message: in quotes, cut short, valid UTF-8.
std::string Shown(std::string_view text);

}  // namespace eddy
