// Proves that white space is Unicode's, and not all that is invisible.
#include "server/text/white_space.h"

#include <gtest/gtest.h>

namespace eddy {
namespace {

TEST(WhiteSpace, IsWhatUnicodeSays) {
  for (const char32_t c : {U' ', U'\t', U'\v', U'\x85', U'\xA0', U'\u1680', U'\u2028', U'\u3000'}) {
    EXPECT_TRUE(IsWhiteSpace(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'a', U'\x1C', U'\x1F', U'\u180E', U'\u200B', U'\uFEFF'}) {
    EXPECT_FALSE(IsWhiteSpace(c)) << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace eddy
