#include "server/ids.h"

#include <algorithm>
#include <array>
#include <random>

namespace eddy {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

std::string Hex(uint64_t value, int digits) {
  std::string text(static_cast<size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, value >>= 4) {
    text[static_cast<size_t>(i)] = kHexDigits[value & 15];
  }
  return text;
}

bool IsLowerHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '0'; });
}

}  // namespace

bool IsRequestId(std::string_view text) {
  if (text.empty() || text.size() > 128) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

std::string NewUuid() {
  const uint64_t high = (RandomSeed() & ~0xf000ULL) | 0x4000;
  const uint64_t low = (RandomSeed() & ~(3ULL << 62)) | (2ULL << 62);
  const std::string digits = Hex(high, 16) + Hex(low, 16);
  return digits.substr(0, 8) + "-" + digits.substr(8, 4) + "-" + digits.substr(12, 4) + "-" +
         digits.substr(16, 4) + "-" + digits.substr(20);
}

std::string TraceIdOf(std::string_view traceparent) {
  if (traceparent.size() != 55 || traceparent.substr(0, 3) != "00-" || traceparent[35] != '-' ||
      traceparent[52] != '-') {
    return "";
  }
  const std::string_view trace = traceparent.substr(3, 32), parent = traceparent.substr(36, 16);
  const bool valid = IsLowerHex(trace) && IsLowerHex(parent) &&
                     IsLowerHex(traceparent.substr(53)) && !IsZero(trace) && !IsZero(parent);
  return valid ? std::string(trace) : "";
}

std::string NewSpanId() {
  uint64_t id = RandomSeed();
  while (id == 0) id = RandomSeed();
  return Hex(id, 16);
}

}  // namespace eddy
