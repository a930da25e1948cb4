// What tests of single CUDA kernels share: arrays on the GPU, pools of records with gaps, and
// random ways to cut sequences into steps. Such a test skips where there is no GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/step.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/gpu.h"

namespace eddy::cuda_test {

using Floats = std::vector<float>;
using Random = std::mt19937_64;
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// A fresh seed each run, printed, unless EDDY_TEST_SEED is set.
inline uint64_t TestSeed() {
  const char* given = std::getenv("EDDY_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

inline int64_t Pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}
inline Floats Uniform(Random& random, int64_t n, float low, float high) {
  Floats x(static_cast<size_t>(n));
  for (float& value : x) value = std::uniform_real_distribution<float>(low, high)(random);
  return x;
}

inline float RoundTo(DType type, float x) {
  return type == DType::kF32 ? x : __bfloat162float(__float2bfloat16(x));
}

// Memory on the GPU.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : size_(bytes) {
    Check(cudaMalloc(&data_, std::max<size_t>(bytes, 1)));
    Check(cudaMemset(data_, 0xff, bytes));  // NaN in both types
  }
  DeviceBytes(const void* from, size_t bytes) : DeviceBytes(bytes) {
    Check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  }
  DeviceBytes(DeviceBytes&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  size_t size() const { return size_; }
  template <typename T = float>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T = float>
  std::vector<T> Read() const {
    std::vector<T> host(size_ / sizeof(T));
    Check(cudaMemcpy(host.data(), data_, size_, cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

template <typename T>
DeviceBytes Upload(const std::vector<T>& host) {
  return DeviceBytes(host.data(), host.size() * sizeof(T));
}

inline DeviceBytes UploadAs(DType type, const Floats& host) {
  if (type == DType::kF32) return Upload(host);
  std::vector<__nv_bfloat16> rounded;
  for (float x : host) rounded.push_back(__float2bfloat16(x));
  return Upload(rounded);
}

inline Floats ReadAs(DType type, const DeviceBytes& bytes) {
  if (type == DType::kF32) return bytes.Read<float>();
  Floats host;
  for (__nv_bfloat16 x : bytes.Read<__nv_bfloat16>()) host.push_back(__bfloat162float(x));
  return host;
}

// Records of slots 0 .. `slots`, in which float fields lie side by side with a gap behind them.
// All begins as NaN.
class Pool {
 public:
  Pool(int64_t slots, std::vector<int64_t> field_sizes, int64_t align, int64_t gap)
      : sizes_(std::move(field_sizes)), slots_(slots), align_(align), gap_(gap) {
    for (int64_t size : sizes_) {
      offsets_.push_back(stride_);
      stride_ += (size + align - 1) / align * align;
    }
    stride_ += gap;
    device_ = std::make_unique<DeviceBytes>(static_cast<size_t>((slots + 1) * stride_) * 4);
    host_ = device_->Read<float>();
  }
  // Another one of the same layout.
  Pool Fresh() const { return Pool(slots_, sizes_, align_, gap_); }
  FieldView Field(size_t field) const {
    return {.base = device_->as<std::byte>() + offsets_[field] * 4, .stride = stride_ * 4};
  }
  // The same in the copy on the host.
  FieldView HostField(size_t field) {
    return {.base = reinterpret_cast<std::byte*>(host_.data() + offsets_[field]),
            .stride = stride_ * 4};
  }
  std::span<float> At(int64_t slot, size_t field) {
    return std::span(host_).subspan(static_cast<size_t>(slot * stride_ + offsets_[field]),
                                    static_cast<size_t>(sizes_[field]));
  }
  void Write() {
    Check(cudaMemcpy(device_->as(), host_.data(), host_.size() * 4, cudaMemcpyHostToDevice));
  }
  void Read() { host_ = device_->Read<float>(); }
  // The bits of all that lies outside the fields of slots 1 .. used.
  bool OthersAreUntouched(int64_t used) {
    std::vector<uint32_t> bits(host_.size());
    std::memcpy(bits.data(), host_.data(), host_.size() * 4);
    for (size_t i = 0; i < bits.size(); ++i) {
      const int64_t slot = static_cast<int64_t>(i) / stride_,
                    at = static_cast<int64_t>(i) % stride_;
      bool field = false;
      for (size_t f = 0; f < sizes_.size(); ++f) {
        field |= at >= offsets_[f] && at < offsets_[f] + sizes_[f];
      }
      if (!(field && slot >= 1 && slot <= used) && bits[i] != 0xffffffffu) return false;
    }
    return true;
  }

 private:
  std::vector<int64_t> sizes_, offsets_;
  int64_t slots_, align_, gap_, stride_ = 0;
  std::unique_ptr<DeviceBytes> device_;
  Floats host_;
};

// One step of some sequences; `sequence` -1 is padding.
struct Plan {
  std::vector<int32_t> row_start = {0}, slots = {};
  std::vector<int> sequence = {}, first_row = {};
  int single = 0, max_rows = 0;
  int rows() const { return row_start.back(); }
  void Add(int index, int first, int count) {
    sequence.push_back(index);
    first_row.push_back(first);
    slots.push_back(index < 0 ? kNoSlot : index + 1);  // sequence i lives in slot i + 1
    row_start.push_back(row_start.back() + count);
    max_rows = std::max(max_rows, count);
  }
};

// Feeds each sequence its rows in steps of random sizes and random company.
inline std::vector<Plan> RandomPlans(Random& random, std::vector<int> rows) {
  std::vector<Plan> plans;
  std::vector<int> done(rows.size(), 0);
  while (done != rows) {
    Plan plan;
    std::vector<std::pair<int, int>> many;  // sequence, rows
    for (int i = 0; i < std::ssize(rows); ++i) {
      const int left = rows[i] - done[i];
      if (left == 0 || Pick(random, 0, 4) == 0) continue;
      const int count =
          static_cast<int>(Pick(random, 0, 1) == 0 ? 1 : Pick(random, 1, std::min(left, 90)));
      if (count == 1 && Pick(random, 0, 3) > 0) {
        if (Pick(random, 0, 3) == 0) plan.Add(-1, 0, 1);
        plan.Add(i, done[i]++, 1);
      } else {
        many.emplace_back(i, count);
      }
    }
    plan.single = static_cast<int>(plan.slots.size());
    for (const auto& [i, count] : many) {
      if (Pick(random, 0, 3) == 0) plan.Add(-1, 0, static_cast<int>(Pick(random, 1, 5)));
      plan.Add(i, done[i], count);
      done[i] += count;
    }
    if (plan.rows() > 0) plans.push_back(plan);
  }
  return plans;
}

// Every row is a decoding one: each alone in its step, or those of all sequences together, with
// padding among them.
inline std::vector<Plan> DecodingPlans(Random& random, const std::vector<int>& rows,
                                       bool together) {
  std::vector<Plan> plans;
  const int most = *std::ranges::max_element(rows);
  for (int t = 0; t < most; ++t) {
    for (int i = 0; i < std::ssize(rows); ++i) {
      if (t >= rows[i]) continue;
      if (!together || plans.empty() || plans.back().first_row.back() != t) plans.emplace_back();
      if (together && Pick(random, 0, 4) == 0) plans.back().Add(-1, t, 1);
      plans.back().Add(i, t, 1);
      plans.back().single = static_cast<int>(plans.back().slots.size());
    }
  }
  return plans;
}

// Rows of a plan out of [rows, width] per sequence, at `stride`; NaN between them and for padding.
inline Floats Gather(const Plan& plan, const std::vector<Floats>& from, int64_t width,
                     int64_t stride) {
  Floats rows(static_cast<size_t>(plan.rows() * stride), kNan);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.sequence[i] < 0) continue;
    const float* source = from[plan.sequence[i]].data() + plan.first_row[i] * width;
    for (int r = plan.row_start[i]; r < plan.row_start[i + 1]; ++r, source += width) {
      std::copy_n(source, width, rows.data() + r * stride);
    }
  }
  return rows;
}

// Back again; expects zeros for padding and NaN between the rows.
inline void Scatter(const Plan& plan, const Floats& rows, int64_t width, int64_t stride,
                    std::vector<Floats>& to) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    for (int r = plan.row_start[i]; r < plan.row_start[i + 1]; ++r) {
      for (int64_t c = 0; c < stride; ++c) {
        const float value = rows[r * stride + c];
        if (c >= width) {
          ASSERT_TRUE(std::isnan(value)) << "written between rows";
        } else if (plan.sequence[i] < 0) {
          ASSERT_EQ(value, 0.0f) << "padding";
        } else {
          to[plan.sequence[i]][(plan.first_row[i] + r - plan.row_start[i]) * width + c] = value;
        }
      }
    }
  }
}

class DeviceStep {
 public:
  explicit DeviceStep(const Plan& plan)
      : row_start_(Upload(plan.row_start)),
        slots_(Upload(plan.slots)),
        step{.rows = plan.rows(),
             .sequences = static_cast<int>(plan.slots.size()),
             .single_row_sequences = plan.single,
             .max_rows_per_sequence = plan.max_rows,
             .row_start = row_start_.as<int32_t>(),
             .slots = slots_.as<int32_t>()} {}

 private:
  DeviceBytes row_start_, slots_;

 public:
  Step step;
};

// L2 distance relative to `scale`, 0: to the size of `want`; infinite if anything is not finite.
inline double Distance(std::span<const float> got, std::span<const double> want, double scale = 0) {
  double off = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    off += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(off) / std::max(scale > 0 ? scale : std::sqrt(size), 1e-30);
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace eddy::cuda_test
