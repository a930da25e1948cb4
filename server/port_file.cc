#include "server/port_file.h"

#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace eddy {

absl::Status WritePortFile(const std::string& path,
                           const std::vector<std::pair<std::string, int>>& ports) {
  std::string json;
  for (const auto& [name, port] : ports) {
    if (port == 0) continue;
    absl::StrAppend(&json, json.empty() ? "{" : ", ", JsonQuote(name), ": ", port);
  }
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished, std::ios::trunc);
  file << (json.empty() ? "{" : json) << "}\n";
  file.close();
  if (!file.good() || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port_file=", path, ": cannot be written: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace eddy
