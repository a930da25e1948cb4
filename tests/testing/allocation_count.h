// Counts what operator new is asked for on the calling thread, in programs that link this.
#pragma once

#include <cstdint>

namespace eddy::testing {

int64_t AllocationCount();

}  // namespace eddy::testing
