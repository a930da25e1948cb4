// Checks of single fields, each of which adds a fault that names field, value and bound.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/errors.h"

namespace eddy {

// The bounds of a number; an open end is not part of the range.
struct Range {
  double least = 0;
  double most = 0;
  bool open_least = false;
  bool open_most = false;
};

// NaN and infinities are in no range.
void CheckFloat(const char* field, float value, const Range& range, Faults* faults);
void CheckInteger(const char* field, int64_t value, int64_t least, int64_t most, Faults* faults);
void CheckCount(const char* field, int64_t count, int64_t most, Faults* faults);
// Every id below `vocab_size`. Of many wrong ones the first few are described.
void CheckTokenIds(const char* field, const google::protobuf::RepeatedField<uint32_t>& ids,
                   int64_t vocab_size, Faults* faults);
void CheckText(const char* field, const std::string& text, Faults* faults);
// Nothing if it is out of range, or not a valid Duration.
std::optional<absl::Duration> CheckDuration(const char* field,
                                            const google::protobuf::Duration& duration,
                                            absl::Duration least, absl::Duration most,
                                            Faults* faults);

google::protobuf::Duration ToProto(absl::Duration duration);

}  // namespace eddy
