// The characters that tokenizers take for white space.
#pragma once

namespace eddy {

bool IsWhiteSpace(char32_t c);  // Unicode's property White_Space

}  // namespace eddy
