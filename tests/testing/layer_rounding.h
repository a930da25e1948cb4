// Layers against their references where no one number bounds what float may do: with a norm's small
// epsilon, a head whose output nearly vanishes has its rounding magnified a hundredfold and more.
#pragma once

#include <random>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy::testing {

// What float may do to each element of the outputs `want` of rows `x`. The reference itself shows
// how far a row moves when weights and inputs move by a unit in the last place of float; rounding
// inside the layer is a few times that.
std::vector<double> RowTolerance(const LayerCase& test, const Weights& weights,
                                 const std::vector<float>& x, const std::vector<double>& want,
                                 std::mt19937& random);

// Compares the outputs of 1 to 200 rows, fed in random pieces, with the reference, within
// RowTolerance.
void CheckLayerRounding(Device& device, const LayerCase& test, uint32_t seed);

}  // namespace eddy::testing
