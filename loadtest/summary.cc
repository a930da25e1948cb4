#include "loadtest/summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace eddy::loadtest {
namespace {

constexpr int kQuarters = 4;
// Both open calls and TTFT must have grown by this from the first to the last quarter.
constexpr double kRise = 1.5;

double Percentile(const std::vector<double>& sorted, double percentile) {
  const double place = percentile / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Reads the calls of one run, with times in seconds after its start.
class Reader {
 public:
  Reader(const RunResult& run, const SummarySettings& settings) : run_(run), settings_(settings) {}

  Summary Read() {
    FindWindow();
    for (const CallRecord& call : run_.calls) {
      CountAnywhere(call);
      if (InWindow(Seconds(call.intended_us))) CountOfWindow(call);
    }
    Rates();
    Describe();
    sum_.saturated = Saturated();
    return std::move(sum_);
  }

 private:
  double Seconds(int64_t us) const { return static_cast<double>(us - run_.began_us) / 1e6; }
  bool InWindow(double s) const { return s >= sum_.window.begin_s && s < sum_.window.end_s; }

  void FindWindow() {
    sum_.run_seconds = Seconds(run_.ended_us);
    sum_.sent = static_cast<int64_t>(run_.calls.size());
    sum_.open_peak = run_.open_peak;
    sum_.timeline.resize(static_cast<size_t>(std::ceil(std::max(sum_.run_seconds, 1e-6))));
    double sending = settings_.seconds;
    if (sending == 0) {
      for (const CallRecord& call : run_.calls) {
        sending = std::max(sending, Seconds(call.intended_us));
      }
    }
    sum_.window = {sending * settings_.warmup_cut, sending * (1 - settings_.warmup_cut)};
    // All was sent at once: nothing is steady, and the window is the run.
    if (sum_.window.seconds() < 1e-3) sum_.window = {0, sum_.run_seconds};
  }

  // What belongs to the time at which it happens, not to the call.
  void CountAnywhere(const CallRecord& call) {
    const double intended = Seconds(call.intended_us), done = Seconds(call.done_us);
    const Window& window = sum_.window;
    open_seconds_ +=
        std::max(0.0, std::min(done, window.end_s) - std::max(intended, window.begin_s));
    if (call.ok() && InWindow(done)) ++ended_;
    for (const Message& message : call.messages) {
      const double at = intended + message.at_us / 1e6;
      if (InWindow(at)) {
        sum_.output_tokens += message.tokens;
        ++sum_.messages;
      }
      At(at).tokens += message.tokens;
    }
    if (!call.messages.empty() && InWindow(intended + call.messages.front().at_us / 1e6)) {
      sum_.input_tokens += call.plan.prompt_tokens;
    }
    At(intended).offered += 1;
    for (double begin = intended; begin < done; begin = std::floor(begin) + 1) {
      At(begin).open += std::min(done, std::floor(begin) + 1) - begin;
    }
    CountInQuarters(call, intended, done);
  }

  Second& At(double s) {
    const auto last = static_cast<double>(sum_.timeline.size() - 1);
    return sum_.timeline[static_cast<size_t>(std::clamp(std::floor(s), 0.0, last))];
  }

  void CountInQuarters(const CallRecord& call, double intended, double done) {
    const double quarter = sum_.window.seconds() / kQuarters;
    for (int i = 0; i < kQuarters; ++i) {
      const double begin = sum_.window.begin_s + i * quarter, end = begin + quarter;
      quarter_open_[i] += std::max(0.0, std::min(done, end) - std::max(intended, begin));
      if (intended >= begin && intended < end && !call.messages.empty()) {
        quarter_ttft_[i] += call.ttft_ms();
        ++quarter_calls_[i];
      }
    }
  }

  bool Saturated() const {
    std::array<double, kQuarters> ttft = {};
    for (int i = 0; i < kQuarters; ++i) {
      if (quarter_calls_[i] == 0) return false;
      ttft[i] = quarter_ttft_[i] / quarter_calls_[i];
      if (i > 0 && (ttft[i] <= ttft[i - 1] || quarter_open_[i] <= quarter_open_[i - 1])) {
        return false;
      }
    }
    return ttft[kQuarters - 1] > kRise * ttft[0] &&
           quarter_open_[kQuarters - 1] > kRise * quarter_open_[0];
  }

  void CountOfWindow(const CallRecord& call) {
    ++sum_.calls;
    if (call.plan.slow_reader) ++sum_.slow_readers;
    lag_.push_back(static_cast<double>(call.sent_us - call.intended_us) / 1e3);
    if (call.cancelled_here) {
      ++sum_.cancelled;
    } else if (call.ok()) {
      ++sum_.completed;
      if (call.tokens() < call.plan.max_new_tokens) ++sum_.short_answers;
    } else {
      ++sum_.failed;
      std::string name = CodeName(call.code);
      if (!call.reason.empty()) name += " " + call.reason;
      ++sum_.failures[name];
    }
    if (call.timed() && !call.messages.empty()) Time(call);
  }

  void Time(const CallRecord& call) {
    const int64_t tokens = call.tokens();
    const double tpot_ms = tokens > 1 ? call.tpot_ms() : 0;
    ttft_.push_back(call.ttft_ms());
    e2el_.push_back(call.e2e_ms());
    normalized_.push_back(call.e2e_ms() / static_cast<double>(tokens));
    if (tokens > 1) tpot_.push_back(tpot_ms);
    const auto meets = [](const std::optional<double>& most, double value) {
      return !most.has_value() || value <= *most;
    };
    const Slos& slos = settings_.slos;
    if (meets(slos.ttft_ms, call.ttft_ms()) && meets(slos.tpot_ms, tpot_ms) &&
        meets(slos.e2el_ms, call.e2e_ms())) {
      ++good_;
    }
    int64_t place = call.messages.front().tokens;
    for (size_t i = 1; i < call.messages.size(); ++i) {
      const Message& message = call.messages[i];
      const double gap_ms = (message.at_us - call.messages[i - 1].at_us) / 1e3;
      icl_.push_back(gap_ms);
      // Each token of a message counts with its share of the gap.
      itl_.insert(itl_.end(), message.tokens, gap_ms / message.tokens);
      for (uint32_t k = 0; k < message.tokens; ++k) {
        const auto bin = static_cast<size_t>(std::log2(static_cast<double>(++place)));
        place_sum_.resize(std::max(place_sum_.size(), bin + 1));
        place_count_.resize(place_sum_.size());
        place_sum_[bin] += gap_ms / message.tokens;
        ++place_count_[bin];
      }
    }
  }

  void Rates() {
    const double seconds = std::max(sum_.window.seconds(), 1e-9);
    sum_.offered_rate = static_cast<double>(sum_.calls) / seconds;
    sum_.request_throughput = static_cast<double>(ended_) / seconds;
    sum_.request_goodput = static_cast<double>(good_) / seconds;
    sum_.output_throughput = static_cast<double>(sum_.output_tokens) / seconds;
    sum_.total_token_throughput =
        static_cast<double>(sum_.output_tokens + sum_.input_tokens) / seconds;
    sum_.concurrency = open_seconds_ / seconds;
    for (const Second& second : sum_.timeline) {
      sum_.tokens_peak = std::max(sum_.tokens_peak, static_cast<double>(second.tokens));
    }
  }

  void Describe() {
    const auto describe = [&](std::vector<double>& samples) {
      return loadtest::Describe(std::move(samples), settings_.percentiles);
    };
    sum_.ttft = describe(ttft_);
    sum_.tpot = describe(tpot_);
    sum_.itl = describe(itl_);
    sum_.icl = describe(icl_);
    sum_.e2el = describe(e2el_);
    sum_.normalized = describe(normalized_);
    sum_.lag = describe(lag_);
    for (size_t i = 0; i < place_sum_.size(); ++i) {
      sum_.itl_by_place_ms.push_back(place_count_[i] > 0 ? place_sum_[i] / place_count_[i] : 0);
    }
  }

  const RunResult& run_;
  const SummarySettings& settings_;
  Summary sum_;
  int64_t ended_ = 0, good_ = 0;
  double open_seconds_ = 0;
  std::array<double, kQuarters> quarter_open_ = {}, quarter_ttft_ = {}, quarter_calls_ = {};
  std::vector<double> ttft_, tpot_, itl_, icl_, e2el_, normalized_, lag_;
  std::vector<double> place_sum_, place_count_;
};

}  // namespace

Distribution Describe(std::vector<double> samples, const std::vector<double>& percentiles) {
  Distribution result;
  result.percentiles.assign(percentiles.size(), 0);
  result.count = static_cast<int64_t>(samples.size());
  if (samples.empty()) return result;
  std::sort(samples.begin(), samples.end());
  const auto count = static_cast<double>(samples.size());
  result.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : samples) {
    squares += (sample - result.mean) * (sample - result.mean);
  }
  result.std = std::sqrt(squares / count);
  result.median = Percentile(samples, 50);
  result.least = samples.front();
  result.most = samples.back();
  for (size_t i = 0; i < percentiles.size(); ++i) {
    result.percentiles[i] = Percentile(samples, percentiles[i]);
  }
  return result;
}

Summary Summarize(const RunResult& run, const SummarySettings& settings) {
  return Reader(run, settings).Read();
}

}  // namespace eddy::loadtest
