// Typed windows on memory that somebody else owns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eddy {

enum class DType : uint8_t { kF32, kBF16, kI32 };

constexpr int64_t SizeOf(DType type) { return type == DType::kBF16 ? 2 : 4; }

// A typed window on memory that somebody else owns. Row-major; unused dimensions are 1.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// One field of many records: a state field of every slot, or a key/value field of every page.
struct FieldView {
  std::byte* base = nullptr;
  int64_t stride = 0;  // bytes from one slot (or page) to the next; never derived from `shape`
  DType dtype = DType::kF32;
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  template <typename T>
  T* at(int64_t index) const {
    return reinterpret_cast<T*>(base + index * stride);
  }
};

}  // namespace eddy
