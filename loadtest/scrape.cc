#include "loadtest/scrape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status.h"
#include "loadtest/call.h"

namespace eddy::loadtest {
namespace {

// Name without labels.
std::string Name(const std::string& series) { return series.substr(0, series.find('{')); }

bool Counts(const std::string& name) {
  return absl::EndsWith(name, "_total") || absl::EndsWith(name, "_sum") ||
         absl::EndsWith(name, "_count");
}

int64_t After(int64_t began_us, double seconds) {
  return std::isinf(seconds) ? std::numeric_limits<int64_t>::max()
                             : began_us + static_cast<int64_t>(seconds * 1e6);
}

}  // namespace

absl::StatusOr<Metrics> ParseMetrics(const std::string& page) {
  Metrics metrics;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    // Labels may hold blanks; a time after the value may follow.
    const size_t brace = line.rfind('}');
    const size_t end = line.find(' ', brace == absl::string_view::npos ? 0 : brace);
    const std::vector<absl::string_view> rest =
        end == absl::string_view::npos ? std::vector<absl::string_view>{}
                                       : std::vector<absl::string_view>(absl::StrSplit(
                                             line.substr(end + 1), ' ', absl::SkipEmpty()));
    double value = 0;
    if (rest.empty() || !absl::SimpleAtod(rest[0], &value)) {
      return absl::InvalidArgumentError(absl::StrCat("no line of a metrics page: \"", line, "\""));
    }
    metrics[std::string(line.substr(0, end))] = value;
  }
  return metrics;
}

Metrics Difference(const Metrics& before, const Metrics& after) {
  Metrics change;
  for (const auto& [series, value] : after) {
    const std::string name = Name(series);
    if (absl::EndsWith(name, "_bucket")) continue;
    const auto old = before.find(series);
    change[series] = Counts(name) && old != before.end() ? value - old->second : value;
  }
  return change;
}

WindowScraper::~WindowScraper() {
  if (thread_.joinable()) Finish().IgnoreError();
}

void WindowScraper::Start(double begin_s, double end_s) {
  EDDY_CHECK(!thread_.joinable());
  {
    MutexLock lock(&mu_);
    finish_ = false;
  }
  thread_ = std::thread([this, begin_s, end_s] { Run(begin_s, end_s); });
}

absl::StatusOr<WindowScraper::Result> WindowScraper::Finish() {
  EDDY_CHECK(thread_.joinable());
  {
    MutexLock lock(&mu_);
    finish_ = true;
    news_.NotifyAll();
  }
  thread_.join();
  return std::move(result_);
}

void WindowScraper::Run(double begin_s, double end_s) {
  const int64_t began_us = NowUs();
  const auto seconds = [&] { return static_cast<double>(NowUs() - began_us) / 1e6; };
  Result result;
  if (begin_s > 0) AwaitFinish(After(began_us, begin_s));
  result.begin_s = seconds();
  absl::StatusOr<Metrics> before = Read();
  AwaitFinish(After(began_us, end_s));
  result.end_s = seconds();
  absl::StatusOr<Metrics> after = Read();
  if (before.ok() && after.ok()) {
    result.change = Difference(*before, *after);
    result_ = std::move(result);
  } else {
    result_ = before.ok() ? after.status() : before.status();
  }
}

void WindowScraper::AwaitFinish(int64_t until_us) {
  MutexLock lock(&mu_);
  for (int64_t now = NowUs(); !finish_ && now < until_us; now = NowUs()) {
    // An infinite wait in parts, since the clock's library adds it to the time.
    news_.WaitFor(&mu_, absl::Microseconds(std::min<int64_t>(until_us - now, 60'000'000)));
  }
}

absl::StatusOr<Metrics> WindowScraper::Read() {
  EDDY_ASSIGN_OR_RETURN(const std::string page, get_());
  return ParseMetrics(page);
}

}  // namespace eddy::loadtest
