// UTF-8 (RFC 3629): which bytes are it, characters of valid text, and bytes that arrive one by one
// and may be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace eddy {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  char32_t value = 0;
  size_t size = 0;  // bytes
};

// Length of the character at the start of `text`, 1 to 4 bytes; 0: there is no valid one.
// REQUIRES: text is not empty.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

// The character at text[at]. REQUIRES: `text` is valid UTF-8 and a character begins there.
Utf8Char ReadUtf8(std::string_view text, size_t at);
// The character that ends before text[at]. REQUIRES: the same, and at > 0.
Utf8Char ReadUtf8Before(std::string_view text, size_t at);
// REQUIRES: `c` is a Unicode scalar value.
void AppendUtf8(char32_t c, std::string* out);

// The acceptor of one UTF-8 character (The Unicode Standard, table 3-7), a byte at a time.
class Utf8Scanner {
 public:
  enum class Result {
    kWhole,    // this byte completes a character
    kPart,     // this byte continues or begins one
    kInvalid,  // this byte fits nowhere; the scanner is at the beginning again, the byte not taken
  };
  Result Put(uint8_t byte);
  // Bytes of an incomplete character so far.
  int pending() const { return pending_; }
  void Reset() { pending_ = needed_ = 0; }

 private:
  int pending_ = 0;
  int needed_ = 0;
  uint8_t low_ = 0x80, high_ = 0xBF;  // bounds of the next byte
};

// Makes whole characters of bytes. Of bytes that are not UTF-8 each maximal part of a character
// (The Unicode Standard, section 3.9) or, if `per_byte`, each byte becomes U+FFFD.
class Utf8Repair {
 public:
  explicit Utf8Repair(bool per_byte) : per_byte_(per_byte) {}
  void Put(uint8_t byte, std::string* out);
  // An incomplete character is taken as invalid.
  void Flush(std::string* out);

 private:
  bool per_byte_;
  Utf8Scanner scanner_;
  std::string held_;
};

}  // namespace eddy
