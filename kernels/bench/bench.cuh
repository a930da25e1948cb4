// What the benches of single CUDA kernels share: timing by replayed graphs, and a table.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace eddy::bench {

inline void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Zeroed memory on the GPU that lives as long as the program.
template <typename T = float>
T* Zeros(int64_t count) {
  void* data = nullptr;
  Check(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)));
  Check(cudaMemset(data, 0, static_cast<size_t>(count) * sizeof(T)));
  return static_cast<T*>(data);
}

template <typename T>
T* Upload(const std::vector<T>& host) {
  T* data = Zeros<T>(static_cast<int64_t>(host.size()));
  Check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// Microseconds of one call of `work(stream, round)`: the median of many replays of a graph of
// `rounds` calls, which the work uses to go round buffers larger than the cache.
inline double Time(int rounds, const std::function<void(cudaStream_t, int)>& work) {
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreate(&stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int round = 0; round < rounds; ++round) work(stream, round);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 33; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(exec, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::ranges::sort(times);
  Check(cudaGraphExecDestroy(exec));
  Check(cudaGraphDestroy(graph));
  Check(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1e3 / rounds;
}

// `share_of`: GB/s that the memory of the card can copy at.
inline void Line(const char* what, double us, double bytes, double share_of = 4250) {
  const double gb_per_s = bytes / us * 1e-3;
  std::printf("%-52s %9.2f us %8.2f MB %7.0f GB/s %5.1f %%\n", what, us, bytes * 1e-6, gb_per_s,
              100 * gb_per_s / share_of);
}

}  // namespace eddy::bench
