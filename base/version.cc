#include "base/version.h"

namespace eddy {

std::string_view Version() { return EDDY_VERSION; }
std::string_view Commit() { return EDDY_COMMIT; }

}  // namespace eddy
