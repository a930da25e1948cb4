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

}  // namespace
}  // namespace eddy::client
