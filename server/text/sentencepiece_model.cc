#include "server/text/sentencepiece_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/utf8.h"
#include "server/text/decode_steps.h"
#include "server/text/wire_reader.h"

namespace eddy {
namespace {

using Field = WireReader::Field;
using WireType = WireReader::Type;

constexpr size_t kPiecesMax = 1 << 24;

absl::Status Expect(const Field& field, WireType type, const std::string& name) {
  if (field.type == type) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " has wire type ", static_cast<int>(field.type), ", not ", static_cast<int>(type)));
}

// Calls read(field) for each field of a message.
template <typename Read>
absl::Status ReadFields(std::string_view message, Read read) {
  WireReader reader(message);
  while (!reader.AtEnd()) {
    EDDY_ASSIGN_OR_RETURN(const Field field, reader.Next());
    EDDY_RETURN_IF_ERROR(read(field));
  }
  return absl::OkStatus();
}

absl::Status ReadBool(const Field& field, const std::string& name, bool* value) {
  EDDY_RETURN_IF_ERROR(Expect(field, WireType::kVarint, name));
  *value = field.value != 0;
  return absl::OkStatus();
}

absl::StatusOr<SentencePieceModel::Piece> ReadPiece(std::string_view message, size_t id) {
  SentencePieceModel::Piece piece;
  const std::string name = absl::StrCat("pieces[", id, "]");
  const auto read = [&](const Field& field) -> absl::Status {
    if (field.number == 1) {
      EDDY_RETURN_IF_ERROR(Expect(field, WireType::kBytes, name + ".piece"));
      piece.text = field.bytes;
    } else if (field.number == 2) {
      EDDY_RETURN_IF_ERROR(Expect(field, WireType::kFixed32, name + ".score"));
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    } else if (field.number == 3) {
      EDDY_RETURN_IF_ERROR(Expect(field, WireType::kVarint, name + ".type"));
      if (field.value < 1 || field.value > 6) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ".type is ", field.value, "; supported: 1 to 6"));
      }
      piece.type = static_cast<SentencePieceModel::Type>(field.value);
    }
    return absl::OkStatus();
  };
  EDDY_RETURN_IF_ERROR(ReadFields(message, read));
  if (piece.text.empty()) return absl::InvalidArgumentError(name + ".piece is empty");
  if (!IsUtf8(piece.text)) return absl::InvalidArgumentError(name + ".piece is not UTF-8");
  if (!std::isfinite(piece.score)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".score is ", piece.score, "; expected a finite number"));
  }
  return piece;
}

absl::Status ReadTrainerSpec(std::string_view message, SentencePieceModel* model,
                             uint64_t* model_type) {
  return ReadFields(message, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 3:
        EDDY_RETURN_IF_ERROR(Expect(field, WireType::kVarint, "trainer_spec.model_type"));
        *model_type = field.value;
        return absl::OkStatus();
      case 24: {
        bool suffix = false;
        EDDY_RETURN_IF_ERROR(ReadBool(field, "trainer_spec.treat_whitespace_as_suffix", &suffix));
        if (!suffix) return absl::OkStatus();
        return absl::InvalidArgumentError(
            "trainer_spec.treat_whitespace_as_suffix is true; supported: false");
      }
      case 35:
        return ReadBool(field, "trainer_spec.byte_fallback", &model->byte_fallback);
      case 44:
        EDDY_RETURN_IF_ERROR(Expect(field, WireType::kBytes, "trainer_spec.unk_surface"));
        if (!IsUtf8(field.bytes)) {
          return absl::InvalidArgumentError("trainer_spec.unk_surface is not UTF-8");
        }
        model->unknown_surface = field.bytes;
        return absl::OkStatus();
      default:  // how it was trained
        return absl::OkStatus();
    }
  });
}

// `name` is normalizer_spec or denormalizer_spec; the latter has `model` null, for only its map
// counts.
absl::Status ReadNormalizerSpec(std::string_view message, const std::string& name,
                                SentencePieceModel* model) {
  return ReadFields(message, [&](const Field& field) -> absl::Status {
    if (field.number == 2) {
      EDDY_RETURN_IF_ERROR(Expect(field, WireType::kBytes, name + ".precompiled_charsmap"));
      if (field.bytes.empty()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".precompiled_charsmap has ", field.bytes.size(),
                       " bytes; supported: none (the identity normalizer)"));
    }
    if (model == nullptr) return absl::OkStatus();
    if (field.number == 3) {
      return ReadBool(field, name + ".add_dummy_prefix", &model->add_dummy_prefix);
    }
    if (field.number == 4) {
      return ReadBool(field, name + ".remove_extra_whitespaces", &model->remove_extra_whitespaces);
    }
    if (field.number == 5) {
      return ReadBool(field, name + ".escape_whitespaces", &model->escape_whitespaces);
    }
    return absl::OkStatus();
  });
}

absl::Status CheckPieces(SentencePieceModel* model) {
  using Type = SentencePieceModel::Type;
  absl::flat_hash_set<absl::string_view> ordinary, reserved;
  std::array<bool, 256> bytes = {};
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model->pieces[id];
    const std::string name = absl::StrCat("pieces[", id, "].piece is \"", piece.text, "\"");
    const bool is_ordinary = piece.type == Type::kNormal || piece.type == Type::kUserDefined ||
                             piece.type == Type::kUnused;
    if (!(is_ordinary ? ordinary : reserved).insert(piece.text).second) {
      return absl::InvalidArgumentError(name + ", which another piece is too");
    }
    if (piece.type == Type::kUnknown) {
      if (model->unknown >= 0) return absl::InvalidArgumentError(name + ", a second unknown one");
      model->unknown = static_cast<int32_t>(id);
    }
    if (piece.type == Type::kByte) {
      const std::optional<uint8_t> byte = ByteOfName(piece.text);
      if (!byte.has_value() || !model->byte_fallback) {
        return absl::InvalidArgumentError(
            name + " of type byte; expected <0x00> to <0xFF> and trainer_spec.byte_fallback");
      }
      bytes[*byte] = true;
    }
  }
  if (model->unknown < 0) return absl::InvalidArgumentError("no piece has type 2, unknown");
  for (int byte = 0; model->byte_fallback && byte < 256; ++byte) {
    if (bytes[byte]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("trainer_spec.byte_fallback is true, but no piece is byte ", byte));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(std::string_view file_content) {
  SentencePieceModel model;
  uint64_t model_type = 1;  // when absent
  const auto read = [&](const Field& field) -> absl::Status {
    if (field.number < 1 || field.number > 5) return absl::OkStatus();
    EDDY_RETURN_IF_ERROR(
        Expect(field, WireType::kBytes, absl::StrCat("field ", field.number, " of the file")));
    if (field.number == 1) {
      if (model.pieces.size() == kPiecesMax) {
        return absl::InvalidArgumentError(absl::StrCat("more than ", kPiecesMax, " pieces"));
      }
      EDDY_ASSIGN_OR_RETURN(SentencePieceModel::Piece piece,
                            ReadPiece(field.bytes, model.pieces.size()));
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      return ReadTrainerSpec(field.bytes, &model, &model_type);
    } else if (field.number == 3) {
      return ReadNormalizerSpec(field.bytes, "normalizer_spec", &model);
    } else if (field.number == 5) {
      return ReadNormalizerSpec(field.bytes, "denormalizer_spec", nullptr);
    }
    return absl::OkStatus();  // 4 holds the writer's own tests
  };
  EDDY_RETURN_IF_ERROR(ReadFields(file_content, read));
  if (model_type != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("trainer_spec.model_type is ", model_type, "; supported: 2 (BPE)"));
  }
  EDDY_RETURN_IF_ERROR(CheckPieces(&model));
  return model;
}

}  // namespace eddy
