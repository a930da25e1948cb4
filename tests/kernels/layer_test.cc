// Proves that layer parameters are found and CHECKed, that the table of types is sound, and that
// weights are found by name.
#include "kernels/layer.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/layer_types.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

LayerSpec Spec() {
  return {.type = "swiglu",
          .d_model = 8,
          .norm_eps = 1e-6,
          .params = {{"size", int64_t{12}},
                     {"rate", 0.5},
                     {"on", true},
                     {"word", "silu"},
                     {"nothing", std::monostate{}}}};
}

TEST(LayerSpec, FindsParametersByNameAndKind) {
  const LayerSpec spec = Spec();
  EXPECT_EQ(spec.Int("size"), 12);
  EXPECT_EQ(spec.Real("rate"), 0.5);
  EXPECT_EQ(spec.Real("size"), 12.0) << "an integer counts as a real";
  EXPECT_TRUE(spec.Flag("on"));
  EXPECT_EQ(spec.Word("word"), "silu");
  EXPECT_TRUE(spec.IsNull("nothing"));
  EXPECT_FALSE(spec.IsNull("size"));
}

TEST(LayerSpecDeathTest, ChecksThatAParameterIsThereAndOfItsKind) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // BLAS has threads
  const LayerSpec spec = Spec();
  EXPECT_DEATH(spec.Int("width"), "CHECK failed");
  EXPECT_DEATH(spec.Int("rate"), "CHECK failed");
  EXPECT_DEATH(spec.Word("on"), "CHECK failed");
}

TEST(LayerTypes, AreFoundByTheirNamesAndHaveAllParts) {
  std::set<std::string> names;
  for (const LayerType* type : LayerTypes()) {
    EXPECT_TRUE(names.insert(type->name).second) << type->name;
    EXPECT_EQ(FindLayerType(type->name), type);
    EXPECT_NE(type->needs, nullptr);
    EXPECT_NE(type->make_cpu, nullptr);
    for (const ParamRule& rule : type->params) {
      EXPECT_EQ(rule.kind == ParamRule::kWord, !rule.words.empty()) << rule.name;
      EXPECT_LE(rule.min, rule.max) << rule.name;
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"attention", "delta", "gelu", "gla", "kalman", "longhorn",
                                          "mamba", "mamba2", "mlstm", "swiglu"}));
  EXPECT_EQ(FindLayerType("nonesuch"), nullptr);
}

TEST(LayerParts, AreFoundByTheNamesOfTheNeeds) {
  const LayerNeeds needs = FindLayerType("swiglu")->needs(Spec(), DeviceTraits{});
  std::vector<TensorView> weights(needs.weights.size());
  const LayerParts parts{.weights = weights};
  EXPECT_EQ(FindWeight(needs, parts, "norm.weight"), &weights[0]);
  EXPECT_EQ(FindWeight(needs, parts, "down.weight"), &weights[3]);
  EXPECT_EQ(FindWeight(needs, parts, "out.weight"), nullptr);
  EXPECT_EQ(FindState(needs, parts, "state"), nullptr);
}

TEST(StateLayout, PutsPersistentFieldsFirstOnAlignedPlaces) {
  std::vector<LayerNeeds> layers(2);
  layers[0].state = {{.name = "a", .shape = {3, 5, 1, 1}},
                     {.name = "ring", .shape = {100, 1, 1, 1}, .transient = true}};
  layers[1].state = {{.name = "b", .dtype = DType::kBF16, .shape = {1, 1, 1, 1}}};
  const StateLayout layout(layers);
  EXPECT_EQ(FieldBytes(layers[0].state[0]), 60);
  EXPECT_EQ(FieldBytes(layers[1].state[0]), 2);
  EXPECT_EQ(layout.offset(0, 0), 0);
  EXPECT_EQ(layout.offset(1, 0), 256);
  EXPECT_EQ(layout.persistent_bytes(), 512);
  EXPECT_EQ(layout.offset(0, 1), 512);
  EXPECT_EQ(layout.record_bytes(), 1024);
}

}  // namespace
}  // namespace eddy
