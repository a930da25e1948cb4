// Which bytes are UTF-8 (RFC 3629).
#pragma once

#include <cstddef>
#include <string_view>

namespace eddy {

// Length of the character at the start of `text`, 1 to 4 bytes; 0: there is no valid one.
// REQUIRES: text is not empty.
size_t Utf8Length(std::string_view text);

bool IsUtf8(std::string_view text);

}  // namespace eddy
