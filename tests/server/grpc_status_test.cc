// Proves what of an error goes over the wire: code, message, and google.rpc details that another
// reader of grpc-status-details-bin understands, all of it small enough for trailers.
#include "server/grpc_status.h"

#include <grpcpp/support/error_details.h>
#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/testing/rpc_details.h"

namespace eddy {
namespace {

TEST(GrpcStatus, CarriesReasonDomainAndMetadata) {
  const grpc::Status status = ToGrpcStatus(DeadlinePassed(Phase::kPrefill));
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "the call's deadline passed in phase prefill");
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason(), "DEADLINE");
  EXPECT_EQ(info->domain(), "eddy.v1");
  EXPECT_EQ(info->metadata().at("phase"), "prefill");
}

TEST(GrpcStatus, HasTheCodeReasonAndRetryOfEveryError) {
  struct Row {
    Error error;
    grpc::StatusCode code;
    const char* reason;
    bool retry;
  };
  const Row rows[] = {
      {ModelNotFound("a", "b"), grpc::NOT_FOUND, "MODEL_NOT_FOUND", false},
      {FeatureDisabled("sessions"), grpc::UNIMPLEMENTED, "FEATURE_DISABLED", false},
      {QueueFull("requests", 5, 5, absl::Milliseconds(700)), grpc::RESOURCE_EXHAUSTED, "QUEUE_FULL",
       true},
      {DeadlinePassed(Phase::kQueue), grpc::DEADLINE_EXCEEDED, "DEADLINE", false},
      {RequestTimePassed(absl::Minutes(10)), grpc::DEADLINE_EXCEEDED, "REQUEST_TIME_MAX", false},
      {Cancelled(), grpc::CANCELLED, "CANCELLED", false},
      {NotReady(), grpc::UNAVAILABLE, "NOT_READY", true},
      {Draining(), grpc::UNAVAILABLE, "DRAINING", true},
      {DrainTimeout(), grpc::UNAVAILABLE, "DRAIN_TIMEOUT", true},
      {DeviceLost("gone"), grpc::UNAVAILABLE, "DEVICE_LOST", true},
      {StateNotFinite({.layer = 2, .field = "s", .position = 7}), grpc::DATA_LOSS,
       "STATE_NOT_FINITE", false},
      {SlowReader(100), grpc::ABORTED, "SLOW_READER", false},
      {Internal("a bug"), grpc::INTERNAL, "INTERNAL", false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.reason);
    const grpc::Status status = ToGrpcStatus(row.error);
    EXPECT_EQ(status.error_code(), row.code);
    EXPECT_FALSE(status.error_message().empty());
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), row.reason);
    EXPECT_EQ(DetailOf<google::rpc::RetryInfo>(status).has_value(), row.retry);
  }
}

TEST(GrpcStatus, TellsWhenToRetry) {
  const grpc::Status status = ToGrpcStatus(QueueFull("requests", 9, 8, absl::Milliseconds(1700)));
  const auto retry = DetailOf<google::rpc::RetryInfo>(status);
  EXPECT_EQ(retry->retry_delay().seconds(), 1);
  EXPECT_EQ(retry->retry_delay().nanos(), 700000000);
}

TEST(GrpcStatus, NamesTheMissingResource) {
  const auto resource =
      DetailOf<google::rpc::ResourceInfo>(ToGrpcStatus(ModelNotFound("big", "small")));
  EXPECT_EQ(resource->resource_type(), "eddy.v1/Model");
  EXPECT_EQ(resource->resource_name(), "big");
}

TEST(GrpcStatus, ListsAllFaults) {
  Faults faults;
  faults.Add("a", "a is wrong");
  faults.Add("b", "b is wrong");
  const auto bad = DetailOf<google::rpc::BadRequest>(ToGrpcStatus(faults.ToError()));
  ASSERT_EQ(bad->field_violations_size(), 2);
  EXPECT_EQ(bad->field_violations(0).field(), "a");
  EXPECT_EQ(bad->field_violations(1).description(), "b is wrong");
}

TEST(GrpcStatus, StaysSmallWhateverItSaysAndTellsHowMuchIsLeftOut) {
  Faults faults;
  for (int i = 0; i < 1000; ++i) {
    faults.Add("field_" + std::to_string(i), std::string(2000, 'x') + "\xc3\xa9");
  }
  const grpc::Status status = ToGrpcStatus(faults.ToError());
  EXPECT_LT(status.error_details().size(), 4096u);
  EXPECT_LE(status.error_message().size(), 512u);
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  const int told = bad->field_violations_size() - 1;
  EXPECT_GT(told, 3);
  EXPECT_EQ(bad->field_violations(told).description(),
            "and " + std::to_string(1000 - told) + " more");
}

TEST(GrpcStatus, StaysSmallWithLongMetadata) {
  Error error = ModelNotFound(std::string(100000, 'm'), "x");
  error.metadata = {{"key", std::string(100000, 'v')}};
  EXPECT_LT(ToGrpcStatus(error).error_details().size(), 4096u);
}

TEST(Faults, BearTheirOwnReasonOnlyWhenNothingElseIsWrong) {
  Faults faults;
  faults.Add("PROMPT_EMPTY", "text", "text: the prompt is empty", {{"k", "v"}});
  EXPECT_EQ(faults.ToError().reason, "PROMPT_EMPTY");
  EXPECT_EQ(faults.ToError().metadata.size(), 1u);
  faults.Add("priority", "priority is 1000");
  EXPECT_EQ(faults.ToError().reason, "INVALID_FIELD");
  EXPECT_TRUE(faults.ToError().metadata.empty());
  EXPECT_EQ(faults.ToError().message, "text: the prompt is empty; priority is 1000");
}

TEST(Errors, ShowTextsFromOutsideInQuotesAndCutShort) {
  EXPECT_EQ(Shown("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(Shown(std::string(100, 'x')), "\"" + std::string(64, 'x') + "\"...");
}

}  // namespace
}  // namespace eddy
