#include "loadtest/options.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"
#include "base/version.h"

namespace eddy::loadtest {
namespace {

constexpr int64_t kCallsMax = 10'000'000;
constexpr int64_t kTokensMax = 1'000'000;
constexpr int64_t kDefaultPrompts = 1000;

// Flags whose values are read further, as they are written.
struct Texts {
  std::string metrics_url, request_rate = "inf", max_concurrency, trace_file, goodput, metadata;
  std::string sweep_fractions = "0.1,0.25,0.5,0.7,0.8,0.9,1.0,1.1,1.2";
  std::string percentile_metrics = "ttft,tpot,itl,e2el", metric_percentiles = "50,90,99,99.9";
  std::string workload = "random", arrival_process = "gamma", ramp_up_strategy = "none";
  double ramp_up_start_rps = 1;
  absl::Duration duration = absl::ZeroDuration();
};

std::vector<std::string> Words(const std::string& text) {
  return absl::StrSplit(text, absl::ByAnyChar(", "), absl::SkipEmpty());
}

// Numbers of `least` to `most`, all of them; faults are added to `faults`.
std::vector<double> Numbers(const std::string& flag, const std::string& text, double least,
                            double most, std::vector<std::string>* faults) {
  std::vector<double> numbers;
  for (const std::string& word : Words(text)) {
    double number = 0;
    if (!absl::SimpleAtod(word, &number) || !(number >= least && number <= most)) {
      faults->push_back(
          absl::StrCat("--", flag, ": \"", word, "\" is no number of ", least, " to ", most));
    }
    numbers.push_back(number);
  }
  return numbers;
}

void AddServerFlags(FlagSet* flags, Options* options, Texts* texts) {
  ClientSettings* const client = &options->client;
  flags->Add("target", &client->target, flag::Text("a name that gRPC resolves"),
             "the server: host:port, dns:///host:port, or ipv4:127.0.0.1:1,127.0.0.1:2");
  flags->Add("model", &client->model, flag::Text("a name"), "empty: the server's default model");
  flags->Add("channels", &client->channels, flag::Number(1, 1000),
             "connections to each server that share the calls");
  flags->Add("lb_policy", &client->lb_policy, flag::OneOf({"pick_first", "round_robin"}),
             "how calls are spread over the addresses of the target");
  flags->Add("retries", &client->retries, flag::Number(0, 4),
             "of a call that was refused, by gRPC's retry policy");
  flags->Add("request_timeout", &client->timeout, flag::Time(absl::Seconds(1), absl::Hours(1)),
             "deadline of each call, from its actual send");
  flags->Add("metrics_url", &texts->metrics_url, flag::Text("URLs with commas between"),
             "metrics of the servers, http://host:9464/metrics, read at both ends of the window");
  flags->Add("temperature", &client->temperature, flag::Real(0, 10), "default: the model's");
  flags->Add("ignore_eos", &client->ignore_eos, flag::Bool(),
             "do not end at the model's end token, so that lengths are as asked for");
}

void AddLoadFlags(FlagSet* flags, Options* options, Texts* texts) {
  flags->Add("request_rate", &texts->request_rate, flag::Text("calls a second, or inf"),
             "open loop; several rates with commas between are run one after the other");
  flags->Add("burstiness", &options->burstiness, flag::Real(0.01, 1000),
             "shape of the gaps' gamma distribution: 1 is Poisson, below comes in bunches");
  flags->Add("arrival_process", &texts->arrival_process, flag::OneOf({"gamma", "constant"}),
             "how the gaps between calls are drawn");
  flags->Add("trace_file", &texts->trace_file, flag::Text("a path"),
             "replay: lines of {\"timestamp\", \"prompt_tokens\", \"max_new_tokens\"}");
  flags->Add("ramp_up_strategy", &texts->ramp_up_strategy, flag::OneOf({"none", "linear"}),
             "let the rate rise to request-rate over the run");
  flags->Add("ramp_up_start_rps", &texts->ramp_up_start_rps, flag::Real(0.001, 1e6),
             "where it starts");
  flags->Add("max_concurrency", &texts->max_concurrency, flag::Text("numbers with commas between"),
             "calls open at once; with request-rate inf a closed loop");
  flags->Add("num_prompts", &options->num_prompts, flag::Number(0, kCallsMax),
             "calls of a run; 0: 1000 without a duration or trace, no bound with one");
  flags->Add("duration", &texts->duration, flag::Time(absl::ZeroDuration(), absl::Hours(24)),
             "time in which calls of a run are sent; 0s: no bound");
  flags->Add("num_warmups", &options->num_warmups, flag::Number(0, 100000),
             "calls before the first run, one after the other, not measured");
  flags->Add("warmup_cut", &options->summary.warmup_cut, flag::Real(0, 0.45),
             "share of a run at its beginning and at its end that is no part of the window");
  flags->Add("sweep", &options->sweep, flag::Bool(),
             "find the saturated rate in a closed loop, then run shares of it in open loops");
  flags->Add("sweep_fractions", &texts->sweep_fractions, flag::Text("0.01 to 10, with commas"),
             "the shares, ascending; ends after two that the server cannot keep up with");
  flags->Add("repeats", &options->repeats, flag::Number(1, 100),
             "runs of each point, with seeds that follow each other");
  flags->Add("seed", &options->seed, flag::Unsigned(), "of arrivals, lengths, prompts and draws");
}

void AddWorkloadFlags(FlagSet* flags, Options* options, Texts* texts) {
  WorkloadSettings* const workload = &options->workload;
  flags->Add("workload", &texts->workload, flag::OneOf({"random", "chat"}),
             "lengths: random, fixed or in a range; chat, log-normal");
  flags->Add("input_len", &workload->prompt.mean, flag::Real(1, kTokensMax),
             "mean tokens of a prompt");
  flags->Add("output_len", &workload->output.mean, flag::Real(1, kTokensMax),
             "mean tokens of an answer");
  flags->Add("random_range_ratio", &workload->prompt.range_ratio, flag::Real(0, 0.99),
             "random: lengths from (1 - ratio) to (1 + ratio) times the mean");
  flags->Add("length_cv", &workload->prompt.cv, flag::Real(0.01, 10),
             "chat: standard deviation of lengths over their mean");
  flags->Add("input_len_max", &workload->prompt.most, flag::Number(1, kTokensMax),
             "longest prompt; longer ones are drawn again");
  flags->Add("output_len_max", &workload->output.most, flag::Number(1, kTokensMax),
             "longest answer; longer ones are drawn again");
  flags->Add("cancel_share", &workload->cancel_share, flag::Real(0, 1),
             "share of calls that are cancelled after some of their tokens");
  flags->Add("slow_reader_share", &workload->slow_reader_share, flag::Real(0, 1),
             "share of calls whose reader pauses after each message");
  flags->Add("slow_reader_pause", &options->client.slow_reader_pause,
             flag::Time(absl::Milliseconds(1), absl::Minutes(10)), "how long");
}

void AddOutputFlags(FlagSet* flags, Options* options, Texts* texts) {
  flags->Add("percentile_metrics", &texts->percentile_metrics,
             flag::Text("ttft, tpot, itl, icl, e2el, normalized"), "what is printed and saved");
  flags->Add("metric_percentiles", &texts->metric_percentiles, flag::Text("0 to 100, with commas"),
             "which percentiles");
  flags->Add("goodput", &texts->goodput, flag::Text("ttft:ms tpot:ms e2el:ms"),
             "bounds of a call that counts for goodput");
  flags->Add("save_result", &options->save_result, flag::Bool(),
             "write a JSON object for each run, one a line, to result-filename");
  flags->Add("save_detailed", &options->save_detailed, flag::Bool(),
             "with the times and lengths of each call");
  flags->Add("result_filename", &options->result_filename, flag::Text("a path"),
             "default: eddy-loadtest.jsonl");
  flags->Add("label", &options->label, flag::Text("any"), "kept in the result");
  flags->Add("metadata", &texts->metadata, flag::Text("key=value,key=value"),
             "kept in the result: machine, commit, settings of the server");
  flags->Add("progress", &options->progress, flag::Bool(), "a line each second on standard error");
}

void ReadSlos(const std::string& text, Slos* slos, std::vector<std::string>* faults) {
  const std::map<std::string, std::optional<double>*> bounds = {
      {"ttft", &slos->ttft_ms}, {"tpot", &slos->tpot_ms}, {"e2el", &slos->e2el_ms}};
  for (const std::string& word : Words(text)) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits(':', 1));
    double bound = 0;
    const auto found = bounds.find(parts.first);
    if (found == bounds.end() || !absl::SimpleAtod(parts.second, &bound) || !(bound > 0)) {
      faults->push_back(absl::StrCat("--goodput: \"", word,
                                     "\" is not ttft, tpot or e2el, a colon and milliseconds"));
      continue;
    }
    *found->second = bound;
  }
}

void ReadMetadata(const std::string& text, Options* options, std::vector<std::string>* faults) {
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipEmpty()))) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (word.find('=') == std::string::npos) {
      faults->push_back(absl::StrCat("--metadata: \"", word, "\" is not key=value"));
    }
    options->metadata[parts.first] = parts.second;
  }
}

void ReadPoints(const Texts& texts, Options* options, std::vector<std::string>* faults) {
  if (texts.request_rate != "inf") {
    options->request_rates = Numbers("request-rate", texts.request_rate, 1e-3, 1e6, faults);
  }
  for (const double number : Numbers("max-concurrency", texts.max_concurrency, 1, 1e5, faults)) {
    if (number != std::floor(number)) {
      faults->push_back(absl::StrCat("--max-concurrency: ", number, " is no whole number"));
    }
    options->max_concurrencies.push_back(static_cast<int>(number));
  }
  options->sweep_fractions = Numbers("sweep-fractions", texts.sweep_fractions, 0.01, 10, faults);
  if (!texts.trace_file.empty()) {
    absl::StatusOr<std::vector<TraceEntry>> trace = ReadTrace(texts.trace_file);
    if (trace.ok()) {
      options->trace = *std::move(trace);
    } else {
      faults->push_back(absl::StrCat("--trace-file: ", trace.status().message()));
    }
  }
  options->seconds = absl::ToDoubleSeconds(texts.duration);
  options->summary.seconds = options->seconds;
  if (options->num_prompts == 0 && options->seconds == 0 && options->trace.empty()) {
    options->num_prompts = kDefaultPrompts;
  }
  // A trace has its own end, which the bounds only move forward.
  std::vector<TraceEntry>& trace = options->trace;
  if (options->seconds > 0) {
    std::erase_if(trace, [&](const TraceEntry& entry) { return entry.at_s >= options->seconds; });
  }
  if (options->num_prompts > 0 && static_cast<int64_t>(trace.size()) > options->num_prompts) {
    trace.resize(static_cast<size_t>(options->num_prompts));
  }
  options->process = texts.arrival_process == "constant" ? Arrivals::Process::kConstant
                                                         : Arrivals::Process::kGamma;
  if (texts.ramp_up_strategy == "linear") options->ramp_from = texts.ramp_up_start_rps;
}

void ReadWorkload(const Texts& texts, Options* options, std::vector<std::string>* faults) {
  LengthSettings &prompt = options->workload.prompt, &output = options->workload.output;
  output.range_ratio = prompt.range_ratio;
  output.cv = prompt.cv;
  if (texts.workload == "chat") {
    prompt.shape = output.shape = LengthSettings::Shape::kLogNormal;
  }
  const auto fits = [&](const char* name, const LengthSettings& lengths) {
    if (lengths.mean <= lengths.most) return;
    faults->push_back(absl::StrCat("--", name, ": ", lengths.mean, " is above --", name,
                                   "-max, which is ", lengths.most));
  };
  fits("input-len", prompt);
  fits("output-len", output);
}

void ReadReport(const Texts& texts, Options* options, std::vector<std::string>* faults) {
  options->metrics_urls = Words(texts.metrics_url);
  options->summary.percentiles =
      Numbers("metric-percentiles", texts.metric_percentiles, 0, 100, faults);
  options->percentile_metrics = Words(texts.percentile_metrics);
  for (const std::string& name : options->percentile_metrics) {
    if (name != "ttft" && name != "tpot" && name != "itl" && name != "icl" && name != "e2el" &&
        name != "normalized") {
      faults->push_back(absl::StrCat("--percentile-metrics: \"", name,
                                     "\" is not ttft, tpot, itl, icl, e2el or normalized"));
    }
  }
  ReadSlos(texts.goodput, &options->summary.slos, faults);
  ReadMetadata(texts.metadata, options, faults);
  if (options->result_filename.empty()) options->result_filename = "eddy-loadtest.jsonl";
}

// Flags that contradict each other.
void CheckTogether(const Options& options, std::vector<std::string>* faults) {
  const bool rates = !options.request_rates.empty();
  const bool traced = !options.trace.empty();
  if (options.sweep && (rates || traced || options.max_concurrencies.size() > 1)) {
    faults->push_back(
        "--sweep finds the rates itself: it goes with neither --request-rate nor --trace-file, and "
        "with one --max-concurrency");
  }
  if (traced && rates) faults->push_back("--trace-file has its own times: no --request-rate");
  if (options.max_concurrencies.size() > 1 && (rates || traced)) {
    faults->push_back("--max-concurrency: several values need --request-rate inf");
  }
  if (!rates && !traced && !options.sweep && options.max_concurrencies.empty() &&
      options.num_prompts == 0) {
    faults->push_back("--request-rate inf sends all at once: it needs --num-prompts");
  }
  if (options.ramp_from.has_value() && !rates) {
    faults->push_back("--ramp-up-strategy needs a --request-rate to rise to");
  }
  if (options.save_detailed && !options.save_result) {
    faults->push_back("--save-detailed needs --save-result");
  }
}

}  // namespace

absl::StatusOr<ReadOptionsResult> ReadOptions(const std::vector<std::string>& args) {
  Options options;
  Texts texts;
  FlagSet flags;
  AddServerFlags(&flags, &options, &texts);
  AddLoadFlags(&flags, &options, &texts);
  AddWorkloadFlags(&flags, &options, &texts);
  AddOutputFlags(&flags, &options, &texts);
  const FlagSet::Parsed parsed = flags.Parse(args, "");
  ReadOptionsResult result;
  if (parsed.help) result.answer = flags.Help();
  if (parsed.version)
    result.answer = absl::StrCat("eddy-loadtest ", std::string(Version()), " (commit ",
                                 std::string(Commit()), ")\n");
  if (parsed.help || parsed.version) return result;
  std::vector<std::string> faults = parsed.faults;
  for (const std::string& word : parsed.positional) {
    faults.push_back(absl::StrCat("\"", word, "\": only flags are taken"));
  }
  ReadPoints(texts, &options, &faults);
  ReadWorkload(texts, &options, &faults);
  ReadReport(texts, &options, &faults);
  CheckTogether(options, &faults);
  if (!faults.empty()) return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  options.changed = flags.Changed();
  result.options = std::move(options);
  return result;
}

}  // namespace eddy::loadtest
