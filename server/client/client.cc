#include "server/client/client.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/version.h"
#include "server/client/command.h"
#include "server/client/connection.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

constexpr int kUsageStatus = 2;
constexpr int kFirstErrorStatus = 10;  // and the gRPC code

struct CommandName {
  const char* name;
  const char* second;  // word of the name, or null
  const char* summary;
  std::unique_ptr<Command> (*make)();
};

constexpr CommandName kCommands[] = {
    {"generate", nullptr, "goes on from a prompt", MakeGenerate},
    {"score", nullptr, "how likely a text is", MakeScore},
    {"tokenize", nullptr, "a text's tokens", MakeTokenize},
    {"detokenize", nullptr, "the text of tokens", MakeDetokenize},
    {"model", "list", "the models of the server", MakeModelList},
    {"model", "get", "one model and its limits", MakeModelGet},
    {"model", "status", "what the server is doing", MakeModelStatus},
    {"model", "inspect", "inspect DIR: what a model's folder holds and what is wrong; no server",
     MakeModelInspect},
    {"models", nullptr, "model list", MakeModelList},
    {"status", nullptr, "model status", MakeModelStatus},
    {"health", nullptr, "health [SERVICE]: whether it takes calls", MakeHealth},
};

std::string FullName(const CommandName& command) {
  return command.second == nullptr ? command.name : absl::StrCat(command.name, " ", command.second);
}

void AddCommonFlags(CommonFlags* common, FlagSet* flags) {
  flags->Add("target", &common->target, flag::Text("host:port, or a gRPC target"), "the server");
  flags->Add("model", &common->model, flag::Text("a name"), "default: the server's");
  flags->Add("timeout", &common->timeout, flag::Time(absl::Milliseconds(1), absl::Hours(24)),
             "of the whole call");
  flags->Add("output", &common->output, flag::OneOf({"text", "json"}), "for people or scripts");
  // gRPC makes at most five attempts.
  flags->Add("retries", &common->retries, flag::Number(0, 4),
             "attempts after the first, when the server is full or not ready");
  flags->Add("request_id", &common->request_id, flag::Text("1 to 128 of A-Za-z0-9._:-"),
             "name of the call in the server's log; default: the server makes one");
  flags->Add("traceparent", &common->traceparent, flag::Text("00-TRACE-SPAN-FLAGS, in hex"),
             "the trace that the call belongs to (W3C); default: the server begins one");
}

// Small hex digits and dashes: whether it is a traceparent is the server's to say, but gRPC ends a
// program that hands it metadata with other bytes.
void CheckTraceparent(const std::string& text, std::vector<std::string>* faults) {
  if (text.empty()) return;
  if (text.size() == 55 && text.find_first_not_of("0123456789abcdef-") == std::string::npos) return;
  faults->push_back(absl::StrCat("--traceparent=", text,
                                 ": must be 00-TRACE-SPAN-FLAGS, 32, 16 and "
                                 "2 small hex digits"));
}

void PrintUsage(const FlagSet& common, std::ostream& out) {
  out << "eddy COMMAND [--flag=value ...]\n\nCommands (more with eddy COMMAND --help):\n";
  for (const CommandName& command : kCommands) {
    out << "  " << FullName(command) << "\n      " << command.summary << "\n";
  }
  out << "\nFlags of all commands, also read from the environment as EDDY_TARGET and so on:\n"
      << common.Help()
      << "\nExit status: 0, 1 if model inspect found problems, 2 for a wrong command line, else 10 "
         "and the "
         "gRPC code.\n";
}

int PrintFaults(const std::vector<std::string>& faults, std::ostream& err) {
  for (const std::string& fault : faults) err << "eddy: " << fault << "\n";
  return kUsageStatus;
}

size_t NameLength(const CommandName& command) { return command.second == nullptr ? 1 : 2; }

// The command that `words` begin with; null: there is none.
const CommandName* FindCommand(const std::vector<std::string>& words) {
  for (const CommandName& command : kCommands) {
    if (words.size() < NameLength(command) || words[0] != command.name) continue;
    if (command.second == nullptr || words[1] == command.second) return &command;
  }
  return nullptr;
}

int RunCommand(Command* command, const CommonFlags& common, std::ostream& out, std::ostream& err,
               bool terminal) {
  Connection connection(common);
  Output output = {.out = out, .err = err, .json = common.output == "json", .terminal = terminal};
  grpc::Status status = command->Run(&connection, &output);
  out << std::flush;
  if (status.ok() && !out.good()) {
    status = {grpc::StatusCode::UNKNOWN, "standard output cannot be written"};
  }
  if (status.ok()) return command->exit_status();
  PrintError(status, output.json, err);
  if (!connection.trace_id().empty() && !output.json) {
    err << "  trace: " << connection.trace_id() << "\n";
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty() &&
      !output.json) {
    err << "  target: " << common.target << "\n";
  }
  return kFirstErrorStatus + status.error_code();
}

}  // namespace

std::vector<std::string> NoWords(const std::vector<std::string>& words) {
  std::vector<std::string> faults;
  faults.reserve(words.size());
  for (const std::string& word : words) {
    faults.push_back(absl::StrCat(word, ": is no flag; flags are --name=value"));
  }
  return faults;
}

int RunClient(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
              bool terminal) {
  // The environment is read for the common flags alone: EDDY_MAX_NEW_TOKENS and the like are the
  // server's, and may be set where both run.
  CommonFlags common;
  FlagSet common_flags;
  AddCommonFlags(&common, &common_flags);
  std::vector<std::string> faults = common_flags.Parse({}, "EDDY_").faults;

  const std::vector<std::string> words = common_flags.Words(args);
  if (words.empty()) {
    const FlagSet::Parsed parsed = common_flags.Parse(args, "");
    if (parsed.version) {
      out << "eddy " << Version() << " (" << Commit() << ")\n";
      return 0;
    }
    PrintUsage(common_flags, parsed.help ? out : err);
    return parsed.help ? 0 : kUsageStatus;
  }
  const CommandName* const name = FindCommand(words);
  if (name == nullptr) {
    return PrintFaults({absl::StrCat(words[0], ": there is no such command; see eddy --help")},
                       err);
  }

  const std::unique_ptr<Command> command = name->make();
  FlagSet flags;
  AddCommonFlags(&common, &flags);
  command->AddFlags(&flags);
  FlagSet::Parsed parsed = flags.Parse(args, "");
  if (parsed.help) {
    out << "eddy " << FullName(*name) << ": " << name->summary << "\n\n" << flags.Help();
    return 0;
  }
  faults.insert(faults.end(), parsed.faults.begin(), parsed.faults.end());
  CheckTraceparent(common.traceparent, &faults);
  // A flag without a value may have taken the name's second word for it; that is a fault as well.
  const size_t length = std::min(NameLength(*name), parsed.positional.size());
  const std::vector<std::string> more = command->Prepare(
      common, flags, {parsed.positional.begin() + length, parsed.positional.end()});
  faults.insert(faults.end(), more.begin(), more.end());
  if (!faults.empty()) return PrintFaults(faults, err);
  return RunCommand(command.get(), common, out, err, terminal);
}

}  // namespace eddy::client
