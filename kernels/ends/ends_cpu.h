// Embedding, head and sampler on the CPU. Engine thread only; allocates only when made.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace eddy {

std::unique_ptr<Ends> MakeEndsCpu(const EndsSpec& spec, const EndsParts& parts, int max_rows);

}  // namespace eddy
