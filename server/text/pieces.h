// Text on its way to tokens: changed by normalisers, cut by pre-tokenizers, and each byte still
// knowing where in the original it comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace eddy {

// A part of the text, [begin, end) in bytes. Parts that are a token already have its id.
struct Piece {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

struct Pieces {
  Pieces() = default;
  explicit Pieces(std::string_view original);

  std::string_view View(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }

  std::string text;
  // [text.size() + 1], never falling: the place in the original where text[i] begins.
  std::vector<uint32_t> origin;
  // In order, apart; text between them is dropped. None without an id is empty.
  std::vector<Piece> list;
};

// Writes changed text. Every piece of `from` is begun and ended in order; what lies between pieces
// is copied.
class PieceRewriter {
 public:
  explicit PieceRewriter(const Pieces& from) : from_(from) {}
  void Begin(const Piece& piece);
  // New text that stands for the original from there on.
  void Append(std::string_view text, uint32_t origin);
  // from.text[begin, end) as it is.
  void Copy(size_t begin, size_t end);
  void End();
  Pieces Finish();

 private:
  const Pieces& from_;
  Pieces to_;
  Piece piece_;
  size_t begin_ = 0;
  size_t copied_ = 0;  // end of the last piece in from_
};

}  // namespace eddy
