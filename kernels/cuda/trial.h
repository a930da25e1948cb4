// What is needed to try out algorithms while loading. Internal to the products; errors show as
// launch errors.
#pragma once

#include <cstdint>

#include "kernels/step.h"

namespace eddy {

// A product on which an order of summation shows. bfloat16, about normal, of variance one; but the
// second half of each row of w [rows, width] is the first one's negative, and the two halves of
// every other row of x [rows, stride] are the same: where these meet all cancels, and nothing is
// left but the rounding of each sum, which results of bfloat16 show as well as float.
void FillTrialW(Stream stream, void* w, int64_t rows, int64_t width);
void FillTrialX(Stream stream, void* x, int64_t rows, int64_t width, int64_t stride);

// Adds to `*count`, on the device, the number of 32-bit words in which a and b differ.
void CountDifferences(Stream stream, const void* a, const void* b, int64_t words, int32_t* count);

}  // namespace eddy
