// What one command of the client is.
#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/flags.h"
#include "server/client/connection.h"

namespace eddy::client {

// Where a command writes. Standard output carries what was asked for and nothing else.
struct Output {
  std::ostream& out;
  std::ostream& err;
  bool json = false;
  bool terminal = false;  // a person reads `out`
};

// Made for one run of the program: flags are added, parsed, checked, and the command is run.
class Command {
 public:
  virtual ~Command() = default;

  virtual void AddFlags(FlagSet* flags) = 0;
  // Makes the request. `words` are what follows the command's name. Returns all that is wrong with
  // the flags together, a line each.
  virtual std::vector<std::string> Prepare(const CommonFlags& common, const FlagSet& flags,
                                           const std::vector<std::string>& words) = 0;
  // The error of the call, if it fails.
  virtual grpc::Status Run(Connection* connection, Output* output) = 0;
  // What the program ends with if Run succeeded.
  virtual int exit_status() const { return 0; }
};

std::unique_ptr<Command> MakeGenerate();
std::unique_ptr<Command> MakeScore();
std::unique_ptr<Command> MakeTokenize();
std::unique_ptr<Command> MakeDetokenize();
std::unique_ptr<Command> MakeModelList();
std::unique_ptr<Command> MakeModelGet();
std::unique_ptr<Command> MakeModelStatus();
std::unique_ptr<Command> MakeModelInspect();
std::unique_ptr<Command> MakeHealth();

// A fault for each word, for commands that take none.
std::vector<std::string> NoWords(const std::vector<std::string>& words);

}  // namespace eddy::client
