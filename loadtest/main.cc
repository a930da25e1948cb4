// eddy-loadtest: puts a server under load and reports how it answered. See README.md.
//
// Status 0: the test ran, whatever became of its calls; 1: it could not run; 2: the command line is
// wrong.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "loadtest/client.h"
#include "loadtest/load_test.h"
#include "loadtest/options.h"

namespace eddy::loadtest {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return code;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<ReadOptionsResult> read = ReadOptions({argv + 1, argv + argc});
  if (!read.ok()) return Fail(read.status(), 2);
  if (!read->options.has_value()) {
    std::fputs(read->answer.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const Options& options = *read->options;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options.client);
  if (!client.ok()) return Fail(client.status(), EXIT_FAILURE);
  const absl::StatusOr<LoadTestResult> result =
      RunLoadTest(options, client->get(), stdout, options.progress ? stderr : nullptr);
  return result.ok() ? EXIT_SUCCESS : Fail(result.status(), EXIT_FAILURE);
}

}  // namespace
}  // namespace eddy::loadtest

int main(int argc, char** argv) { return eddy::loadtest::Main(argc, argv); }
