#include "kernels/layer.h"

#include <algorithm>

#include "base/check.h"

namespace eddy {
namespace {

const LayerSpec::Value& Find(const LayerSpec& spec, std::string_view name) {
  const auto found = std::find_if(spec.params.begin(), spec.params.end(),
                                  [&](const auto& param) { return param.first == name; });
  EDDY_CHECK(found != spec.params.end());
  return found->second;
}

const FieldView* FindField(std::span<const Field> wanted, std::span<const FieldView> given,
                           std::string_view name) {
  EDDY_CHECK(wanted.size() == given.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].name == name) return &given[i];
  }
  return nullptr;
}

}  // namespace

bool LayerSpec::IsNull(std::string_view name) const {
  return std::holds_alternative<std::monostate>(Find(*this, name));
}

int64_t LayerSpec::Int(std::string_view name) const {
  const Value& value = Find(*this, name);
  EDDY_CHECK(std::holds_alternative<int64_t>(value));
  return std::get<int64_t>(value);
}

double LayerSpec::Real(std::string_view name) const {
  const Value& value = Find(*this, name);
  if (std::holds_alternative<int64_t>(value)) return static_cast<double>(std::get<int64_t>(value));
  EDDY_CHECK(std::holds_alternative<double>(value));
  return std::get<double>(value);
}

bool LayerSpec::Flag(std::string_view name) const {
  const Value& value = Find(*this, name);
  EDDY_CHECK(std::holds_alternative<bool>(value));
  return std::get<bool>(value);
}

const std::string& LayerSpec::Word(std::string_view name) const {
  const Value& value = Find(*this, name);
  EDDY_CHECK(std::holds_alternative<std::string>(value));
  return std::get<std::string>(value);
}

const TensorView* FindWeight(const LayerNeeds& needs, const LayerParts& parts,
                             std::string_view name) {
  EDDY_CHECK(needs.weights.size() == parts.weights.size());
  for (size_t i = 0; i < needs.weights.size(); ++i) {
    if (needs.weights[i].name == name) return &parts.weights[i];
  }
  return nullptr;
}

const FieldView* FindState(const LayerNeeds& needs, const LayerParts& parts,
                           std::string_view name) {
  return FindField(needs.state, parts.state, name);
}

const FieldView* FindKv(const LayerNeeds& needs, const LayerParts& parts, std::string_view name) {
  return FindField(needs.kv, parts.kv, name);
}

}  // namespace eddy
