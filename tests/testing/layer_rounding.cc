#include "tests/testing/layer_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace eddy::testing {

std::vector<double> RowTolerance(const LayerCase& test, const Weights& weights,
                                 const std::vector<float>& x, const std::vector<double>& want,
                                 std::mt19937& random) {
  // To the next float or the one after, up or down.
  const auto move = [&](std::vector<float> values) {
    for (float& value : values) {
      value *= 1 + std::uniform_real_distribution<float>(-1, 1)(random) * 1.2e-7f;
    }
    return values;
  };
  const auto width = static_cast<size_t>(test.spec.d_model);
  std::vector<double> reach(want.size() / width, 0.0);
  for (int draw = 0; draw < 4; ++draw) {
    Weights moved;
    for (const auto& [name, values] : weights) moved[name] = move(values);
    const int64_t rows = std::ssize(reach);
    const std::vector<double> other = test.reference(test.spec, moved, move(x), rows).out;
    for (size_t i = 0; i < want.size(); ++i) {
      reach[i / width] = std::max(reach[i / width], std::abs(other[i] - want[i]));
    }
  }
  std::vector<double> tolerance;
  for (size_t i = 0; i < want.size(); ++i) {
    tolerance.push_back(16 * reach[i / width] + 2e-6 * (1 + std::abs(want[i])));
  }
  return tolerance;
}

void CheckLayerRounding(Device& device, const LayerCase& test, uint32_t seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(1, most)(random);
  };
  const int64_t rows = up_to(200), d_model = test.spec.d_model;
  SCOPED_TRACE(test.name + ", " + std::to_string(rows) +
               " rows, EDDY_TEST_SEED=" + std::to_string(seed));
  Weights weights = RandomWeights(test.spec, seed, test.type);
  if (test.prepare) test.prepare(test.spec, weights);
  const std::vector<float> x = RandomRows(rows, d_model, seed + 1);
  LayerRig rig(device, test.spec, weights, /*slots=*/1, /*gap=*/0, /*rows_per_page=*/7, test.type);
  rig.Fill(1);
  std::vector<float> got;
  for (int64_t begin = 0; begin < rows;) {
    const int64_t end = std::min(rows, begin + up_to(up_to(2) == 1 ? 1 : rows));
    const std::vector<float> out =
        rig.Run({{.slot = 1, .x = {x.begin() + begin * d_model, x.begin() + end * d_model}}});
    got.insert(got.end(), out.begin(), out.end());
    begin = end;
  }
  const std::vector<double> want = test.reference(test.spec, weights, x, rows).out;
  const std::vector<double> tolerance = RowTolerance(test, weights, x, want, random);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance[i]) << "element " << i;
  }
}

}  // namespace eddy::testing
