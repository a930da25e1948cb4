#include "server/text/decode_steps.h"

#include "base/check.h"
#include "base/utf8.h"
#include "server/text/byte_alphabet.h"

namespace eddy {
namespace {

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return result.append(text.substr(done));
}

class TextEnd : public DecodeStage {
 public:
  explicit TextEnd(std::string* text) : text_(text) {}
  void Put(std::string_view token) override { text_->append(token); }
  void Flush() override {}

 private:
  std::string* text_;
};

class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(const ReplaceInTokens& step, DecodeStage* next) : step_(step), next_(next) {}
  void Put(std::string_view token) override { next_->Put(ReplaceAll(token, step_.from, step_.to)); }
  void Flush() override { next_->Flush(); }

 private:
  ReplaceInTokens step_;
  DecodeStage* next_;
};

class ByteNameStage : public DecodeStage {
 public:
  explicit ByteNameStage(DecodeStage* next) : next_(next) {}
  void Put(std::string_view token) override {
    const std::optional<uint8_t> byte = ByteOfName(token);
    if (!byte.has_value()) {
      EndRun();
      next_->Put(token);
    } else if (broken_) {
      next_->Put(kReplacementCharacter);
    } else {
      run_.push_back(static_cast<char>(*byte));
      if (scanner_.Put(*byte) == Utf8Scanner::Result::kInvalid) Break();
    }
  }
  void Flush() override {
    EndRun();
    next_->Flush();
  }

 private:
  // The run is not UTF-8 and will not become so: what was held back is certain now.
  void Break() {
    for (size_t i = 0; i < run_.size(); ++i) next_->Put(kReplacementCharacter);
    run_.clear();
    broken_ = true;
  }
  void EndRun() {
    if (scanner_.pending() > 0) Break();
    if (!run_.empty()) next_->Put(run_);
    run_.clear();
    scanner_.Reset();
    broken_ = false;
  }

  DecodeStage* next_;
  Utf8Scanner scanner_;
  std::string run_;      // held back
  bool broken_ = false;  // the run so far is not UTF-8
};

// Strip for tokens that come whole.
class StripStage : public DecodeStage {
 public:
  StripStage(const StripTokens& step, DecodeStage* next) : step_(step), next_(next) {}
  void Put(std::string_view token) override {
    const std::string_view character = step_.character;
    for (int i = 0; i < step_.start && token.starts_with(character); ++i) {
      token.remove_prefix(character.size());
    }
    for (int i = 0; i < step_.stop && token.ends_with(character); ++i) {
      token.remove_suffix(character.size());
    }
    next_->Put(token);
  }
  void Flush() override { next_->Flush(); }

 private:
  StripTokens step_;
  DecodeStage* next_;
};

// Strip for one text that comes in parts. What may be stripped at the end is held back.
class StripTextStage : public DecodeStage {
 public:
  StripTextStage(const StripTokens& step, DecodeStage* next)
      : step_(step), next_(next), start_(step.start) {}
  void Put(std::string_view part) override {
    const std::string_view character = step_.character;
    while (start_ > 0 && part.starts_with(character)) {
      part.remove_prefix(character.size());
      --start_;
    }
    if (part.empty()) return;
    start_ = 0;
    std::string_view body = part;
    int trailing = 0;
    while (trailing < step_.stop && body.ends_with(character)) {
      body.remove_suffix(character.size());
      ++trailing;
    }
    if (!body.empty()) {
      Give(held_);
      held_ = 0;
      next_->Put(body);
    }
    held_ += trailing;
    if (held_ > step_.stop) Give(held_ - step_.stop);
    held_ = std::min(held_, step_.stop);
  }
  void Flush() override { next_->Flush(); }

 private:
  void Give(int count) {
    for (int i = 0; i < count; ++i) next_->Put(step_.character);
  }
  StripTokens step_;
  DecodeStage* next_;
  int start_;     // how many may still be stripped from the front
  int held_ = 0;  // how many may be stripped from the end if nothing else follows
};

class SpaceMarkStage : public DecodeStage {
 public:
  SpaceMarkStage(const SpacesFromMarks& step, DecodeStage* next) : step_(step), next_(next) {}
  void Put(std::string_view token) override {
    const bool drop = first_ && step_.drop_first;
    first_ = false;
    next_->Put(ReplaceAll(token, step_.replacement, drop ? "" : " "));
  }
  void Flush() override { next_->Flush(); }

 private:
  SpacesFromMarks step_;
  DecodeStage* next_;
  bool first_ = true;
};

class ByteAlphabetStage : public DecodeStage {
 public:
  explicit ByteAlphabetStage(DecodeStage* next) : next_(next) {}
  void Put(std::string_view token) override {
    std::string text;
    for (const char c : BytesOfToken(token)) repair_.Put(static_cast<uint8_t>(c), &text);
    if (!text.empty()) next_->Put(text);
  }
  void Flush() override {
    std::string text;
    repair_.Flush(&text);
    if (!text.empty()) next_->Put(text);
    next_->Flush();
  }

 private:
  DecodeStage* next_;
  Utf8Repair repair_{/*per_byte=*/false};
};

class JoinStage : public DecodeStage {
 public:
  explicit JoinStage(DecodeStage* next) : next_(next) {}
  void Put(std::string_view token) override {
    if (!first_) next_->Put(" ");
    first_ = false;
    next_->Put(token);
  }
  void Flush() override { next_->Flush(); }

 private:
  DecodeStage* next_;
  bool first_ = true;
};

class FuseStage : public DecodeStage {
 public:
  explicit FuseStage(DecodeStage* next) : next_(next) {}
  void Put(std::string_view token) override { next_->Put(token); }
  void Flush() override { next_->Flush(); }

 private:
  DecodeStage* next_;
};

// Makes the stage of each kind of step; `in_parts` tells what comes to it.
struct StageMaker {
  bool in_parts;
  DecodeStage* next;
  using Made = std::unique_ptr<DecodeStage>;
  Made operator()(const ReplaceInTokens& step) const {
    return std::make_unique<ReplaceStage>(step, next);
  }
  Made operator()(const BytesFromNames&) const { return std::make_unique<ByteNameStage>(next); }
  Made operator()(const Fuse&) const { return std::make_unique<FuseStage>(next); }
  Made operator()(const StripTokens& step) const {
    if (in_parts) return std::make_unique<StripTextStage>(step, next);
    return std::make_unique<StripStage>(step, next);
  }
  Made operator()(const SpacesFromMarks& step) const {
    return std::make_unique<SpaceMarkStage>(step, next);
  }
  Made operator()(const BytesFromAlphabet&) const {
    return std::make_unique<ByteAlphabetStage>(next);
  }
  Made operator()(const JoinWithSpaces&) const { return std::make_unique<JoinStage>(next); }
};

}  // namespace

std::optional<uint8_t> ByteOfName(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

bool WorksOnParts(const DecodeStep& step) {
  if (const auto* replace = std::get_if<ReplaceInTokens>(&step)) {
    return ReadUtf8(replace->from, 0).size == replace->from.size();
  }
  return std::holds_alternative<StripTokens>(step) || std::holds_alternative<Fuse>(step);
}

bool MakesOneToken(const DecodeStep& step) {
  return std::holds_alternative<Fuse>(step) || std::holds_alternative<BytesFromAlphabet>(step);
}

DecodeChain::DecodeChain(const std::vector<DecodeStep>& steps, std::string* text) {
  stages_.push_back(std::make_unique<TextEnd>(text));
  size_t whole = 0;  // steps in front of which tokens come whole
  while (whole < steps.size() && !MakesOneToken(steps[whole])) ++whole;
  for (size_t i = steps.size(); i-- > 0;) {
    const bool in_parts = i > whole;
    EDDY_CHECK(!in_parts || WorksOnParts(steps[i]));
    stages_.push_back(
        std::visit(StageMaker{.in_parts = in_parts, .next = stages_.back().get()}, steps[i]));
  }
  first_ = stages_.back().get();
}

}  // namespace eddy
