#include "base/log.h"

#include <atomic>
#include <cmath>
#include <cstdio>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/utf8.h"

namespace eddy {
namespace {

std::atomic<LogLevel> least_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kJson};

constexpr const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

}  // namespace

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

LogField::LogField(std::string_view name, std::string_view value)
    : name_(name), json_(JsonQuote(value)) {}
LogField::LogField(std::string_view name, bool value)
    : name_(name), json_(value ? "true" : "false") {}
LogField::LogField(std::string_view name, double value) : name_(name) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  json_ = std::isfinite(value) ? text : JsonQuote(text);
}

void ConfigureLog(LogLevel least, LogFormat format) {
  least_level = least;
  log_format = format;
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (level < least_level.load(std::memory_order_relaxed)) return;
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
  std::string line;
  if (log_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    line = "{\"time\":\"" + time + "\",\"level\":\"" + LevelName(level) +
           "\",\"event\":" + JsonQuote(event);
    for (const LogField& field : fields) line += "," + JsonQuote(field.name()) + ":" + field.json();
    line += "}\n";
  } else {
    line = time + " " + LevelName(level) + " " + std::string(event);
    for (const LogField& field : fields) line += " " + field.name() + "=" + field.json();
    line += "\n";
  }
  // One write: lines of different threads do not mix.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace eddy
