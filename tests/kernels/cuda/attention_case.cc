#include "tests/kernels/cuda/attention_case.h"

#include <numeric>
#include <utility>

namespace eddy::cuda_test {
namespace {

Floats Normal(int64_t n, Random& random, float size) {
  std::normal_distribution<float> normal(0, size);
  Floats values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

int64_t RoundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int64_t FieldBytes(const AttentionCase& of) {
  const int64_t row = of.shape.kv_heads * of.shape.head_dim * SizeOf(of.type);
  return RoundUp(of.rows_per_page * row, 256);
}

int64_t MaxPages(const AttentionCase& of, const std::vector<AttentionRows>& sequences) {
  int64_t all = 1;
  for (const AttentionRows& rows : sequences) {
    all = std::max(all, (rows.rows + of.rows_per_page - 1) / of.rows_per_page);
  }
  if (of.window == 0) return all;
  return std::min(all, RingPages({.window = of.window,
                                  .max_rows_per_step = of.most_rows,
                                  .rows_per_page = of.rows_per_page}));
}

}  // namespace

std::string AttentionCase::Name() const {
  return "H " + std::to_string(shape.heads) + " HKV " + std::to_string(shape.kv_heads) + " d " +
         std::to_string(shape.head_dim) + (type == DType::kF32 ? " f32" : " bf16") + " window " +
         std::to_string(window) + " page " + std::to_string(rows_per_page) + " rows " +
         std::to_string(most_rows) + (tiles == AttentionTiles::kWarps ? " warps" : "");
}

AttentionRows::AttentionRows(const AttentionCase& of, int64_t count, Random& random, float size)
    : rows(count),
      q(Normal(count * of.shape.heads * of.shape.head_dim, random, size)),
      k(Normal(count * of.shape.kv_heads * of.shape.head_dim, random, size)),
      v(Normal(count * of.shape.kv_heads * of.shape.head_dim, random, 1)) {}

AttentionBiases::AttentionBiases(const AttentionCase& of, Random& random)
    : q(Normal(of.shape.heads * of.shape.head_dim, random, of.biased ? 0.5f : 0.0f)),
      k(Normal(of.shape.kv_heads * of.shape.head_dim, random, of.biased ? 0.5f : 0.0f)),
      v(Normal(of.shape.kv_heads * of.shape.head_dim, random, of.biased ? 0.5f : 0.0f)) {}

AttentionTruth::AttentionTruth(const AttentionCase& of, const AttentionRows& rows,
                               const AttentionBiases& biases)
    : of_(of), rows_(rows), biases_(biases) {
  const int64_t d = of.shape.head_dim;
  for (int64_t i = 0; i < rows.rows * of.shape.kv_heads; ++i) {
    const int64_t head = i % of.shape.kv_heads;
    std::vector<double> key =
        Turned(rows.k.data() + i * d, biases.k.data() + head * d, i / of.shape.kv_heads);
    for (double& x : key) {
      if (of.type == DType::kBF16) x = RoundTo(of.type, static_cast<float>(x));
    }
    keys_.push_back(std::move(key));
    values_.emplace_back();
    for (int64_t m = 0; m < d; ++m) {
      values_.back().push_back(RoundTo(of.type, rows.v[i * d + m] + biases.v[head * d + m]));
    }
  }
}

std::vector<double> AttentionTruth::Turned(const float* x, const float* bias,
                                           int64_t position) const {
  const int64_t d = of_.shape.head_dim;
  std::vector<double> y(static_cast<size_t>(d));
  for (int64_t i = 0; i < d / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(d);
    const double angle = static_cast<double>(position) * std::pow(of_.theta, exponent);
    const double a = static_cast<double>(x[i]) + bias[i];
    const double b = static_cast<double>(x[i + d / 2]) + bias[i + d / 2];
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + d / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

std::vector<double> AttentionTruth::Row(int64_t t) const {
  const auto& [heads, kv_heads, d] = of_.shape;
  const int64_t from = of_.window == 0 ? 0 : std::max<int64_t>(0, t - of_.window + 1);
  std::vector<double> out;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv = h / (heads / kv_heads);
    const auto q = Turned(rows_.q.data() + (t * heads + h) * d, biases_.q.data() + h * d, t);
    std::vector<double> weights;
    for (int64_t s = from; s <= t; ++s) {
      const std::vector<double>& k = keys_[s * kv_heads + kv];
      weights.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) /
                        std::sqrt(static_cast<double>(d)));
    }
    const double greatest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - greatest);
    std::vector<double> value(static_cast<size_t>(d), 0.0);
    for (int64_t s = from; s <= t; ++s) {
      const double weight = weights[s - from] / sum;
      for (int64_t m = 0; m < d; ++m) value[m] += weight * values_[s * kv_heads + kv][m];
    }
    out.insert(out.end(), value.begin(), value.end());
  }
  return out;
}

PagedAttention::PagedAttention(const AttentionCase& of, std::vector<AttentionRows> sequences,
                               const AttentionBiases& biases, Random& random)
    : of_(of),
      sequences_(std::move(sequences)),
      frequencies_(RopeFrequencies(of.theta, of.shape.head_dim)),
      max_pages_(MaxPages(of, sequences_)),
      field_bytes_(FieldBytes(of)),
      stride_(2 * FieldBytes(of) + of.page_gap),
      done_(sequences_.size(), 0),
      poisoned_(sequences_.size(), 0),
      outs_(sequences_.size()),
      pool_(static_cast<size_t>((std::ssize(sequences_) * max_pages_ + 1) * stride_)),
      device_frequencies_(Upload(frequencies_)),
      q_bias_(Upload(biases.q)),
      k_bias_(Upload(biases.k)),
      v_bias_(Upload(biases.v)) {
  std::vector<int32_t> ids(sequences_.size() * static_cast<size_t>(max_pages_));
  std::iota(ids.begin(), ids.end(), 1);
  std::shuffle(ids.begin(), ids.end(), random);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pages_.emplace_back(ids.begin() + i * max_pages_, ids.begin() + (i + 1) * max_pages_);
    // A short sequence has no more pages than it needs.
    const int64_t needs = (sequences_[i].rows + of.rows_per_page - 1) / of.rows_per_page;
    for (int64_t p = needs; p < max_pages_; ++p) pages_[i][p] = kNoPage;
  }
}

void PagedAttention::Poison(size_t sequence) {
  if (of_.window == 0) return;
  const int64_t row = of_.shape.kv_heads * of_.shape.head_dim * SizeOf(of_.type);
  int64_t& at = poisoned_[sequence];
  for (; at < done_[sequence] - of_.window + 1; ++at) {
    const int64_t page = pages_[sequence][at / of_.rows_per_page % max_pages_];
    std::byte* const key = pool_.as<std::byte>() + page * stride_ + at % of_.rows_per_page * row;
    Check(cudaMemset(key, 0xff, row));
    Check(cudaMemset(key + field_bytes_, 0xff, row));
  }
}

std::vector<int32_t> PagedAttention::Lines(const Plan& plan) const {
  std::vector<int32_t> lines;
  for (int sequence : plan.sequence) {
    if (sequence < 0) {
      lines.insert(lines.end(), static_cast<size_t>(max_pages_), kNoPage);
    } else {
      lines.insert(lines.end(), pages_[sequence].begin(), pages_[sequence].end());
    }
  }
  return lines;
}

void PagedAttention::Feed(const Plan& plan) {
  const auto& [heads, kv_heads, d] = of_.shape;
  const int64_t stride = (heads + 2 * kv_heads) * d;
  Floats qkv(static_cast<size_t>(plan.rows() * stride), kNan);
  std::vector<int32_t> positions;
  for (size_t i = 0; i < plan.sequence.size(); ++i) {
    positions.push_back(plan.sequence[i] < 0 ? 0 : plan.first_row[i]);
    if (plan.sequence[i] < 0) continue;
    const AttentionRows& rows = sequences_[plan.sequence[i]];
    Poison(static_cast<size_t>(plan.sequence[i]));
    for (int r = plan.row_start[i]; r < plan.row_start[i + 1]; ++r) {
      const int64_t t = plan.first_row[i] + r - plan.row_start[i];
      float* const to = qkv.data() + r * stride;
      std::copy_n(rows.q.data() + t * heads * d, heads * d, to);
      std::copy_n(rows.k.data() + t * kv_heads * d, kv_heads * d, to + heads * d);
      std::copy_n(rows.v.data() + t * kv_heads * d, kv_heads * d, to + (heads + kv_heads) * d);
    }
  }
  const DeviceBytes device_qkv = Upload(qkv), device_positions = Upload(positions);
  const DeviceBytes lines = Upload(Lines(plan));
  const DeviceBytes out(static_cast<size_t>(plan.rows() * heads * d * SizeOf(of_.type)));
  const auto scratch_bytes =
      static_cast<size_t>(AttentionCudaScratchBytes(of_.shape) +
                          plan.rows() * AttentionCudaScratchBytesPerRow(of_.shape));
  if (scratch_ == nullptr || scratch_->size() < scratch_bytes) {
    scratch_ = std::make_unique<DeviceBytes>(scratch_bytes);
  }
  DeviceStep device_step(plan);
  Step step = device_step.step;
  step.positions = device_positions.as<int32_t>();
  step.pages = lines.as<int32_t>();
  step.max_pages = static_cast<int>(max_pages_);
  const auto field = [&](int64_t index) {
    return FieldView{.base = pool_.as<std::byte>() + index * field_bytes_,
                     .stride = stride_,
                     .dtype = of_.type,
                     .shape = {of_.rows_per_page, kv_heads, d, 1}};
  };
  AttentionCuda(step, {.shape = of_.shape,
                       .window = of_.window,
                       .type = of_.type,
                       .frequencies = device_frequencies_.as<double>(),
                       .q = device_qkv.as(),
                       .k = device_qkv.as() + heads * d,
                       .v = device_qkv.as() + (heads + kv_heads) * d,
                       .qkv_stride = stride,
                       .q_bias = of_.biased ? q_bias_.as() : nullptr,
                       .k_bias = of_.biased ? k_bias_.as() : nullptr,
                       .v_bias = of_.biased ? v_bias_.as() : nullptr,
                       .keys = field(0),
                       .values = field(1),
                       .out = out.as<void>(),
                       .scratch = scratch_->as<void>(),
                       .tiles = of_.tiles});
  Check(cudaGetLastError());
  Check(cudaDeviceSynchronize());
  const Floats host = ReadAs(of_.type, out);
  for (size_t i = 0; i < plan.sequence.size(); ++i) {
    const auto begin = host.begin() + plan.row_start[i] * heads * d;
    const auto end = host.begin() + plan.row_start[i + 1] * heads * d;
    if (plan.sequence[i] < 0) {
      EXPECT_TRUE(std::all_of(begin, end, [](float x) { return x == 0.0f; })) << "padding";
      continue;
    }
    Floats& to = outs_[plan.sequence[i]];
    to.insert(to.end(), begin, end);
    done_[plan.sequence[i]] += plan.row_start[i + 1] - plan.row_start[i];
  }
}

bool PagedAttention::NobodysPageIsUntouched() const {
  std::vector<uint8_t> page(static_cast<size_t>(stride_));
  Check(cudaMemcpy(page.data(), pool_.as<uint8_t>(), page.size(), cudaMemcpyDeviceToHost));
  return std::all_of(page.begin(), page.end(), [](uint8_t x) { return x == 0xff; });
}

}  // namespace eddy::cuda_test
