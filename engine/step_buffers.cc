#include "engine/step_buffers.h"

#include <algorithm>

#include "base/check.h"

namespace eddy {

int64_t StepBuffers::Bytes(const Size& size) {
  // tokens, row_start, slots, positions, pages
  const int64_t elements =
      int64_t{size.rows} + 3 * int64_t{size.sequences} + 1 + int64_t{size.sequences} * size.pages;
  return elements * int64_t{sizeof(int32_t)};
}

std::optional<StepBuffers> StepBuffers::Allocate(Device* device, const Size& size) {
  StepBuffers buffers(device, size);
  buffers.host_ = device->AllocateHost(Bytes(size));
  buffers.on_device_ = device->Allocate(Bytes(size));
  if (!buffers.host_ || !buffers.on_device_) return std::nullopt;
  buffers.Clear(/*max_pages=*/0);
  return buffers;
}

void StepBuffers::Clear(int max_pages) {
  EDDY_CHECK(max_pages >= 0 && max_pages <= size_.pages);
  rows_ = sequences_ = max_rows_per_sequence_ = 0;
  max_pages_ = max_pages;
  static_cast<int32_t*>(host_.data())[row_start_at()] = 0;
}

void StepBuffers::Add(int32_t slot, int64_t position, std::span<const int32_t> tokens,
                      std::span<const int32_t> pages) {
  const auto rows = static_cast<int>(tokens.size());
  EDDY_CHECK(sequences_ < size_.sequences && rows <= size_.rows - rows_);
  EDDY_CHECK(position >= 0 && position <= INT32_MAX - rows);
  EDDY_CHECK(pages.size() <= static_cast<size_t>(max_pages_));
  auto* const host = static_cast<int32_t*>(host_.data());
  std::copy(tokens.begin(), tokens.end(), host + rows_);
  host[slots_at() + sequences_] = slot;
  host[positions_at() + sequences_] = static_cast<int32_t>(position);
  int32_t* const line = host + pages_at() + int64_t{sequences_} * max_pages_;
  std::fill(std::copy(pages.begin(), pages.end(), line), line + max_pages_, kNoPage);
  rows_ += rows;
  ++sequences_;
  host[row_start_at() + sequences_] = rows_;
  max_rows_per_sequence_ = std::max(max_rows_per_sequence_, rows);
}

void StepBuffers::Pad(int sequences) {
  static constexpr int32_t kAnyToken = 0;
  while (sequences_ < sequences) Add(kNoSlot, /*position=*/0, std::span(&kAnyToken, 1), {});
}

Step StepBuffers::Upload(int single_row_sequences) {
  const auto* const host = static_cast<const std::byte*>(host_.data());
  const int64_t used = pages_at() + int64_t{sequences_} * max_pages_;
  device_->Upload(on_device_.data(), {host, static_cast<size_t>(used) * sizeof(int32_t)});
  const auto* const base = static_cast<const int32_t*>(on_device_.data());
  return {.rows = rows_,
          .sequences = sequences_,
          .single_row_sequences = single_row_sequences,
          .max_rows_per_sequence = max_rows_per_sequence_,
          .tokens = base,
          .row_start = base + row_start_at(),
          .slots = base + slots_at(),
          .positions = base + positions_at(),
          .pages = max_pages_ > 0 ? base + pages_at() : nullptr,
          .max_pages = max_pages_,
          .stream = device_->stream()};
}

}  // namespace eddy
