// Proves which spans a call has, when they begin and end, and what they tell, on clocks that stand
// still until they are told.
#include "server/trace_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "server/ids.h"
#include "tests/testing/fake_clock.h"

namespace eddy {
namespace {

using ::testing::ElementsAre;

CallRecord SomeCall(Phase phase) {
  return {
      .place = PlaceInTrace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1", 1),
      .service = "eddy.v1.GenerationService",
      .method = "GenerateStream",
      .request_id = "r-1",
      .start = absl::FromUnixMillis(1000),
      .duration = absl::Milliseconds(500),
      .for_engine = true,
      .max_new_tokens = 9,
      .finish = FinishReason::kEos,
      .tally = {.prompt_tokens = 12,
                .generated_tokens = 7,
                .timings = {.queue = absl::Milliseconds(20),
                            .prefill = absl::Milliseconds(100),
                            .decode = absl::Milliseconds(300),
                            .prefill_steps = 2,
                            .decode_steps = 7},
                .phase = phase}};
}

std::vector<std::string> Names(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

// Start and end in milliseconds.
std::vector<std::pair<int64_t, int64_t>> Times(const std::vector<Span>& spans) {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const Span& span : spans) {
    times.emplace_back(span.start_ns / 1'000'000, span.end_ns / 1'000'000);
  }
  return times;
}

template <typename T>
T Value(const Span& span, std::string_view name) {
  for (const Attribute& attribute : span.attributes) {
    if (attribute.first == name) return std::get<T>(attribute.second);
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

bool Has(const Span& span, std::string_view name) {
  for (const Attribute& attribute : span.attributes) {
    if (attribute.first == name) return true;
  }
  return false;
}

TEST(CallTimer, GoesOnEvenlyWhenTheTimeIsSet) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  const CallTimer timer(&clock);
  clock.Advance(absl::Milliseconds(30));
  clock.Set(start - absl::Hours(1));
  clock.Advance(absl::Milliseconds(12));
  EXPECT_EQ(timer.start(), start);
  EXPECT_EQ(timer.elapsed(), absl::Milliseconds(42));
}

TEST(Spans, FollowEachOtherUnderTheRpc) {
  const CallRecord call = SomeCall(Phase::kDecode);
  const std::vector<Span> spans = SpansOf(call, "m");
  EXPECT_THAT(Names(spans), ElementsAre("eddy.v1.GenerationService/GenerateStream", "queue",
                                        "prefill", "decode", "delivery"));
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_THAT(Times(spans), ElementsAre(Pair(1000, 1500), Pair(1000, 1020), Pair(1020, 1120),
                                        Pair(1120, 1420), Pair(1420, 1500)));
  EXPECT_EQ(spans[0].kind, Span::Kind::kServer);
  EXPECT_EQ(spans[0].span_id, call.place.span_id);
  EXPECT_EQ(spans[0].parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(spans[0].remote_parent);
  for (const Span& span : spans) {
    EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_EQ(span.state, "a=1");
    EXPECT_FALSE(span.failed);
    if (&span == &spans[0]) continue;
    EXPECT_EQ(span.kind, Span::Kind::kInternal);
    EXPECT_EQ(span.parent_id, call.place.span_id);
    EXPECT_FALSE(span.remote_parent);
    EXPECT_NE(span.span_id, call.place.span_id);
  }
}

TEST(Spans, AreThoseThatTheCallCameTo) {
  CallRecord call = SomeCall(Phase::kPrefill);
  EXPECT_THAT(Names(SpansOf(call, "m")), ElementsAre("eddy.v1.GenerationService/GenerateStream",
                                                     "queue", "prefill", "delivery"));
  call.tally.phase = Phase::kQueue;
  EXPECT_THAT(Names(SpansOf(call, "m")),
              ElementsAre("eddy.v1.GenerationService/GenerateStream", "queue"));
  call.tally.phase = std::nullopt;
  EXPECT_THAT(Names(SpansOf(call, "m")), ElementsAre("eddy.v1.GenerationService/GenerateStream"));
}

TEST(Spans, AreAsManyAsIsSaid) {
  for (const std::optional<Phase> phase :
       {std::optional<Phase>(), std::optional(Phase::kQueue), std::optional(Phase::kPrefill),
        std::optional(Phase::kDecode)}) {
    CallRecord call = SomeCall(Phase::kQueue);
    call.tally.phase = phase;
    EXPECT_EQ(static_cast<size_t>(NumSpans(call)), SpansOf(call, "m").size());
  }
}

// Phases come from another clock than the call's length, so any numbers must do.
TEST(Spans, StayInOrderAndInsideTheCallWhateverThePhasesSay) {
  const uint64_t seed = RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto some_time = [&] {
    return absl::Milliseconds(static_cast<int64_t>(random() % 900) - 200);
  };
  for (int i = 0; i < 2000; ++i) {
    CallRecord call = SomeCall(Phase::kDecode);
    call.tally.timings.queue = i == 0 ? absl::InfiniteDuration() : some_time();
    call.tally.timings.prefill = some_time();
    call.tally.timings.decode = some_time();
    const std::vector<Span> spans = SpansOf(call, "m");
    int64_t at = spans[0].start_ns;
    for (size_t k = 1; k < spans.size(); ++k) {
      ASSERT_EQ(spans[k].start_ns, at);
      ASSERT_GE(spans[k].end_ns, at);
      at = spans[k].end_ns;
    }
    ASSERT_EQ(at, spans[0].end_ns);
  }
}

TEST(Spans, TellWhatTheConventionsName) {
  const std::vector<Span> spans = SpansOf(SomeCall(Phase::kDecode), "tales");
  const Span& rpc = spans[0];
  EXPECT_EQ(Value<std::string>(rpc, "rpc.system"), "grpc");
  EXPECT_EQ(Value<std::string>(rpc, "rpc.service"), "eddy.v1.GenerationService");
  EXPECT_EQ(Value<std::string>(rpc, "rpc.method"), "GenerateStream");
  EXPECT_EQ(Value<int64_t>(rpc, "rpc.grpc.status_code"), 0);
  EXPECT_EQ(Value<std::string>(rpc, "eddy.request_id"), "r-1");
  EXPECT_EQ(Value<std::string>(rpc, "gen_ai.operation.name"), "text_completion");
  EXPECT_EQ(Value<std::string>(rpc, "gen_ai.provider.name"), "eddy");
  EXPECT_EQ(Value<std::string>(rpc, "gen_ai.request.model"), "tales");
  EXPECT_EQ(Value<std::string>(rpc, "gen_ai.response.model"), "tales");
  EXPECT_EQ(Value<int64_t>(rpc, "gen_ai.request.max_tokens"), 9);
  EXPECT_EQ(Value<int64_t>(rpc, "gen_ai.usage.input_tokens"), 12);
  EXPECT_EQ(Value<int64_t>(rpc, "gen_ai.usage.output_tokens"), 7);
  EXPECT_THAT(Value<std::vector<std::string>>(rpc, "gen_ai.response.finish_reasons"),
              ElementsAre("eos"));
  EXPECT_FALSE(Has(rpc, "error.type"));
  EXPECT_EQ(Value<int64_t>(spans[2], "eddy.steps"), 2);
  EXPECT_EQ(Value<int64_t>(spans[3], "eddy.steps"), 7);
}

TEST(Spans, OfACallThatNeedsNoEngineTellNothingOfAModel) {
  const CallRecord call{.place = PlaceInTrace("", "", 1),
                        .service = "eddy.v1.ModelService",
                        .method = "GetModel",
                        .start = absl::FromUnixMillis(1),
                        .duration = absl::Milliseconds(1)};
  const std::vector<Span> spans = SpansOf(call, "tales");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].parent_id, "");
  EXPECT_FALSE(spans[0].remote_parent);
  EXPECT_FALSE(Has(spans[0], "gen_ai.operation.name"));
}

TEST(Spans, CallAFaultWhatIsTheServersOwn) {
  CallRecord call = SomeCall(Phase::kQueue);
  call.finish = std::nullopt;
  call.reason = "DRAINING";
  const std::map<absl::StatusCode, bool> faults = {
      {absl::StatusCode::kUnavailable, true},        {absl::StatusCode::kInternal, true},
      {absl::StatusCode::kDataLoss, true},           {absl::StatusCode::kDeadlineExceeded, true},
      {absl::StatusCode::kUnimplemented, true},      {absl::StatusCode::kInvalidArgument, false},
      {absl::StatusCode::kResourceExhausted, false}, {absl::StatusCode::kCancelled, false},
      {absl::StatusCode::kAborted, false},           {absl::StatusCode::kOk, false}};
  for (const auto& [code, fault] : faults) {
    call.code = code;
    const Span rpc = SpansOf(call, "m")[0];
    EXPECT_EQ(rpc.failed, fault) << absl::StatusCodeToString(code);
    EXPECT_EQ(Value<int64_t>(rpc, "rpc.grpc.status_code"), static_cast<int64_t>(code));
    EXPECT_EQ(Value<std::string>(rpc, "error.type"), "DRAINING");
  }
}

}  // namespace
}  // namespace eddy
