#include "server/checks.h"

#include <charconv>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace eddy {

namespace {

// As few digits as tell it from its neighbours.
std::string Digits(float value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

}  // namespace

void CheckFloat(const char* field, float value, const Range& range, Faults* faults) {
  const bool above = range.open_least ? value > range.least : value >= range.least;
  const bool below = range.open_most ? value < range.most : value <= range.most;
  if (std::isfinite(value) && above && below) return;
  faults->Add(field, absl::StrCat(field, " is ", Digits(value), "; it must be in ",
                                  range.open_least ? "(" : "[", range.least, ", ", range.most,
                                  range.open_most ? ")" : "]"));
}

void CheckInteger(const char* field, int64_t value, int64_t least, int64_t most, Faults* faults) {
  if (value >= least && value <= most) return;
  faults->Add(field, absl::StrCat(field, " is ", value, "; it must be ", least, " to ", most));
}

void CheckCount(const char* field, int64_t count, int64_t most, Faults* faults) {
  if (count <= most) return;
  faults->Add(field, absl::StrCat(field, " has ", count, " entries, the limit is ", most));
}

void CheckTokenIds(const char* field, const google::protobuf::RepeatedField<uint32_t>& ids,
                   int64_t vocab_size, Faults* faults) {
  int wrong = 0;
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocab_size) continue;
    if (++wrong > Faults::kDescribedPerList) continue;
    const std::string element = absl::StrCat(field, "[", i, "]");
    faults->Add(element, absl::StrCat(element, " is ", ids[i], ", the vocabulary has ", vocab_size,
                                      " tokens"));
  }
  if (wrong > Faults::kDescribedPerList) {
    faults->Add(field, absl::StrCat(field, ": ", wrong - Faults::kDescribedPerList,
                                    " more ids are not below ", vocab_size));
  }
}

void CheckText(const char* field, const std::string& text, Faults* faults) {
  if (!IsUtf8(text)) {
    faults->Add(field, absl::StrCat(field, " is not valid UTF-8: ", Shown(text)));
  }
}

std::optional<absl::Duration> CheckDuration(const char* field,
                                            const google::protobuf::Duration& duration,
                                            absl::Duration least, absl::Duration most,
                                            Faults* faults) {
  // Of google.protobuf.Duration. Compared without std::abs, which the least numbers have none of.
  constexpr int64_t kSecondsMost = 315576000000;
  constexpr int32_t kNanosMost = 999999999;
  const int64_t seconds = duration.seconds();
  const int32_t nanos = duration.nanos();
  const bool valid = seconds >= -kSecondsMost && seconds <= kSecondsMost && nanos >= -kNanosMost &&
                     nanos <= kNanosMost &&
                     (seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0));
  if (!valid) {
    faults->Add(field,
                absl::StrCat(field, " is no valid Duration: seconds ", seconds, ", nanos ", nanos));
    return std::nullopt;
  }
  const absl::Duration value = absl::Seconds(seconds) + absl::Nanoseconds(nanos);
  if (value >= least && value <= most) return value;
  faults->Add(field, absl::StrCat(field, " is ", absl::FormatDuration(value), "; it must be ",
                                  absl::FormatDuration(least), " to ", absl::FormatDuration(most)));
  return std::nullopt;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace eddy
