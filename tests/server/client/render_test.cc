// Proves that an error shows code, reason, metadata and every fault, for people and as JSON.
#include "server/client/render.h"

#include <grpcpp/support/error_details.h>

#include <nlohmann/json.hpp>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::IsEmpty;

TEST_F(ClientTest, ShowsReasonMetadataAndEveryFault) {
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
  status.set_message("2 faults");
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_FIELD");
  info.set_domain("eddy.v1");
  (*info.mutable_metadata())["limit"] = "7";
  status.add_details()->PackFrom(info);
  status.add_details()->PackFrom(FromJson<google::rpc::BadRequest>(
      R"({"fieldViolations": [{"field": "sampling.top_p", "description": "is 2, at most 1"},
                              {"field": "priority", "description": "is 101, at most 100"}]})"));
  status.add_details()->PackFrom(FromJson<google::rpc::RetryInfo>(R"({"retryDelay": "0.7s"})"));
  grpc::SetErrorDetails(status, &generation_.status);
  EXPECT_EQ(Run({"score", "--prompt=x"}), 13);
  EXPECT_EQ(err(),
            "eddy: INVALID_ARGUMENT INVALID_FIELD: 2 faults\n  limit: 7\n"
            "  sampling.top_p: is 2, at most 1\n  priority: is 101, at most 100\n"
            "  retry after: 700ms\n");
  EXPECT_EQ(Run({"score", "--prompt=x", "--output=json"}), 13);
  const nlohmann::json error = nlohmann::json::parse(err());
  EXPECT_EQ(error["code"], 3);
  EXPECT_EQ(error["details"][0]["reason"], "INVALID_FIELD");
  EXPECT_THAT(out(), IsEmpty());
}

TEST(ToProto, KeepsEveryNanosecond) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Milliseconds(1500), absl::Hours(24), absl::Nanoseconds(1),
        absl::Seconds(3) - absl::Nanoseconds(1)}) {
    EXPECT_EQ(ToDuration(ToProto(duration)), duration);
    EXPECT_LT(ToProto(duration).nanos(), 1000000000);
  }
}

TEST(CodeName, KnowsEveryCode) {
  EXPECT_EQ(CodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(CodeName(grpc::StatusCode::DATA_LOSS), "DATA_LOSS");
  EXPECT_EQ(CodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(grpc::StatusCode::DO_NOT_USE), "code -1");
}

}  // namespace
}  // namespace eddy::client
