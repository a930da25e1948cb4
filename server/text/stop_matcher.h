// Finds the first of some strings in text that arrives in pieces.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eddy {

// Text that may be the beginning of a stop string is held back until it is known not to be. O(1)
// amortised per byte, whatever the number of strings. One thread.
class StopMatcher {
 public:
  // `include`: the stop string itself is given out too.
  StopMatcher(std::vector<std::string> stop_strings, bool include);

  // Appends to `out` the text that is certainly before any stop string. True: a stop string is
  // complete (index in matched()), `out` has all there is to give, and nothing may follow. Of stop
  // strings that end at the same byte the longest counts.
  bool Put(std::string_view text, std::string* out);
  // Appends what was held back; no stop string can follow any more.
  void Flush(std::string* out);
  std::optional<int> matched() const { return matched_; }

 private:
  struct Node;
  std::vector<std::string> strings_;
  bool include_;
  std::vector<Node> nodes_;  // an Aho-Corasick automaton
  int state_ = 0;
  std::string held_;
  std::optional<int> matched_;
};

}  // namespace eddy
