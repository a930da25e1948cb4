// A small model and good requests to it, for tests that change one thing in them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/convert_generate.h"
#include "server/prompt.h"
#include "server/text/byte_tokenizer.h"

namespace eddy {

inline constexpr int32_t kVocab = 300;
inline constexpr int32_t kEos = 256;

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    model_.name = "tiny";
    model_.info.vocab_size = kVocab;
    model_.info.eos_tokens = {kEos};
    model_.capacity.slots = 4;
    model_.tokenizer = std::make_unique<ByteTokenizer>(kVocab, std::nullopt);
    model_.limits = {.max_prompt_tokens = 1000,
                     .max_new_tokens = 500,
                     .default_max_new_tokens = 50,
                     .max_logprob_entries = 100,
                     .max_request_time = absl::Minutes(10)};
    base_.set_text("Once");
    score_.mutable_token_ids()->add_ids(1);
    score_.mutable_token_ids()->add_ids(2);
  }

  std::optional<Error> Read(const v1::GenerateRequest& request) {
    call_ = {};
    return ReadGenerateRequest(request, model_, times_, {}, &call_);
  }
  std::optional<Error> Read(const v1::ScoreRequest& request) {
    call_ = {};
    return ReadScoreRequest(request, model_, times_, {}, &call_);
  }

  // One change to a good request, and the field that is then wrong; empty: none.
  struct Case {
    std::function<void(v1::GenerateRequest*)> change;
    std::string field;
  };
  void Check(const std::vector<Case>& cases) {
    for (size_t i = 0; i < cases.size(); ++i) {
      v1::GenerateRequest request = base_;
      cases[i].change(&request);
      SCOPED_TRACE("case " + std::to_string(i) + ": " + request.ShortDebugString());
      const std::optional<Error> error = Read(request);
      if (cases[i].field.empty()) {
        EXPECT_FALSE(error.has_value()) << error->message;
        continue;
      }
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code, absl::StatusCode::kInvalidArgument);
      ASSERT_EQ(error->faults.size(), 1u);
      EXPECT_EQ(error->faults[0].field, cases[i].field);
    }
  }

  ServedModel model_;
  const CallTimes times_{.arrival = absl::FromUnixSeconds(1000)};
  v1::GenerateRequest base_;
  v1::ScoreRequest score_;
  PlannedCall call_;
};

}  // namespace eddy
