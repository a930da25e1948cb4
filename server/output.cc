#include "server/output.h"

#include <iterator>
#include <utility>

namespace eddy {
namespace {

template <typename T>
void MoveBehind(std::vector<T>* to, std::vector<T> from) {
  if (to->empty()) {
    *to = std::move(from);
  } else {
    to->insert(to->end(), std::make_move_iterator(from.begin()),
               std::make_move_iterator(from.end()));
  }
}

int64_t BytesOf(const std::vector<TokenReport>& reports) {
  size_t bytes = 0;
  for (const TokenReport& report : reports) {
    bytes += sizeof(TokenReport) + report.top.size() * sizeof(Candidate);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

int64_t Output::bytes() const {
  size_t bytes = text.size() + next.size() * sizeof(float) + next_top.size() * sizeof(Candidate);
  if (prompt != nullptr) {
    bytes += sizeof(PromptFacts) + prompt->ids.size() * sizeof(int32_t) +
             (prompt->text.has_value() ? prompt->text->size() : 0);
  }
  return static_cast<int64_t>(bytes) + BytesOf(tokens) + BytesOf(scored);
}

void Output::Append(Output later) {
  num_tokens += later.num_tokens;
  if (text.empty()) {
    text = std::move(later.text);
  } else {
    text += later.text;
  }
  MoveBehind(&tokens, std::move(later.tokens));
  MoveBehind(&scored, std::move(later.scored));
  MoveBehind(&next, std::move(later.next));
  MoveBehind(&next_top, std::move(later.next_top));
  if (later.prompt != nullptr) prompt = std::move(later.prompt);
  if (later.finish.has_value()) {
    finish = std::move(later.finish);
    tally = later.tally;
  }
}

}  // namespace eddy
