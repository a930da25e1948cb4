// Character properties as Oniguruma names them, in PCRE2's words.
#pragma once

#include <string>
#include <string_view>

namespace eddy {

// Insides of character classes. Word is doc/RE's: Letter | Mark | Decimal_Number |
// Connector_Punctuation, where Letter is the property Alphabetic.
inline constexpr const char* kWordInside = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
inline constexpr const char* kSpaceInside = R"(\p{White_Space})";
inline constexpr const char* kDigitInside = R"(\p{Nd})";

// The inside of a class of the characters with this property: a category, one of Oniguruma's own
// names, a script (never by extension), or another Unicode property. Empty if there is none.
std::string PropertyInside(std::string_view name);

}  // namespace eddy
