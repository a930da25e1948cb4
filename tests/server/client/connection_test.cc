// Proves that a call is tried again as often as told, that the timeout holds whatever the network
// does, and that large answers are taken.
#include "server/client/connection.h"

#include <sstream>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

TEST_F(ClientTest, TriesAgainAsOftenAsItIsTold) {
  generation_.refusals = 1;
  EXPECT_EQ(Run({"generate", "--prompt=x", "--retries=1"}), 0) << err();
  EXPECT_EQ(generation_.streams, 2);
  generation_.refusals = 1;
  EXPECT_EQ(Run({"generate", "--prompt=x", "--retries=0"}), 24);
  EXPECT_EQ(err(), "eddy: UNAVAILABLE: not yet\n  " + target_.substr(2, 6) + ": " +
                       target_.substr(9) + "\n");
}

TEST_F(ClientTest, GivesUpAtTheTimeout) {
  // Nothing answers on this address (RFC 5737), so that only the timeout ends the call.
  std::ostringstream out, err;
  EXPECT_EQ(RunClient({"generate", "--prompt=x", "--target=192.0.2.1:1", "--timeout=100ms"}, out,
                      err, false),
            14);
}

TEST_F(ClientTest, TakesAnswersAboveFourMebibytes) {
  generation_.detokenized.set_text(std::string(6 << 20, 'x'));
  EXPECT_EQ(Run({"detokenize", "--token_ids=1"}), 0) << err();
  EXPECT_EQ(out().size(), 6u << 20);
}

TEST_F(ClientTest, SaysToWhichTraceACallBelongs) {
  const std::string parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_EQ(Run({"generate", "--prompt=x", "--traceparent=" + parent}), 0) << err();
  EXPECT_EQ(generation_.traceparent, parent);
  EXPECT_EQ(Run({"score", "--prompt=x"}), 0) << err();
  EXPECT_EQ(generation_.traceparent, "");
}

TEST_F(ClientTest, RefusesATraceThatMetadataCannotHold) {
  for (const std::string& wrong : {std::string("x"), std::string(54, '0') + "\n",
                                   std::string(54, '0') + "A", std::string(56, '0')}) {
    EXPECT_EQ(Run({"generate", "--prompt=x", "--traceparent=" + wrong}), 2);
    EXPECT_THAT(err(), testing::HasSubstr("--traceparent=" + wrong + ": must be"));
  }
}

TEST_F(ClientTest, NamesTheTraceOfACallThatFailed) {
  generation_.trace_id = "0af7651916cd43dd8448eb211c80319c";
  generation_.status = {grpc::StatusCode::INTERNAL, "broken"};
  for (const char* command : {"generate", "score"}) {
    EXPECT_EQ(Run({command, "--prompt=x"}), 23);
    EXPECT_EQ(err(), "eddy: INTERNAL: broken\n  trace: 0af7651916cd43dd8448eb211c80319c\n");
  }
  generation_.status = grpc::Status::OK;
  EXPECT_EQ(Run({"generate", "--prompt=x"}), 0);
  EXPECT_EQ(err(), "");
}

}  // namespace
}  // namespace eddy::client
