#include "base/utf8.h"

#include "base/check.h"

namespace eddy {

size_t Utf8Length(std::string_view text) {
  Utf8Scanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (scanner.Put(static_cast<uint8_t>(text[i]))) {
      case Utf8Scanner::Result::kWhole:
        return i + 1;
      case Utf8Scanner::Result::kPart:
        break;
      case Utf8Scanner::Result::kInvalid:
        return 0;
    }
  }
  return 0;
}

bool IsUtf8(std::string_view text) {
  Utf8Scanner scanner;
  for (const char c : text) {
    if (scanner.Put(static_cast<uint8_t>(c)) == Utf8Scanner::Result::kInvalid) return false;
  }
  return scanner.pending() == 0;
}

Utf8Char ReadUtf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {.value = first, .size = 1};
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  EDDY_DCHECK(at + size <= text.size());
  char32_t value = first & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) value = value << 6 | (byte(i) & 0x3Fu);
  return {.value = value, .size = size};
}

Utf8Char ReadUtf8Before(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return ReadUtf8(text, at);
}

void AppendUtf8(char32_t c, std::string* out) {
  EDDY_CHECK(c < 0xD800 || (c >= 0xE000 && c < 0x110000));
  const int tails = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr unsigned kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLeads[tails] | c >> (6 * tails)));
  for (int i = tails - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3F)));
  }
}

Utf8Scanner::Result Utf8Scanner::Put(uint8_t byte) {
  if (pending_ > 0) {
    if (byte < low_ || byte > high_) {
      Reset();
      return Result::kInvalid;
    }
    low_ = 0x80;
    high_ = 0xBF;
    ++pending_;
    if (pending_ < needed_) return Result::kPart;
    Reset();
    return Result::kWhole;
  }
  if (byte < 0x80) return Result::kWhole;
  if (byte < 0xC2 || byte > 0xF4) return Result::kInvalid;
  pending_ = 1;
  needed_ = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what is above U+10FFFF.
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return Result::kPart;
}

void Utf8Repair::Put(uint8_t byte, std::string* out) {
  Utf8Scanner::Result result = scanner_.Put(byte);
  if (result == Utf8Scanner::Result::kInvalid && !held_.empty()) {
    Flush(out);
    result = scanner_.Put(byte);
  }
  if (result == Utf8Scanner::Result::kInvalid) {
    out->append(kReplacementCharacter);
    return;
  }
  held_.push_back(static_cast<char>(byte));
  if (result == Utf8Scanner::Result::kPart) return;
  out->append(held_);
  held_.clear();
}

void Utf8Repair::Flush(std::string* out) {
  const size_t count = per_byte_ ? held_.size() : held_.empty() ? 0 : 1;
  for (size_t i = 0; i < count; ++i) out->append(kReplacementCharacter);
  held_.clear();
  scanner_.Reset();
}

}  // namespace eddy
