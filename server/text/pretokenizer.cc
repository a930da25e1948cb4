#include "server/text/pretokenizer.h"

#include <algorithm>
#include <string_view>

#include "base/status.h"
#include "server/text/byte_alphabet.h"

namespace eddy {
namespace {

// A part of a piece, matched by the pattern or not.
struct Part {
  Match range;
  bool matched = false;
};

// Matches and what lies between them, in order and without gaps.
std::vector<Part> AllParts(const std::vector<Match>& matches, size_t size, bool invert) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const Match& match : matches) {
    if (done < match.begin) {
      parts.push_back({.range = {.begin = done, .end = match.begin}, .matched = invert});
    }
    parts.push_back({.range = match, .matched = !invert});
    done = match.end;
  }
  if (done < size) parts.push_back({.range = {.begin = done, .end = size}, .matched = invert});
  return parts;
}

// Joins each part to the one before it where `join` (of the two) says so.
template <typename Join>
std::vector<Part> JoinParts(const std::vector<Part>& parts, Join join) {
  std::vector<Part> joined;
  bool previous = false;
  for (const Part& part : parts) {
    if (!joined.empty() && join(previous, part.matched)) {
      joined.back().range.begin = std::min(joined.back().range.begin, part.range.begin);
      joined.back().range.end = std::max(joined.back().range.end, part.range.end);
    } else {
      joined.push_back(part);
    }
    previous = part.matched;
  }
  return joined;
}

std::vector<Part> Arrange(std::vector<Part> parts, SplitBehavior behavior) {
  const auto match_after_other = [](bool previous, bool matched) { return matched && !previous; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.matched; });
      return parts;
    case SplitBehavior::kIsolated:
      return parts;
    case SplitBehavior::kContiguous:
      return JoinParts(parts, [](bool previous, bool matched) { return matched == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return JoinParts(parts, match_after_other);
    case SplitBehavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      std::vector<Part> joined = JoinParts(parts, match_after_other);
      std::reverse(joined.begin(), joined.end());
      return joined;
    }
  }
  return parts;
}

absl::Status Apply(const SplitStep& step, Pieces* pieces) {
  std::vector<Piece> list;
  std::vector<Match> matches;
  for (const Piece& piece : pieces->list) {
    if (piece.id >= 0) {
      list.push_back(piece);
      continue;
    }
    EDDY_RETURN_IF_ERROR(step.pattern.FindAll(pieces->View(piece), &matches));
    const std::vector<Part> parts = AllParts(matches, piece.end - piece.begin, step.invert);
    for (const Part& part : Arrange(parts, step.behavior)) {
      if (part.range.begin == part.range.end) continue;
      list.push_back(
          {.begin = piece.begin + part.range.begin, .end = piece.begin + part.range.end});
    }
  }
  pieces->list = std::move(list);
  return absl::OkStatus();
}

// Calls write(piece, to) for each piece without an id; it writes what the piece becomes.
template <typename Write>
void Rewrite(Pieces* pieces, Write write) {
  PieceRewriter to(*pieces);
  for (const Piece& piece : pieces->list) {
    to.Begin(piece);
    if (piece.id >= 0) {
      to.Copy(piece.begin, piece.end);
    } else {
      write(piece, &to);
    }
    to.End();
  }
  *pieces = to.Finish();
}

absl::Status Apply(const PrefixSpaceStep&, Pieces* pieces) {
  Rewrite(pieces, [&](const Piece& piece, PieceRewriter* to) {
    if (pieces->text[piece.begin] != ' ') to->Append(" ", pieces->origin[piece.begin]);
    to->Copy(piece.begin, piece.end);
  });
  return absl::OkStatus();
}

absl::Status Apply(const ByteAlphabetStep&, Pieces* pieces) {
  Rewrite(pieces, [&](const Piece& piece, PieceRewriter* to) {
    for (size_t i = piece.begin; i < piece.end; ++i) {
      const std::string_view shown = CharacterOfByte(static_cast<uint8_t>(pieces->text[i]));
      to->Append(shown, pieces->origin[i]);
    }
  });
  return absl::OkStatus();
}

absl::Status Apply(const MetaspaceStep& step, Pieces* pieces) {
  Rewrite(pieces, [&](const Piece& piece, PieceRewriter* to) {
    const std::string_view text = pieces->View(piece);
    const bool prepend =
        step.prepend == MetaspaceStep::Prepend::kAlways ||
        (step.prepend == MetaspaceStep::Prepend::kFirst && pieces->origin[piece.begin] == 0);
    // A space in front has become the replacement by the time the front is looked at.
    if (prepend && text[0] != ' ' && !text.starts_with(step.replacement)) {
      to->Append(step.replacement, pieces->origin[piece.begin]);
    }
    for (size_t i = piece.begin; i < piece.end; ++i) {
      if (pieces->text[i] == ' ') {
        to->Append(step.replacement, pieces->origin[i]);
      } else {
        to->Copy(i, i + 1);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status PreTokenize(const std::vector<PreTokenizerStep>& steps, Pieces* pieces) {
  for (const PreTokenizerStep& step : steps) {
    EDDY_RETURN_IF_ERROR(std::visit([&](const auto& kind) { return Apply(kind, pieces); }, step));
  }
  return absl::OkStatus();
}

}  // namespace eddy
