// From tokens back to text, step after step: the decoders of tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace eddy {

// In every token `from` becomes `to`. REQUIRES: `from` is not empty.
struct ReplaceInTokens {
  std::string from, to;
};
// Tokens <0x00> ... <0xFF> are bytes. A run of them is a text, or one U+FFFD per byte if it is not
// UTF-8; so nothing of a run that may yet turn out either way can be given out before its end.
struct BytesFromNames {};
// All tokens become one.
struct Fuse {};
// Takes `character` away, at most `start` times from the front of each token and `stop` times from
// its end.
struct StripTokens {
  std::string character;  // one
  int start = 0, stop = 0;
};
// `replacement` becomes a space; in the first token it is dropped if `drop_first`.
struct SpacesFromMarks {
  std::string replacement;  // one character
  bool drop_first = true;
};
// The characters of byte_alphabet.h become bytes, and these one text.
struct BytesFromAlphabet {};
// A space between two tokens.
struct JoinWithSpaces {};

using DecodeStep = std::variant<ReplaceInTokens, BytesFromNames, Fuse, StripTokens, SpacesFromMarks,
                                BytesFromAlphabet, JoinWithSpaces>;

// The byte that <0xNN> names.
std::optional<uint8_t> ByteOfName(std::string_view token);

// One step at work. Is given token by token, and gives to the next step or to the text.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void Put(std::string_view token) = 0;
  virtual void Flush() = 0;
};

// True if `step` can work on text that comes in arbitrary parts, as it does behind Fuse and
// BytesFromAlphabet.
bool WorksOnParts(const DecodeStep& step);
bool MakesOneToken(const DecodeStep& step);

// The steps in their order, the last of which appends to *text. REQUIRES: behind a step that makes
// one token all steps work on parts; `text` outlives it.
class DecodeChain {
 public:
  DecodeChain(const std::vector<DecodeStep>& steps, std::string* text);
  void Put(std::string_view token) { first_->Put(token); }
  void Flush() { first_->Flush(); }

 private:
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // the last one first
  DecodeStage* first_ = nullptr;
};

}  // namespace eddy
