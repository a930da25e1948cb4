// Random inputs of the delta rule in the types of its chunk form, and the rule in float64.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.h"

namespace eddy {

using Bf16s = std::vector<__nv_bfloat16>;

enum class Keys { kUnit, kRaw, kAlike };         // raw: Kaczmarz, beta / |k|^2
enum class Gate { kMild, kSteep, kForgetting };  // forgetting: now and then -200 or -infinity

struct Case {
  std::string name;
  DeltaRuleShape shape;
  DeltaDecay decay = DeltaDecay::kHead;
  bool has_w = false;
  Keys keys = Keys::kUnit;
  Gate gate = Gate::kMild;
  DType out_type = DType::kBF16;
  DType states = DType::kF32;
};

struct Pack {
  std::vector<int32_t> row_start = {0};
  std::vector<int32_t> slots;
  int singles = 0, longest = 0;
  int rows() const { return row_start.back(); }
  int sequences() const { return static_cast<int>(slots.size()); }
  void Add(int rows, int32_t slot) {
    row_start.push_back(row_start.back() + rows);
    slots.push_back(slot);
    longest = std::max(longest, rows);
    if (rows == 1 && singles == sequences() - 1) ++singles;
  }
};

struct Inputs {
  Bf16s q, k, w, v;
  std::vector<float> beta, g;
  std::vector<float> records;  // [slots, stride]
  int64_t record_floats = 0;
};

inline float Uniform(std::mt19937& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

inline void UnitRow(std::mt19937& random, int64_t width, float length, __nv_bfloat16* to) {
  std::normal_distribution<float> normal;
  std::vector<float> row(width);
  double sum = 1e-6;
  for (float& x : row) sum += std::pow(x = normal(random), 2);
  for (int64_t i = 0; i < width; ++i) {
    to[i] = __float2bfloat16(row[i] * length / static_cast<float>(std::sqrt(sum)));
  }
}

inline float LogDecay(std::mt19937& random, Gate gate) {
  if (gate == Gate::kSteep) return -5.0f * Uniform(random, 0, 1);
  if (gate == Gate::kForgetting && Uniform(random, 0, 1) < 0.05f) {
    return Uniform(random, 0, 1) < 0.5f ? -200.0f : -std::numeric_limits<float>::infinity();
  }
  return -0.1f * Uniform(random, 0, 1);
}

inline Inputs Draw(std::mt19937& random, const Case& c, int rows, int slots) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  Inputs in;
  in.q.resize(rows * heads * key_dim);
  in.k.resize(in.q.size());
  in.v.resize(rows * value_heads * value_dim);
  std::normal_distribution<float> normal;
  const float scale = 1 / std::sqrt(static_cast<float>(key_dim));
  for (int64_t i = 0; i < rows * heads; ++i) {
    UnitRow(random, key_dim, scale, &in.q[i * key_dim]);
    const float length = c.keys == Keys::kRaw ? std::exp(normal(random)) : 1.0f;
    UnitRow(random, key_dim, length, &in.k[i * key_dim]);
    if (c.keys == Keys::kAlike && i >= heads && Uniform(random, 0, 1) < 0.7f) {
      std::copy_n(&in.k[(i - heads) * key_dim], key_dim, &in.k[i * key_dim]);
    }
  }
  for (auto& x : in.v) x = __float2bfloat16(normal(random));
  for (int64_t i = 0; i < rows * value_heads; ++i) {
    float beta = Uniform(random, 0.05f, 1.0f);
    const int64_t head = i % value_heads / (value_heads / heads);
    const __nv_bfloat16* k = &in.k[(i / value_heads * heads + head) * key_dim];
    float squares = 1e-6f;
    for (int64_t d = 0; d < key_dim; ++d) squares += std::pow(__bfloat162float(k[d]), 2.0f);
    if (c.keys == Keys::kRaw) beta /= squares;
    in.beta.push_back(beta);
    for (int64_t d = 0; d < key_dim && c.has_w; ++d) {
      in.w.push_back(__float2bfloat16(__bfloat162float(k[d]) * Uniform(random, 0, 1.8f)));
    }
    const int64_t decays =
        c.decay == DeltaDecay::kNone ? 0 : (c.decay == DeltaDecay::kHead ? 1 : key_dim);
    for (int64_t d = 0; d < decays; ++d) in.g.push_back(LogDecay(random, c.gate));
  }
  in.record_floats = value_heads * key_dim * value_dim + 64;
  in.records.resize(slots * in.record_floats);
  for (float& x : in.records) {
    x = normal(random);
    if (c.states == DType::kBF16) x = FromBF16(ToBF16(x));
  }
  return in;
}

// The recurrence of delta_rule.h for one head of one sequence.
inline void Recur(const Case& c, const Inputs& in, int first, int rows, int64_t head, double* s,
                  double* out) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  for (int64_t row = first; row < first + rows; ++row) {
    const int64_t at = row * value_heads + head;
    const int64_t key_at = (row * heads + head / (value_heads / heads)) * key_dim;
    std::vector<double> e(value_dim), o(value_dim);
    for (int64_t m = 0; m < value_dim; ++m) e[m] = __bfloat162float(in.v[at * value_dim + m]);
    for (int64_t d = 0; d < key_dim; ++d) {
      double decay = 1;
      if (c.decay == DeltaDecay::kHead) decay = std::exp(static_cast<double>(in.g[at]));
      if (c.decay == DeltaDecay::kChannel) {
        decay = std::exp(static_cast<double>(in.g[at * key_dim + d]));
      }
      const double k = __bfloat162float(in.k[key_at + d]);
      for (int64_t m = 0; m < value_dim; ++m) {
        s[d * value_dim + m] *= decay;
        e[m] -= k * s[d * value_dim + m];
      }
    }
    for (int64_t d = 0; d < key_dim; ++d) {
      const double w = __bfloat162float(c.has_w ? in.w[at * key_dim + d] : in.k[key_at + d]);
      const double q = __bfloat162float(in.q[key_at + d]);
      for (int64_t m = 0; m < value_dim; ++m) {
        s[d * value_dim + m] += w * in.beta[at] * e[m];
        o[m] += q * s[d * value_dim + m];
      }
    }
    std::copy(o.begin(), o.end(), out + at * value_dim);
  }
}

}  // namespace eddy
