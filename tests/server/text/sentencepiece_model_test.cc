// Proves that a .model file is read as it was written, that absent fields have the defaults of the
// format, and that what would be read wrongly is refused by name.
#include "server/text/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::HasSubstr;
using Type = SentencePieceModel::Type;

std::string Refusal(const std::function<void(SentencePieceModel*)>& change) {
  SentencePieceModel model = TinyModel();
  change(&model);
  const auto read = ReadSentencePieceModel(ModelFile(model));
  return read.ok() ? "accepted" : std::string(read.status().message());
}

// The error for the tiny file with more bytes behind.
std::string RefusalOf(const std::string& more) {
  const auto read = ReadSentencePieceModel(ModelFile(TinyModel()) + more);
  return read.ok() ? "accepted" : std::string(read.status().message());
}

TEST(SentencePieceModel, ReadsWhatWasWritten) {
  SentencePieceModel model = TinyModel();
  model.unknown_surface = "?";
  model.add_dummy_prefix = false;
  model.escape_whitespaces = false;
  const auto read = ReadSentencePieceModel(ModelFile(model));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->pieces.size(), model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    EXPECT_EQ(read->pieces[i].text, model.pieces[i].text);
    EXPECT_EQ(read->pieces[i].score, model.pieces[i].score);
    EXPECT_EQ(read->pieces[i].type, model.pieces[i].type);
  }
  EXPECT_EQ(read->unknown_surface, "?");
  EXPECT_FALSE(read->add_dummy_prefix);
  EXPECT_FALSE(read->remove_extra_whitespaces);
  EXPECT_FALSE(read->escape_whitespaces);
}

TEST(SentencePieceModel, HasTheDefaultsOfTheFormat) {
  // One unknown piece, and model_type 2.
  const auto read = ReadSentencePieceModel("\x0A\x09\x0A\x05<unk>\x18\x02\x12\x02\x18\x02");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->add_dummy_prefix);
  EXPECT_TRUE(read->remove_extra_whitespaces);
  EXPECT_TRUE(read->escape_whitespaces);
  EXPECT_FALSE(read->byte_fallback);
  EXPECT_EQ(read->unknown_surface, " \u2047 ");
}

TEST(SentencePieceModel, RefusesWhatItDoesNotImplement) {
  EXPECT_THAT(RefusalOf("\x12\x02\x18\x01"), HasSubstr("model_type is 1; supported: 2"));
  EXPECT_THAT(RefusalOf("\x1A\x03\x12\x01x"), HasSubstr("normalizer_spec.precompiled_charsmap"));
  EXPECT_THAT(RefusalOf("\x2A\x03\x12\x01x"), HasSubstr("denormalizer_spec.precompiled_charsmap"));
  EXPECT_THAT(RefusalOf("\x12\x03\xC0\x01\x01"), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(std::string(ReadSentencePieceModel("").status().message()),
              HasSubstr("model_type is 1"));
}

TEST(SentencePieceModel, RefusesBrokenPieces) {
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[4].text = "x"; }), HasSubstr("of type byte"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces.erase(m->pieces.begin() + 9); }),
              HasSubstr("is byte 5"));
  EXPECT_THAT(Refusal([](auto* m) { m->byte_fallback = false; }), HasSubstr("byte_fallback"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[1].type = Type::kUnknown; }),
              HasSubstr("second unknown"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[0].type = Type::kControl; }), HasSubstr("unknown"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[261].text = "he"; }), HasSubstr("another piece"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[261].text = ""; }),
              HasSubstr("pieces[261].piece is empty"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[261].text = "\xFF"; }), HasSubstr("not UTF-8"));
  EXPECT_THAT(Refusal([](auto* m) { m->pieces[261].type = static_cast<Type>(7); }),
              HasSubstr("type is 7"));
  EXPECT_THAT(
      Refusal([](auto* m) { m->pieces[261].score = std::numeric_limits<float>::quiet_NaN(); }),
      HasSubstr("pieces[261].score"));
}

TEST(SentencePieceModel, RefusesWrongWireTypes) {
  EXPECT_THAT(RefusalOf("\x08\x01"), HasSubstr("field 1 of the file has wire type 0"));
  EXPECT_THAT(RefusalOf("\x0A\x02\x08\x01"), HasSubstr(".piece has wire type 0"));
}

}  // namespace
}  // namespace eddy
