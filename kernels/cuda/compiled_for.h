// What the kernels that the card runs were compiled for. It is not what the card could do: a card
// newer than any machine code in here runs what its driver makes of the PTX of the oldest
// architecture, and that knows nothing of dependent launches, clusters or warpgroups. So whoever
// launches a kernel in a way of which the kernel must know asks this, and never the card.
#pragma once

namespace eddy {

struct CompiledFor {
  // __CUDA_ARCH__ of the kernels, 800 or 900 say; 0 if the card can run none of them.
  int arch = 0;
  // Whether they have what sm_90a alone has: products of four warps (wgmma.cuh).
  bool warpgroups = false;
  // Whether the driver compiled them, from PTX.
  bool by_driver = false;

  // Kernels that WaitForPrevious (launch.cuh), and blocks that form clusters.
  bool launches_dependent() const { return arch >= 900; }
  bool clusters() const { return arch >= 900; }
};

// For the current device, asked once: a process has one device. While a stream is recorded too.
const CompiledFor& KernelsCompiledFor();

}  // namespace eddy
