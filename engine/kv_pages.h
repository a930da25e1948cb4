// The bytes behind the pages: keys and values of all attention layers, some positions a page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/records.h"
#include "kernels/device.h"
#include "kernels/layer.h"

namespace eddy {

// Where each kv field of each layer lies in a page: one after another in the order of the layers,
// each [rows_per_page, shape...] on a multiple of StateLayout::kAlign. Immutable, any thread.
// Without attention layers a page has no bytes.
class KvLayout {
 public:
  KvLayout(std::span<const LayerNeeds> layers, int rows_per_page);

  int64_t offset(size_t layer, size_t field) const { return offsets_[layer][field]; }
  const std::vector<Field>& fields(size_t layer) const { return fields_[layer]; }
  size_t layers() const { return fields_.size(); }
  int rows_per_page() const { return rows_per_page_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes_per_token() const { return bytes_per_token_; }  // without what alignment adds
  // How many positions a row reads at most, itself included; 0: all of the past. If one layer reads
  // all, every page of a sequence is needed to its end, so the windows of the others save nothing.
  int64_t window() const { return window_; }
  // The positions before `position` that later rows may still read: those of a checkpoint. It holds
  // them field after field, [positions, shape...], whatever the size of the pages that they are
  // taken from or put into.
  int64_t first_kept(int64_t position) const {
    return window_ == 0 ? 0 : std::max<int64_t>(0, position - (window_ - 1));
  }
  int64_t checkpoint_bytes(int64_t position) const {
    return (position - first_kept(position)) * bytes_per_token_;
  }

 private:
  int rows_per_page_;
  std::vector<std::vector<Field>> fields_;     // [layer][field]
  std::vector<std::vector<int64_t>> offsets_;  // [layer][field], bytes
  int64_t page_bytes_ = 0;
  int64_t bytes_per_token_ = 0;
  int64_t window_ = 0;
};

// Position t of a sequence with the pages `lease` is row t % rows_per_page of page
// lease[(t / rows_per_page) % lease.size()], as PagePool and the layers have it. Copies are
// enqueued on the device's stream. Engine thread only, and loading before that. Uses the device,
// which outlives it.
class KvPages {
 public:
  // Memory for pages 0..pages; page 0 belongs to nobody. Nothing when memory is short.
  static std::optional<KvPages> Allocate(Device* device, KvLayout layout, int pages);

  // Where the layer finds field `field` of each page.
  FieldView View(size_t layer, size_t field) const;
  const KvLayout& layout() const { return layout_; }

  // Fills the pages with NaN, in debug builds only: so whoever reads what it has not written, or
  // what another wrote, is found out.
  void Poison(std::span<const int32_t> lease);
  // Puts into the pages what a checkpoint at `position` holds; `from` stays as it is until the
  // device has finished. REQUIRES: layout().checkpoint_bytes(position) bytes.
  void Fill(std::span<const int32_t> lease, int64_t position, std::span<const std::byte> from);
  // The reverse.
  void Save(std::span<const int32_t> lease, int64_t position, std::span<std::byte> to);
  // The first field with a NaN or infinity at one of the positions that a checkpoint would hold.
  // Waits for the device; its error is the device's.
  absl::StatusOr<std::optional<RecordField>> FirstNotFinite(std::span<const int32_t> lease,
                                                            int64_t position);

 private:
  KvPages(Device* device, KvLayout layout) : device_(device), layout_(std::move(layout)) {}
  std::byte* At(int32_t page) const {
    return static_cast<std::byte*>(memory_.data()) + layout_.page_bytes() * page;
  }
  // Calls copy(bytes in a page, where they begin in the checkpoint, how many) for each run of
  // positions of a field that lie together.
  template <typename Copy>
  void ForEachRun(std::span<const int32_t> lease, int64_t position, Copy copy) const;

  Device* device_;
  KvLayout layout_;
  Buffer memory_;
};

}  // namespace eddy
