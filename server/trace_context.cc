#include "server/trace_context.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "server/ids.h"

namespace eddy {
namespace {

constexpr size_t kLengthOfVersion0 = 55;  // "00-" 32 "-" 16 "-" 2
constexpr size_t kMembersMax = 32;
constexpr size_t kKeyMax = 256, kValueMax = 256;
constexpr size_t kStateMax = 512, kLongMember = 128;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

// Level 2 of the standard takes more keys than level 1, and every one of level 1.
bool IsKey(std::string_view key) {
  const auto starts = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const auto goes_on = [&](char c) {
    return starts(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  };
  return !key.empty() && key.size() <= kKeyMax && starts(key[0]) &&
         std::all_of(key.begin(), key.end(), goes_on);
}

// Printable ASCII but for comma and equals sign; blanks at its end were trimmed.
bool IsValue(std::string_view value) {
  return !value.empty() && value.size() <= kValueMax &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

size_t JoinedSize(const std::vector<std::string_view>& members) {
  size_t size = members.empty() ? 0 : members.size() - 1;
  for (const std::string_view member : members) size += member.size();
  return size;
}

void Shorten(std::vector<std::string_view>* members) {
  for (size_t i = members->size(); i-- > 0 && JoinedSize(*members) > kStateMax;) {
    if ((*members)[i].size() > kLongMember) members->erase(members->begin() + static_cast<int>(i));
  }
  while (JoinedSize(*members) > kStateMax) members->pop_back();
}

}  // namespace

std::optional<TraceParent> ReadTraceParent(std::string_view traceparent) {
  if (traceparent.size() < kLengthOfVersion0) return std::nullopt;
  const std::string_view version = traceparent.substr(0, 2), flags = traceparent.substr(53, 2);
  const bool separated = traceparent[2] == '-' && traceparent[35] == '-' && traceparent[52] == '-';
  const bool ends = traceparent.size() == kLengthOfVersion0 ||
                    (version != "00" && traceparent[kLengthOfVersion0] == '-');
  const std::string_view trace_id = traceparent.substr(3, 32), span_id = traceparent.substr(36, 16);
  if (!IsHex(version) || version == "ff" || !separated || !ends || !IsId(trace_id) ||
      !IsId(span_id) || !IsHex(flags)) {
    return std::nullopt;
  }
  const int low = flags[1] <= '9' ? flags[1] - '0' : flags[1] - 'a' + 10;
  return TraceParent{.trace_id = std::string(trace_id),
                     .span_id = std::string(span_id),
                     .sampled = (low & 1) != 0};
}

std::string ReadTraceState(std::string_view tracestate) {
  std::vector<std::string_view> members;
  std::set<std::string_view> keys;
  while (!tracestate.empty()) {
    const size_t comma = std::min(tracestate.find(','), tracestate.size());
    const std::string_view member = Trim(tracestate.substr(0, comma));
    tracestate.remove_prefix(std::min(comma + 1, tracestate.size()));
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos) return "";
    const std::string_view key = member.substr(0, equals);
    if (!IsKey(key) || !IsValue(member.substr(equals + 1)) || !keys.insert(key).second) return "";
    members.push_back(member);
    if (members.size() > kMembersMax) return "";
  }
  Shorten(&members);
  std::string joined;
  for (const std::string_view member : members) {
    if (!joined.empty()) joined += ',';
    joined += member;
  }
  return joined;
}

TracePlace PlaceInTrace(std::string_view traceparent, std::string_view tracestate,
                        double sample_ratio) {
  TracePlace place;
  place.span_id = NewSpanId();
  if (std::optional<TraceParent> parent = ReadTraceParent(traceparent)) {
    place.trace_id = std::move(parent->trace_id);
    place.parent_id = std::move(parent->span_id);
    place.sampled = parent->sampled;
    place.state = ReadTraceState(tracestate);
  } else {
    place.trace_id = NewTraceId();
    place.sampled = IsSampled(place.trace_id, sample_ratio);
  }
  return place;
}

bool IsSampled(std::string_view trace_id, double sample_ratio) {
  const std::string_view digits = trace_id.substr(trace_id.size() - 14);
  uint64_t randomness = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), randomness, 16);
  // In integers: as a double the greatest numbers would round to 2^56, which stands for "none".
  const auto refused = static_cast<uint64_t>((1 - sample_ratio) * std::ldexp(1.0, 56));
  return randomness >= refused;
}

}  // namespace eddy
