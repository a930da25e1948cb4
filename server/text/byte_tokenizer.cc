#include "server/text/byte_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/utf8.h"

namespace eddy {
namespace {

constexpr int32_t kBytes = 256;

}  // namespace

class ByteTokenizer::Decoder : public TokenDecoder {
 public:
  Decoder(const ByteTokenizer* tokenizer, bool special_tokens)
      : tokenizer_(tokenizer), special_tokens_(special_tokens) {}

  void Put(int32_t id, std::string* text) override {
    if (id < 0 || id >= tokenizer_->vocab_size()) return;
    if (id < kBytes) {
      repair_.Put(static_cast<uint8_t>(id), text);
    } else if (special_tokens_) {
      repair_.Flush(text);
      text->append(tokenizer_->Bytes(id));
    }
  }
  void Flush(std::string* text) override { repair_.Flush(text); }

 private:
  const ByteTokenizer* tokenizer_;
  bool special_tokens_;
  Utf8Repair repair_{/*per_byte=*/false};
};

ByteTokenizer::ByteTokenizer(int32_t vocab_size, std::optional<int32_t> bos)
    : vocab_size_(vocab_size), bos_(bos) {
  EDDY_CHECK(vocab_size >= kBytes && (!bos.has_value() || (*bos >= 0 && *bos < vocab_size)));
}

absl::StatusOr<std::vector<TokenSpan>> ByteTokenizer::EncodeSpans(
    std::string_view text, const EncodeOptions& options) const {
  EDDY_CHECK(text.size() < UINT32_MAX);
  std::vector<TokenSpan> spans;
  spans.reserve(text.size() + 1);
  if (options.add_bos && bos_.has_value()) spans.push_back({.id = *bos_});
  for (uint32_t i = 0; i < text.size(); ++i) {
    spans.push_back({.id = static_cast<uint8_t>(text[i]), .begin = i, .end = i + 1});
  }
  return spans;
}

size_t ByteTokenizer::FewestTokens(std::string_view text) const { return text.size(); }

std::unique_ptr<TokenDecoder> ByteTokenizer::NewDecoder(bool special_tokens) const {
  return std::make_unique<Decoder>(this, special_tokens);
}

std::string ByteTokenizer::Bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size_) return "";
  if (id < kBytes) return std::string(1, static_cast<char>(id));
  return absl::StrCat("<special_", id - kBytes, ">");
}

bool ByteTokenizer::IsSpecial(int32_t id) const { return id >= kBytes && id < vocab_size_; }

}  // namespace eddy
