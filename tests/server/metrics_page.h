// The page that Prometheus reads, as a map.
#pragma once

#include <prometheus/text_serializer.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace eddy {

// "name{labels}" -> value.
using Page = std::map<std::string, double>;

inline Page Parse(const std::string& text) {
  Page page;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    page[std::string(line.substr(0, space))] =
        std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr);
  }
  return page;
}

inline std::string Text(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace eddy
