// What is needed to try out algorithms while loading. Internal to the products; errors show as
// launch errors.
#pragma once

#include <cstdint>

#include "kernels/step.h"

namespace eddy {

// Random bfloat16, about normal, of variance one.
void FillTrial(Stream stream, void* halves, int64_t count, uint32_t seed);

// Adds to `*count`, on the device, the number of 32-bit words in which a and b differ.
void CountDifferences(Stream stream, const void* a, const void* b, int64_t words, int32_t* count);

}  // namespace eddy
