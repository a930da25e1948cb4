#include "server/text/stop_matcher.h"

#include <deque>

#include "base/check.h"

namespace eddy {

StopMatcher::StopMatcher(std::vector<std::string> stop_strings, bool include)
    : strings_(std::move(stop_strings)), include_(include), nodes_(1) {
  for (size_t i = 0; i < strings_.size(); ++i) Add(static_cast<int>(i));
  LinkFailures();
}

int StopMatcher::Child(int node, char c) const {
  for (const auto& [key, child] : nodes_[node].next) {
    if (key == c) return child;
  }
  return -1;
}

void StopMatcher::Add(int string) {
  EDDY_CHECK(!strings_[string].empty());
  int node = 0;
  for (const char c : strings_[string]) {
    int child = Child(node, c);
    if (child < 0) {
      child = static_cast<int>(nodes_.size());
      nodes_.push_back({.depth = nodes_[node].depth + 1});
      nodes_[node].next.emplace_back(c, child);
    }
    node = child;
  }
  if (nodes_[node].string < 0) nodes_[node].string = string;
}

int StopMatcher::Step(int node, char c) const {
  while (true) {
    const int child = Child(node, c);
    if (child >= 0) return child;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

void StopMatcher::LinkFailures() {
  // By growing depth, so that the failure link of a node's parent is there before its own.
  std::deque<int> todo = {0};
  while (!todo.empty()) {
    const int node = todo.front();
    todo.pop_front();
    for (const auto& [c, child] : nodes_[node].next) {
      Node& below = nodes_[child];
      below.fail = node == 0 ? 0 : Step(nodes_[node].fail, c);
      // The node's own string is longer than any that ends in it, so it goes first.
      if (below.string < 0) below.string = nodes_[below.fail].string;
      todo.push_back(child);
    }
  }
}

bool StopMatcher::Put(std::string_view text, std::string* out) {
  EDDY_CHECK(!matched_.has_value());
  for (const char c : text) {
    held_.push_back(c);
    state_ = Step(state_, c);
    const int string = nodes_[state_].string;
    if (string < 0) continue;
    matched_ = string;
    const size_t end = include_ ? held_.size() : held_.size() - strings_[string].size();
    out->append(held_, given_, end - given_);
    held_.clear();
    given_ = 0;
    return true;
  }
  const size_t certain = held_.size() - static_cast<size_t>(nodes_[state_].depth);
  out->append(held_, given_, certain - given_);
  given_ = certain;
  // What was given out is dropped when it is the larger half, so that each byte moves O(1) times.
  if (given_ * 2 >= held_.size()) {
    held_.erase(0, given_);
    given_ = 0;
  }
  return false;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_, given_);
  held_.clear();
  given_ = 0;
  state_ = 0;
}

}  // namespace eddy
