#include "server/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/text/byte_tokenizer.h"
#include "server/text/sentencepiece_model.h"
#include "server/text/sentencepiece_tokenizer.h"
#include "server/text/tokenizer_json.h"

namespace eddy {
namespace {

constexpr std::streamoff kFileBytesMax = 256 << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // A folder can be opened, too.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": the file cannot be read"));
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) return absl::NotFoundError(absl::StrCat(path, ": the file cannot be read"));
  if (size > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file has ", size, " bytes, the limit is ", kFileBytesMax));
  }
  std::string content(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(content.data(), size)) {
    return absl::NotFoundError(absl::StrCat(path, ": the file cannot be read"));
  }
  return content;
}

absl::Status InFile(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadSentencePiece(const std::string& content,
                                                                   std::optional<int32_t> bos) {
  EDDY_ASSIGN_OR_RETURN(SentencePieceModel model, ReadSentencePieceModel(content));
  if (bos.has_value() && (*bos < 0 || static_cast<size_t>(*bos) >= model.pieces.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the model's bos is ", *bos, ", there are only ",
                                                   model.pieces.size(), " pieces"));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), bos);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenBytes(const TokenizerSpec& spec) {
  if (spec.vocab_size < 256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.kind is \"bytes\", but vocab_size is ", spec.vocab_size, "; expected >= 256"));
  }
  if (spec.bos.has_value() && (*spec.bos < 0 || *spec.bos >= spec.vocab_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens.bos is ", *spec.bos, "; expected 0 to ", spec.vocab_size - 1));
  }
  return std::make_unique<ByteTokenizer>(spec.vocab_size, spec.bos);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  EDDY_ASSIGN_OR_RETURN(const std::vector<TokenSpan> spans, EncodeSpans(text, options));
  std::vector<int32_t> ids;
  ids.reserve(spans.size());
  for (const TokenSpan& span : spans) ids.push_back(span.id);
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool special_tokens) const {
  const std::unique_ptr<TokenDecoder> decoder = NewDecoder(special_tokens);
  std::string text;
  for (const int32_t id : ids) decoder->Put(id, &text);
  decoder->Flush(&text);
  return text;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const TokenizerSpec& spec) {
  if (spec.kind == "bytes") return OpenBytes(spec);
  if (spec.kind != "tokenizer.json" && spec.kind != "sentencepiece") {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.kind is \"", spec.kind, "\"; supported: tokenizer.json, sentencepiece, bytes"));
  }
  EDDY_ASSIGN_OR_RETURN(const std::string content, ReadFile(spec.file));
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer =
      spec.kind == "sentencepiece" ? ReadSentencePiece(content, spec.bos)
                                   : ReadTokenizerJson(content);
  if (!tokenizer.ok()) return InFile(spec.file, tokenizer.status());
  if ((*tokenizer)->vocab_size() > spec.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.file, ": the highest id is ", (*tokenizer)->vocab_size() - 1,
                     ", the model's vocab_size is ", spec.vocab_size));
  }
  return tokenizer;
}

}  // namespace eddy
