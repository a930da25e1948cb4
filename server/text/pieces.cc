#include "server/text/pieces.h"

#include <numeric>
#include <utility>

namespace eddy {

Pieces::Pieces(std::string_view original) : text(original), origin(original.size() + 1) {
  std::iota(origin.begin(), origin.end(), 0u);
  if (!text.empty()) list.push_back({.begin = 0, .end = text.size()});
}

void PieceRewriter::Begin(const Piece& piece) {
  Copy(copied_, piece.begin);
  piece_ = piece;
  begin_ = to_.text.size();
}

void PieceRewriter::Append(std::string_view text, uint32_t origin) {
  to_.text.append(text);
  to_.origin.resize(to_.text.size(), origin);
}

void PieceRewriter::Copy(size_t begin, size_t end) {
  to_.text.append(from_.text, begin, end - begin);
  to_.origin.insert(to_.origin.end(), from_.origin.begin() + static_cast<ptrdiff_t>(begin),
                    from_.origin.begin() + static_cast<ptrdiff_t>(end));
}

void PieceRewriter::End() {
  copied_ = piece_.end;
  const size_t end = to_.text.size();
  if (piece_.id < 0 && begin_ == end) return;
  to_.list.push_back({.begin = begin_, .end = end, .id = piece_.id});
}

Pieces PieceRewriter::Finish() {
  Copy(copied_, from_.text.size());
  to_.origin.push_back(from_.origin.back());
  return std::move(to_);
}

}  // namespace eddy
