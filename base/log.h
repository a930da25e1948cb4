// One line per event on standard error, as JSON or as text. Thread-safe.
//
//   Log(LogLevel::kInfo, "request_end", {{"request_id", id}, {"tokens", 12}});
//
// Never pass prompts, generated text or metadata values. No error is both logged and returned.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace eddy {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kJson, kText };

// One name and value of a log line; the value is already in its JSON form.
class LogField {
 public:
  LogField(std::string_view name, std::string_view value);
  LogField(std::string_view name, const std::string& value)
      : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, const char* value) : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, bool value);
  LogField(std::string_view name, double value);
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
      LogField(std::string_view name, T value)
      : name_(name), json_(std::to_string(value)) {}

  const std::string& name() const { return name_; }
  const std::string& json() const { return json_; }

 private:
  std::string name_;
  std::string json_;
};

// Called once, before the first thread is started. Until then: kInfo, JSON.
void ConfigureLog(LogLevel least, LogFormat format);
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// `text` as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string JsonQuote(std::string_view text);

}  // namespace eddy
