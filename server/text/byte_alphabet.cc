#include "server/text/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace eddy {
namespace {

constexpr int kMoved = 68;

struct Alphabet {
  Alphabet() {
    int moved = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      if (!itself) bytes_of_moved[moved] = static_cast<uint8_t>(byte);
      AppendUtf8(static_cast<char32_t>(itself ? byte : 0x100 + moved++), &characters[byte]);
      stands_for_itself[byte] = itself;
    }
  }
  std::array<std::string, 256> characters;
  std::array<bool, 256> stands_for_itself = {};
  std::array<uint8_t, kMoved> bytes_of_moved = {};
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view CharacterOfByte(uint8_t byte) { return TheAlphabet().characters[byte]; }

std::optional<uint8_t> ByteOfCharacter(char32_t c) {
  const Alphabet& alphabet = TheAlphabet();
  if (c < 0x100) {
    if (!alphabet.stands_for_itself[c]) return std::nullopt;
    return static_cast<uint8_t>(c);
  }
  if (c >= 0x100 + kMoved) return std::nullopt;
  return alphabet.bytes_of_moved[c - 0x100];
}

std::string BytesOfToken(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = ReadUtf8(token, at);
    const std::optional<uint8_t> byte = ByteOfCharacter(c.value);
    if (!byte.has_value()) return std::string(token);
    bytes.push_back(static_cast<char>(*byte));
    at += c.size;
  }
  return bytes;
}

}  // namespace eddy
