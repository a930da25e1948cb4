#include <array>

#include "engine/adapters/adapter.h"

namespace eddy {

std::span<const Adapter> Adapters() {
  static constexpr std::array kAdapters = {
      Adapter{"eddy", ReadNative},
      Adapter{"delta_net", ReadDeltaNet, FitFla},
      Adapter{"gated_deltanet", ReadGatedDeltaNet, FitFla},
      Adapter{"kda", ReadKda, FitKda},
      Adapter{"gla", ReadGla, FitFla},
      Adapter{"mamba", ReadMamba},
      Adapter{"mamba2", ReadMamba2},
      Adapter{"xlstm", ReadXlstm},
      Adapter{"kaczmarz_gated_deltanet", ReadKaczmarz},
      Adapter{"osla_delta_net", ReadOsdnDeltaNet, FitOsdn},
      Adapter{"os_gated_deltanet", ReadOsdnGatedDeltaNet, FitOsdn},
      Adapter{"os_kda", ReadOsdnKda, FitOsdnKda},
      Adapter{"kalman_linear_attention", ReadKalman},
  };
  return kAdapters;
}

}  // namespace eddy
