// The table of layer types: the only list of them.
#pragma once

#include <span>
#include <string_view>

#include "kernels/layer.h"

namespace eddy {

std::span<const LayerType* const> LayerTypes();
// Null if there is none of that name.
const LayerType* FindLayerType(std::string_view name);

}  // namespace eddy
