// Proves that layers whose matrices are bfloat16 obey the laws that hold to the bit: slots beyond
// 4,096 and 4 GiB, slots used before, lost numbers of a neighbour, copied records. Layers of each
// type, with heads of the sizes for which a GPU has kernels of their own, which float never sees.
// On the CPU, which has no bfloat16, the same in float.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/engine/mixed_models.h"
#include "tests/testing/layer_conformance.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

TEST(HalfLayers, ObeyTheLawsThatHoldToTheBit) {
  const std::unique_ptr<Device> device = testing::OpenTestDevice(DType::kBF16);
  const uint32_t seed = testing::TestSeed();
  for (const Mix& mix : {Tiles(), GptWithKalman()}) {
    const RandomModel model(mix.config, seed);
    const auto config = ReadModelConfig(model.path());
    ASSERT_TRUE(config.ok()) << config.status();
    for (size_t i = 0; i < config->blocks.size(); ++i) {
      const LayerSpec& spec = config->blocks[i].spec;
      testing::LayerCase test = {
          .name = std::string(mix.name) + " block " + std::to_string(i) + ", " + spec.type,
          .spec = spec,
          .tolerance = 4e-2};
      // More than one chunk, and less than a window's ring is asked for.
      test.rows = 140;
      testing::CheckLayerBits(*device, test, seed + static_cast<uint32_t>(i));
    }
  }
}

}  // namespace
}  // namespace eddy
