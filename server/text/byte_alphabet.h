// The characters that stand for bytes in the vocabularies of byte-level BPE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace eddy {

// Bytes 33-126, 161-172 and 174-255 stand for themselves, the other 68 in order for U+0100 onwards
// (Radford et al., GPT-2, encoder.py).
std::string_view CharacterOfByte(uint8_t byte);  // UTF-8, lives for ever
std::optional<uint8_t> ByteOfCharacter(char32_t c);
// The bytes that `token` stands for; its own if not all of its characters stand for bytes.
std::string BytesOfToken(std::string_view token);

}  // namespace eddy
