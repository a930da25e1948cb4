// Puts a running server under load and tells how fast it answered:
//
//   serve_bench --target=127.0.0.1:50051 --streams=32 --requests=200
//
// So many streams are kept open at once, each with a random prompt, until all requests were made;
// then it ends by itself. What it prints is one figure a line, "name value": rates per second, and
// times in milliseconds. Of a message that brings several tokens, each counts with its share of
// the time since the message before.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "base/mutex.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"

namespace eddy {
namespace {

struct Options {
  std::string target = "127.0.0.1:50051";
  int streams = 32;
  int requests = 128;
  int connections = 1;
  int prompt_tokens = 16;
  int max_new_tokens = 128;
  double cancel_share = 0;
  int slow_readers = 0;
  absl::Duration timeout = absl::Minutes(10);
  uint64_t seed = 1;
};

// What all streams saw.
struct Figures {
  std::vector<double> first_ms = {};
  std::vector<double> between_ms = {};
  std::map<std::string, int> ends = {};  // by code; "cancelled_here" is what was asked for
  int64_t tokens = 0;
  int64_t messages = 0;
  int short_answers = 0;  // ended well with other than the tokens that were asked for
};

const char* CodeName(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT", "DEADLINE",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "EXHAUSTED",        "PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",         "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return code >= 0 && code < 17 ? kNames[code] : "OTHER";
}

// One call. Lives from its start to the Load's taking it out of the line of those that are done.
class Stream : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  struct Plan {
    v1::GenerateRequest request = {};
    int cancel_after = -1;  // tokens; negative: never
    bool reads = true;      // false: takes nothing until Release
    absl::Time deadline = absl::InfiniteFuture();
  };
  // `done` is called once, last of all, on a thread of gRPC.
  Stream(v1::GenerationService::Stub* stub, Plan plan, std::function<void(Stream*)> done)
      : plan_(std::move(plan)), done_(std::move(done)) {
    context_.set_deadline(absl::ToChronoTime(plan_.deadline));
    stub->async()->GenerateStream(&context_, &plan_.request, this);
    if (plan_.reads) {
      StartRead(&message_);
    } else {
      AddHold();  // without a read nothing else keeps the call alive
    }
    began_ = last_ = absl::Now();
    StartCall();
  }

  // Lets a stream that reads nothing go, cancelled.
  void Release() {
    context_.TryCancel();
    RemoveHold();
  }

  bool reads() const { return plan_.reads; }
  void AddTo(Figures* all) const {
    all->first_ms.insert(all->first_ms.end(), first_ms_.begin(), first_ms_.end());
    all->between_ms.insert(all->between_ms.end(), between_ms_.begin(), between_ms_.end());
    all->tokens += tokens_;
    all->messages += messages_;
    const bool asked =
        status_.error_code() == grpc::CANCELLED && (plan_.cancel_after >= 0 || !plan_.reads);
    ++all->ends[asked ? "cancelled_here" : CodeName(status_.error_code())];
    const auto wanted = static_cast<int64_t>(plan_.request.stopping().max_new_tokens());
    if (status_.ok() && tokens_ != wanted) ++all->short_answers;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    Note();
    if (plan_.cancel_after >= 0 && tokens_ >= plan_.cancel_after) context_.TryCancel();
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_(this);
  }

  void Note() {
    ++messages_;
    int tokens = 0;
    for (const v1::SequenceOutput& output : message_.outputs()) {
      tokens += static_cast<int>(output.num_tokens());
    }
    if (tokens == 0) return;
    const absl::Time now = absl::Now();
    if (tokens_ == 0) first_ms_.push_back(absl::ToDoubleMilliseconds(now - began_));
    // Times between tokens start at the first message.
    const double share = absl::ToDoubleMilliseconds(now - last_) / tokens;
    if (tokens_ > 0) between_ms_.insert(between_ms_.end(), static_cast<size_t>(tokens), share);
    tokens_ += tokens;
    last_ = now;
  }

  const Plan plan_;
  const std::function<void(Stream*)> done_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  absl::Time began_, last_;
  std::vector<double> first_ms_, between_ms_;
  int64_t tokens_ = 0, messages_ = 0;
  grpc::Status status_;
};

// Keeps the streams going; used by one thread.
class Load {
 public:
  Load(const Options& options, uint32_t vocab, std::vector<std::shared_ptr<grpc::Channel>> channels)
      : options_(options), vocab_(vocab), rng_(options.seed), end_(absl::Now() + options.timeout) {
    for (const auto& channel : channels) {
      stubs_.push_back(v1::GenerationService::NewStub(channel));
    }
  }

  Figures Run() {
    Figures all;
    for (int i = 0; i < options_.slow_readers; ++i) Start(/*reads=*/false);
    int started = 0, ended = 0;
    while (started < std::min(options_.streams, options_.requests)) {
      Start(/*reads=*/true);
      ++started;
    }
    while (ended < options_.requests) {
      Stream* const stream = AwaitDone();
      stream->AddTo(&all);
      // One that reads nothing may be cut off by the server; it is no request of the load.
      if (stream->reads()) ++ended;
      open_.erase(stream);
      if (started < options_.requests) {
        Start(/*reads=*/true);
        ++started;
      }
    }
    for (const auto& [stream, owner] : open_) stream->Release();
    while (!open_.empty()) {
      Stream* const stream = AwaitDone();
      stream->AddTo(&all);
      open_.erase(stream);
    }
    return all;
  }

 private:
  void Start(bool reads) {
    Stream::Plan plan = {.reads = reads, .deadline = end_};
    for (int i = 0; i < options_.prompt_tokens; ++i) {
      plan.request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng_() % vocab_));
    }
    plan.request.mutable_sampling()->set_seed(rng_());
    plan.request.mutable_stopping()->set_max_new_tokens(
        static_cast<uint32_t>(options_.max_new_tokens));
    plan.request.mutable_stopping()->set_ignore_eos(true);
    if (reads && std::uniform_real_distribution<>(0, 1)(rng_) < options_.cancel_share) {
      plan.cancel_after = static_cast<int>(rng_() % static_cast<uint64_t>(options_.max_new_tokens));
    }
    auto stream = std::make_unique<Stream>(stubs_[next_stub_++ % stubs_.size()].get(),
                                           std::move(plan), [this](Stream* done) { Done(done); });
    Stream* const key = stream.get();
    open_[key] = std::move(stream);
  }
  void Done(Stream* stream) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    done_.push_back(stream);
    news_.NotifyAll();
  }
  Stream* AwaitDone() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (done_.empty()) news_.Wait(&mu_);
    Stream* const stream = done_.front();
    done_.pop_front();
    return stream;
  }

  const Options options_;
  const uint32_t vocab_;
  std::mt19937_64 rng_;
  const absl::Time end_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;
  size_t next_stub_ = 0;
  std::map<Stream*, std::unique_ptr<Stream>> open_;
  Mutex mu_;
  CondVar news_;
  std::deque<Stream*> done_ ABSL_GUARDED_BY(mu_);
};

double Quantile(std::vector<double>* values, double share) {
  if (values->empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), values->begin() + static_cast<ptrdiff_t>(at), values->end());
  return (*values)[at];
}

void Print(Figures figures, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  std::printf("seconds %.3f\n", seconds);
  std::printf("tokens %lld\n", static_cast<long long>(figures.tokens));
  std::printf("tokens_per_second %.1f\n", static_cast<double>(figures.tokens) / seconds);
  std::printf("messages %lld\n", static_cast<long long>(figures.messages));
  std::printf("ttft_ms_median %.3f\n", Quantile(&figures.first_ms, 0.5));
  std::printf("ttft_ms_p99 %.3f\n", Quantile(&figures.first_ms, 0.99));
  std::printf("itl_ms_median %.3f\n", Quantile(&figures.between_ms, 0.5));
  std::printf("itl_ms_p99 %.3f\n", Quantile(&figures.between_ms, 0.99));
  for (const auto& [code, count] : figures.ends) {
    std::printf("ended_%s %d\n", code.c_str(), count);
  }
  std::printf("short_answers %d\n", figures.short_answers);
}

// Nothing: the command line was answered or refused, with *status as the program's.
std::optional<Options> ReadOptions(int argc, char** argv, int* status) {
  Options options;
  FlagSet flags;
  flags.Add("target", &options.target, flag::Text("host:port"), "the server");
  flags.Add("streams", &options.streams, flag::Number(1, 100000), "calls that are open at once");
  flags.Add("requests", &options.requests, flag::Number(1, 10000000), "calls in all");
  flags.Add("connections", &options.connections, flag::Number(1, 1000),
            "connections that share the calls");
  flags.Add("prompt_tokens", &options.prompt_tokens, flag::Number(1, 1000000), "of each call");
  flags.Add("max_new_tokens", &options.max_new_tokens, flag::Number(1, 1000000), "of each call");
  flags.Add("cancel_share", &options.cancel_share, flag::Real(0, 1),
            "share of the calls that are cancelled after a random number of tokens");
  flags.Add("slow_readers", &options.slow_readers, flag::Number(0, 10000),
            "calls besides, whose answer nobody reads until the others have ended");
  flags.Add("timeout", &options.timeout, flag::Time(absl::Seconds(1), absl::Hours(2)),
            "deadline of everything");
  flags.Add("seed", &options.seed, flag::Unsigned(), "of prompts, draws and cancels");
  const FlagSet::Parsed parsed = flags.Parse({argv + 1, argv + argc}, "");
  if (parsed.help) std::printf("%s", flags.Help().c_str());
  for (const std::string& fault : parsed.faults) std::fprintf(stderr, "%s\n", fault.c_str());
  if (!parsed.positional.empty()) {
    std::fprintf(stderr, "%s: only flags are taken\n", parsed.positional[0].c_str());
  }
  *status = parsed.faults.empty() && parsed.positional.empty() ? EXIT_SUCCESS : 2;
  if (parsed.help || *status != EXIT_SUCCESS) return std::nullopt;
  return options;
}

int Main(int argc, char** argv) {
  int status = EXIT_SUCCESS;
  const std::optional<Options> options = ReadOptions(argc, argv, &status);
  if (!options.has_value()) return status;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options->connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(
        grpc::CreateCustomChannel(options->target, grpc::InsecureChannelCredentials(), arguments));
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::GetModelResponse model;
  const grpc::Status asked = v1::ModelService::NewStub(channels[0])->GetModel(&context, {}, &model);
  if (!asked.ok()) {
    std::fprintf(stderr, "%s: %s\n", options->target.c_str(), asked.error_message().c_str());
    return EXIT_FAILURE;
  }
  Load load(*options, model.model().vocab_size(), std::move(channels));
  const absl::Time began = absl::Now();
  Figures figures = load.Run();
  Print(std::move(figures), absl::Now() - began);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
