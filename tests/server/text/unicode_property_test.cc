// Proves that names of properties are read loosely, and that inventions of PCRE2 are not let in.
#include "server/text/unicode_property.h"

#include <gtest/gtest.h>

namespace eddy {
namespace {

TEST(UnicodeProperty, KnowsCategoriesScriptsAndOwnNames) {
  EXPECT_EQ(PropertyInside("Lu"), "\\p{lu}");
  EXPECT_EQ(PropertyInside("LETTER"), "\\p{L}");
  EXPECT_EQ(PropertyInside("Old_Italic"), "\\p{sc:olditalic}");
  EXPECT_EQ(PropertyInside("White-Space"), "\\p{whitespace}");
  EXPECT_EQ(PropertyInside("Space"), kSpaceInside);
}

TEST(UnicodeProperty, KnowsNoOthers) {
  for (const char* name : {"", "Xwd", "Xan", "Nonsense", "L&", "sc:Han", "L}{", "\xC3\xA9"}) {
    EXPECT_EQ(PropertyInside(name), "") << name;
  }
}

}  // namespace
}  // namespace eddy
