// Finds the first of some strings in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eddy {

// Text that may be the beginning of a stop string is held back until it is known not to be. O(1)
// amortised per byte, whatever the number of strings. One thread.
class StopMatcher {
 public:
  // `include`: the stop string itself is given out too. REQUIRES: no string is empty.
  StopMatcher(std::vector<std::string> stop_strings, bool include);

  // Appends to `out` the text that is certainly before any stop string. True: a stop string is
  // complete (index in matched()), `out` has all there is to give, and nothing may follow. Of stop
  // strings that end at the same byte the longest counts.
  bool Put(std::string_view text, std::string* out);
  // Appends what was held back; no stop string can follow any more.
  void Flush(std::string* out);
  std::optional<int> matched() const { return matched_; }

 private:
  // A state of the Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", 1975):
  // some beginning of a stop string.
  struct Node {
    std::vector<std::pair<char, int>> next = {};
    int fail = 0;     // the longest proper suffix that is a state too
    int depth = 0;    // length in bytes
    int string = -1;  // the longest stop string that ends here, or -1
  };
  int Child(int node, char c) const;
  int Step(int node, char c) const;
  void Add(int string);
  void LinkFailures();

  std::vector<std::string> strings_;
  bool include_;
  std::vector<Node> nodes_;
  int state_ = 0;
  // held_[given_..] is what is held back: as many bytes as the state is deep.
  std::string held_;
  size_t given_ = 0;
  std::optional<int> matched_;
};

}  // namespace eddy
