#include <array>

#include "engine/adapters/adapter.h"

namespace eddy {

std::span<const Adapter> Adapters() {
  static constexpr std::array kAdapters = {
      Adapter{"eddy", ReadNative},
      Adapter{"delta_net", ReadDeltaNet},
      Adapter{"gated_deltanet", ReadGatedDeltaNet},
      Adapter{"kda", ReadKda},
      Adapter{"kaczmarz_gated_deltanet", ReadKaczmarz},
  };
  return kAdapters;
}

}  // namespace eddy
