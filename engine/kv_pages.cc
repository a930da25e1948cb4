#include "engine/kv_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/float_formats.h"
#include "kernels/state_layout.h"

namespace eddy {

KvLayout::KvLayout(std::span<const LayerNeeds> layers, int rows_per_page)
    : rows_per_page_(rows_per_page) {
  bool reads_all = false;
  for (const LayerNeeds& layer : layers) {
    fields_.push_back(layer.kv);
    offsets_.emplace_back();
    for (const Field& field : layer.kv) {
      EDDY_CHECK(rows_per_page >= 1 && field.shape[3] == 1);
      offsets_.back().push_back(page_bytes_);
      const int64_t bytes = rows_per_page * FieldBytes(field);
      page_bytes_ += (bytes + StateLayout::kAlign - 1) / StateLayout::kAlign * StateLayout::kAlign;
      bytes_per_token_ += FieldBytes(field);
    }
    if (layer.kv.empty()) continue;
    reads_all |= layer.kv_window == 0;
    window_ = std::max(window_, layer.kv_window);
  }
  if (reads_all) window_ = 0;
}

std::optional<KvPages> KvPages::Allocate(Device* device, KvLayout layout, int pages) {
  KvPages kv(device, std::move(layout));
  if (kv.layout_.page_bytes() == 0) return kv;
  kv.memory_ = device->Allocate(kv.layout_.page_bytes() * (pages + 1));
  if (!kv.memory_) return std::nullopt;
  return kv;
}

FieldView KvPages::View(size_t layer, size_t field) const {
  const Field& of = layout_.fields(layer)[field];
  return {.base = static_cast<std::byte*>(memory_.data()) + layout_.offset(layer, field),
          .stride = layout_.page_bytes(),
          .dtype = of.dtype,
          .shape = {layout_.rows_per_page(), of.shape[0], of.shape[1], of.shape[2]}};
}

void KvPages::Poison([[maybe_unused]] std::span<const int32_t> lease) {
#ifndef NDEBUG
  static const std::vector<std::byte> kPoison(1 << 16, std::byte{0xFF});
  for (int32_t page : lease) {
    for (int64_t at = 0; at < layout_.page_bytes(); at += 1 << 16) {
      const int64_t bytes = std::min<int64_t>(1 << 16, layout_.page_bytes() - at);
      device_->Upload(At(page) + at, std::span(kPoison).first(static_cast<size_t>(bytes)));
    }
  }
#endif
}

template <typename Copy>
void KvPages::ForEachRun(std::span<const int32_t> lease, int64_t position, Copy copy) const {
  const int64_t first = layout_.first_kept(position), rows_per_page = layout_.rows_per_page();
  int64_t at = 0;
  for (size_t layer = 0; layer < layout_.layers(); ++layer) {
    for (size_t f = 0; f < layout_.fields(layer).size(); ++f) {
      const int64_t token_bytes = FieldBytes(layout_.fields(layer)[f]);
      for (int64_t begin = first, end = 0; begin < position; begin = end) {
        const int64_t number = begin / rows_per_page;
        end = std::min(position, (number + 1) * rows_per_page);
        const int32_t page = lease[static_cast<size_t>(number) % lease.size()];
        copy(At(page) + layout_.offset(layer, f) + begin % rows_per_page * token_bytes,
             static_cast<size_t>(at), static_cast<size_t>((end - begin) * token_bytes));
        at += (end - begin) * token_bytes;
      }
    }
  }
}

void KvPages::Fill(std::span<const int32_t> lease, int64_t position,
                   std::span<const std::byte> from) {
  EDDY_CHECK(static_cast<int64_t>(from.size()) == layout_.checkpoint_bytes(position));
  ForEachRun(lease, position, [&](std::byte* in_page, size_t at, size_t bytes) {
    device_->Upload(in_page, from.subspan(at, bytes));
  });
}

void KvPages::Save(std::span<const int32_t> lease, int64_t position, std::span<std::byte> to) {
  EDDY_CHECK(static_cast<int64_t>(to.size()) == layout_.checkpoint_bytes(position));
  ForEachRun(lease, position, [&](const std::byte* in_page, size_t at, size_t bytes) {
    device_->Download(to.subspan(at, bytes), in_page);
  });
}

absl::StatusOr<std::optional<RecordField>> KvPages::FirstNotFinite(std::span<const int32_t> lease,
                                                                   int64_t position) {
  std::vector<std::byte> kept(static_cast<size_t>(layout_.checkpoint_bytes(position)));
  Save(lease, position, kept);
  if (const auto error = device_->Finish()) return absl::UnavailableError(*error);
  const int64_t positions = position - layout_.first_kept(position);
  size_t at = 0;
  for (size_t layer = 0; layer < layout_.layers(); ++layer) {
    for (const Field& field : layout_.fields(layer)) {
      const auto bytes = static_cast<size_t>(positions * FieldBytes(field));
      if (!AllFinite(field.dtype, std::span(kept).subspan(at, bytes))) {
        return std::optional(RecordField{.layer = static_cast<int>(layer), .name = field.name});
      }
      at += bytes;
    }
  }
  return std::optional<RecordField>();
}

}  // namespace eddy
