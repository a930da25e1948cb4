// Reader of SentencePiece .model files (a protobuf ModelProto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eddy {

// What is in the file, as far as it tells how to encode and decode.
struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;  // by id
  int32_t unknown = -1;       // id of the one unknown piece
  bool byte_fallback = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  // what the unknown piece decodes to
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// InvalidArgument with field, value and what is supported: BPE without a character map. Pieces are
// unique in their kind, there is one unknown piece, and with byte_fallback all 256 bytes.
absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(std::string_view file_content);

}  // namespace eddy
