// Proves that a request that does not parse is answered with what is wrong with it: every field
// that is no UTF-8 by name, with a bound on what is told, or that it is malformed.
#include "server/wire.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "eddy/v1/generation.pb.h"

namespace eddy {
namespace {

// The library would write a line for each string that is no UTF-8.
[[maybe_unused]] const bool kQuiet = (google::protobuf::SetLogHandler(nullptr), true);

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(Wire, ReadsBackWhatItWrote) {
  v1::GenerateRequest request;
  request.set_text("Zürich");
  request.mutable_sampling()->set_seed(7);
  v1::GenerateRequest read;
  EXPECT_FALSE(ReadMessage(WriteMessage(request), &read).has_value());
  EXPECT_EQ(read.text(), "Zürich");
  EXPECT_EQ(read.sampling().seed(), 7u);
}

TEST(Wire, ReadsAnEmptyMessage) {
  v1::GenerateRequest read;
  EXPECT_FALSE(ReadMessage(WriteMessage(read), &read).has_value());
}

TEST(Wire, NamesAllStringsThatAreNotUtf8) {
  v1::GenerateRequest request;
  request.set_model("fine");
  request.set_text("broken \xff text");
  request.mutable_stopping()->add_stop_strings("ok");
  request.mutable_stopping()->add_stop_strings("\xc3");
  v1::GenerateRequest read;
  const std::optional<Error> error = ReadMessage(Buffer(request.SerializeAsString()), &read);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error->reason, "INVALID_FIELD");
  ASSERT_EQ(error->faults.size(), 2u);
  EXPECT_EQ(error->faults[0].field, "text");
  EXPECT_EQ(error->faults[1].field, "stopping.stop_strings");
}

// A list of wrong texts costs a byte or two each to send; to describe them all would cost hundreds.
TEST(Wire, DescribesAFewOfManyStringsThatAreNotUtf8) {
  v1::GenerateRequest request;
  for (int i = 0; i < 100000; ++i) request.mutable_stopping()->add_stop_strings("\xff");
  request.set_text("\xc3");
  v1::GenerateRequest read;
  const std::optional<Error> error = ReadMessage(Buffer(request.SerializeAsString()), &read);
  ASSERT_TRUE(error.has_value());
  ASSERT_EQ(error->faults.size(), 10u);
  EXPECT_EQ(error->faults[0].field, "text");
  EXPECT_EQ(error->faults[8].field, "stopping.stop_strings");
  EXPECT_EQ(error->faults[9].field, "stopping.stop_strings");
  EXPECT_EQ(error->faults[9].description, "stopping.stop_strings: 99992 more are not valid UTF-8");
}

TEST(Wire, SaysThatBytesAreNoMessage) {
  v1::GenerateRequest read;
  const std::optional<Error> error = ReadMessage(Buffer("\x0a\x7f cut off"), &read);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->faults[0].description,
            "the message is not a well-formed eddy.v1.GenerateRequest");
}

TEST(Wire, AnswersAnyBytes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  v1::GenerateRequest request;
  request.set_text("some text");
  request.mutable_stopping()->add_stop_strings("stop");
  (*request.mutable_decoding()->mutable_logit_bias())[3] = 1;
  const std::string good = request.SerializeAsString();
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 3; ++k) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    v1::GenerateRequest read;
    const std::optional<Error> error = ReadMessage(Buffer(bytes), &read);
    if (error.has_value()) {
      EXPECT_FALSE(error->faults.empty());
    }
  }
}

}  // namespace
}  // namespace eddy
