// Which eddy this is.
#pragma once

#include <string_view>

namespace eddy {

std::string_view Version();  // "0.1.0"
std::string_view Commit();   // of the source tree when it was configured; "unknown" without git

}  // namespace eddy
