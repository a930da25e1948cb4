// Proves that bytes and characters of the alphabet are each other's inverse, by all of them.
#include "server/text/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

#include "base/utf8.h"

namespace eddy {
namespace {

TEST(ByteAlphabet, GoesThereAndBack) {
  std::set<std::string_view> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string_view character = CharacterOfByte(static_cast<uint8_t>(byte));
    characters.insert(character);
    EXPECT_EQ(ByteOfCharacter(ReadUtf8(character, 0).value), byte);
  }
  EXPECT_EQ(characters.size(), 256u);
}

TEST(ByteAlphabet, HasTheCharactersOfTheFormat) {
  EXPECT_EQ(CharacterOfByte('a'), "a");
  EXPECT_EQ(CharacterOfByte(' '), "\u0120");
  EXPECT_EQ(CharacterOfByte('\n'), "\u010A");
  EXPECT_EQ(CharacterOfByte(0xAD), "\u0143");
}

TEST(ByteAlphabet, KnowsNoOtherCharacters) {
  for (const char32_t c : {U' ', U'\n', U'\x7F', U'\xAD', U'\u0144', U'\u2581'}) {
    EXPECT_EQ(ByteOfCharacter(c), std::nullopt);
  }
}

TEST(ByteAlphabet, TokensWithOtherCharactersStandForThemselves) {
  EXPECT_EQ(BytesOfToken("\u0120a"), " a");
  EXPECT_EQ(BytesOfToken("a b"), "a b");
}

}  // namespace
}  // namespace eddy
