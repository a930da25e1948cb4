#include "engine/step_buffers.h"

#include <algorithm>

#include "base/check.h"

namespace eddy {

int64_t StepBuffers::Bytes(int max_rows, int max_sequences) {
  // tokens, row_start, slots, positions
  return (int64_t{max_rows} + 3 * int64_t{max_sequences} + 1) * int64_t{sizeof(int32_t)};
}

std::optional<StepBuffers> StepBuffers::Allocate(Device* device, int max_rows, int max_sequences) {
  StepBuffers buffers(device, max_rows, max_sequences);
  buffers.host_ = device->AllocateHost(Bytes(max_rows, max_sequences));
  buffers.on_device_ = device->Allocate(Bytes(max_rows, max_sequences));
  if (!buffers.host_ || !buffers.on_device_) return std::nullopt;
  buffers.Clear();
  return buffers;
}

void StepBuffers::Clear() {
  rows_ = sequences_ = max_rows_per_sequence_ = 0;
  static_cast<int32_t*>(host_.data())[row_start_at()] = 0;
}

void StepBuffers::Add(int32_t slot, int64_t position, std::span<const int32_t> tokens) {
  const auto rows = static_cast<int>(tokens.size());
  EDDY_CHECK(sequences_ < max_sequences_ && rows <= max_rows_ - rows_);
  EDDY_CHECK(position >= 0 && position <= INT32_MAX - rows);
  auto* const host = static_cast<int32_t*>(host_.data());
  std::copy(tokens.begin(), tokens.end(), host + rows_);
  host[slots_at() + sequences_] = slot;
  host[positions_at() + sequences_] = static_cast<int32_t>(position);
  rows_ += rows;
  ++sequences_;
  host[row_start_at() + sequences_] = rows_;
  max_rows_per_sequence_ = std::max(max_rows_per_sequence_, rows);
}

Step StepBuffers::Upload(int single_row_sequences) {
  const auto* const host = static_cast<const std::byte*>(host_.data());
  device_->Upload(on_device_.data(), {host, static_cast<size_t>(Bytes(max_rows_, max_sequences_))});
  const auto* const base = static_cast<const int32_t*>(on_device_.data());
  return {.rows = rows_,
          .sequences = sequences_,
          .single_row_sequences = single_row_sequences,
          .max_rows_per_sequence = max_rows_per_sequence_,
          .tokens = base,
          .row_start = base + row_start_at(),
          .slots = base + slots_at(),
          .positions = base + positions_at()};
}

}  // namespace eddy
