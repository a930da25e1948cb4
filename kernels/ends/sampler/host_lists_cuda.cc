#include "kernels/ends/sampler/host_lists_cuda.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace eddy {

HostLists::HostLists(int64_t vocab, int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  const size_t edits = 2 * static_cast<size_t>(vocab), also = 4 * kMostAlso;
  const size_t top = kMostTop + 32 * rows;
  constexpr size_t kAlign = 256;
  size_t bytes = 0;
  const auto place = [&](size_t size) {
    return std::exchange(bytes, bytes + (size + kAlign - 1) / kAlign * kAlign);
  };
  const size_t rows_at = place(rows * sizeof(StagedRow));
  const size_t edits_at = place(edits * sizeof(LogitEdit));
  const size_t also_at = place(also * sizeof(int32_t));
  const size_t outcomes_at = place(rows * sizeof(RowOutcome));
  const size_t top_at = place(top * sizeof(Candidate));
  const size_t also_logprobs_at = place(also * sizeof(float));
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) != cudaSuccess) return;
  memory_ = Buffer(memory, [](void* p) { cudaFreeHost(p); });
  auto* const base = static_cast<std::byte*>(memory);
  lists_ = {.rows = {reinterpret_cast<StagedRow*>(base + rows_at), rows},
            .edits = {reinterpret_cast<LogitEdit*>(base + edits_at), edits},
            .also = {reinterpret_cast<int32_t*>(base + also_at), also},
            .outcomes = {reinterpret_cast<RowOutcome*>(base + outcomes_at), rows},
            .top = {reinterpret_cast<Candidate*>(base + top_at), top},
            .also_logprobs = {reinterpret_cast<float*>(base + also_logprobs_at), also}};
}

}  // namespace eddy
