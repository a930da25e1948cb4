#include "server/ids.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"

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

uint64_t RandomNonZero() {
  uint64_t number = RandomSeed();
  while (number == 0) number = RandomSeed();
  return number;
}

}  // namespace

bool IsRequestId(std::string_view text) {
  if (text.empty() || text.size() > 128) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

// Not std::random_device, which asks the processor and takes tens of microseconds on some.
uint64_t RandomSeed() {
  uint64_t seed = 0;
  EDDY_CHECK(getentropy(&seed, sizeof(seed)) == 0);
  return seed;
}

std::string NewUuid() {
  const uint64_t high = (RandomSeed() & ~0xf000ULL) | 0x4000;
  const uint64_t low = (RandomSeed() & ~(3ULL << 62)) | (2ULL << 62);
  const std::string digits = Hex(high, 16) + Hex(low, 16);
  return digits.substr(0, 8) + "-" + digits.substr(8, 4) + "-" + digits.substr(12, 4) + "-" +
         digits.substr(16, 4) + "-" + digits.substr(20);
}

std::string NewTraceId() { return Hex(RandomSeed(), 16) + Hex(RandomNonZero(), 16); }

std::string NewSpanId() { return Hex(RandomNonZero(), 16); }

}  // namespace eddy
