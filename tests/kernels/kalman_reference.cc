#include "tests/kernels/kalman_reference.h"

namespace eddy {
namespace {

using Row = std::vector<double>;

double ActivationOf(const std::string& word, double a) {
  if (word == "silu") return a / (1 + std::exp(-a));
  if (word == "gelu") return 0.5 * a * std::erfc(-a / std::sqrt(2.0));
  if (word == "relu") return a > 0 ? a : 0;
  return 1;  // no gate: a factor of one
}

Row NormOf(const Row& x, const Row& weight, double eps) {
  double square = 0;
  for (double value : x) square += value * value;
  const double rms = std::sqrt(square / static_cast<double>(x.size()) + eps);
  Row y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] / rms * weight[i]);
  return y;
}

class Reference {
 public:
  Reference(const LayerSpec& spec, const Weights64& weights)
      : spec_(spec),
        weights_(weights),
        channels_(static_cast<size_t>(spec.Int("channels"))),
        states_(static_cast<size_t>(spec.Int("state_dim"))),
        filters_(channels_ * states_) {
    if (spec.Word("prior") != "learned") return;
    for (size_t i = 0; i < filters_.size(); ++i) {
      filters_[i].variance = std::exp(-At("prior_log_precision")[i]);
      filters_[i].mean = At("prior_information")[i] * filters_[i].variance;
    }
  }

  // The next row of the sequence.
  Row Step(const Row& x) {
    const Row in = Linear("in", NormOf(x, At("norm.weight"), spec_.norm_eps));
    const Row c = Convolve({in.begin(), in.begin() + static_cast<std::ptrdiff_t>(channels_)});
    Row y = Filter(c);
    Tell(y, in);
    for (size_t m = 0; m < channels_; ++m) {
      const std::string skip = spec_.Word("skip");
      if (skip != "none") y[m] += At("skip")[skip == "scalar" ? 0 : m] * c[m];
      if (spec_.Word("gate") == "none") continue;
      y[m] *= ActivationOf(spec_.Word("gate"), in[channels_ + m]);
    }
    Row out = Linear("out", y);
    for (size_t i = 0; i < out.size(); ++i) out[i] += x[i];
    return out;
  }

  const std::map<Readout, Row>& readouts() const { return readouts_; }

  std::map<std::string, Row> State() const {
    std::map<std::string, Row> state;
    for (const Covariance& filter : filters_) {
      state["precision"].push_back(1 / filter.variance);
      state["information"].push_back(filter.mean / filter.variance);
    }
    // The last inputs of the convolution, zeros before the first.
    for (int64_t back = spec_.Int("conv_width") - 1; back > 0; --back) {
      const Row zeros(channels_);
      const bool known = back <= std::ssize(past_);
      const Row& row = known ? past_[past_.size() - static_cast<size_t>(back)] : zeros;
      state["conv"].insert(state["conv"].end(), row.begin(), row.end());
    }
    return state;
  }

 private:
  const Row& At(const std::string& name) const { return weights_.at(name); }

  Row Linear(const std::string& name, const Row& x) const {
    const Row& weight = At(name + ".weight");
    Row y(weight.size() / x.size(), 0.0);
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
      if (spec_.Flag("bias")) y[o] += At(name + ".bias")[o];
    }
    return y;
  }

  Row Convolve(const Row& z) {
    const auto width = static_cast<size_t>(spec_.Int("conv_width"));
    if (width == 0) return z;
    past_.push_back(z);
    Row c(channels_);
    for (size_t m = 0; m < channels_; ++m) {
      double sum = At("conv.bias")[m];
      for (size_t back = 0; back < width && back < past_.size(); ++back) {
        sum += At("conv.weight")[m * width + width - 1 - back] * past_[past_.size() - 1 - back][m];
      }
      c[m] = ActivationOf(spec_.Word("conv_activation"), sum);
    }
    return c;
  }

  // The part of `sensor` that starts at `at`, which moves behind it.
  static Row Take(const Row& sensor, size_t count, size_t* at) {
    const auto begin = sensor.begin() + static_cast<std::ptrdiff_t>(*at);
    *at += count;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

  size_t Width(const char* kind, const char* rank) const {
    if (spec_.Word(kind) == "conv") return 0;
    return spec_.Word(kind) == "low" ? static_cast<size_t>(spec_.Int(rank)) : channels_;
  }

  Row Prepared(Row x) const {
    double square = 0;
    for (double value : x) square += value * value;
    for (double& value : x) {
      if (spec_.Flag("qk_norm")) value /= std::max(std::sqrt(square), 1e-12);
      if (spec_.IsNull("clip")) continue;
      value = std::min(std::max(value, -spec_.Real("clip")), spec_.Real("clip"));
    }
    return x;
  }

  Row Filter(const Row& c) {
    const Row sensor = Linear("sensor", c);
    size_t at = 0;
    Row v = Take(sensor, Width("value", "value_rank"), &at);
    if (spec_.Word("value") == "conv") v = c;
    if (spec_.Word("value") == "low") v = Linear("value_up", v);
    Row noise = Take(sensor, Width("noise", "noise_rank"), &at);
    if (spec_.Word("noise") == "low") noise = Linear("noise_up", noise);
    const Row k = Prepared(Take(sensor, states_, &at)), q = Prepared(Take(sensor, states_, &at));

    const DynamicsOptions options = {.zoh = spec_.Word("discretization") == "zoh",
                                     .floored = spec_.Word("process_noise") == "floor",
                                     .noise_max = spec_.IsNull("clip") ? 0 : spec_.Real("clip")};
    Row y(channels_, 0.0);
    of_y_.assign(channels_, 0.0);
    for (size_t m = 0; m < channels_; ++m) {
      double variance = std::log1p(std::exp(noise[m])) + spec_.Real("noise_min");
      if (!spec_.IsNull("noise_max")) variance = std::min(variance, spec_.Real("noise_max"));
      for (size_t s = 0; s < states_; ++s) {
        const size_t i = m * states_ + s;
        const ExactDynamics d(At("rate_log")[i], At("step_raw")[i], At("process_noise")[i],
                              options);
        filters_[i].Update(d.a, d.p, k[s], v[m], variance);
        const bool prior = spec_.Word("readout") == "prior";
        const double known = filters_[i].variance;
        y[m] += q[s] * filters_[i].mean * (prior ? d.a : 1);
        of_y_[m] += q[s] * q[s] * (prior ? d.a * d.a * known + d.p : known);
      }
    }
    return y;
  }

  // What the filters say of the row; y is theirs, before the skip.
  void Tell(const Row& y, const Row& in) {
    double precision = 0, least = 1 / filters_[0].variance, surprise = 0, information = 0;
    for (const Covariance& filter : filters_) {
      precision += 1 / filter.variance;
      least = std::min(least, 1 / filter.variance);
      surprise += filter.surprise;
      information += filter.information;
    }
    double deviation = 0, unsure = 0, all = 0;
    for (size_t m = 0; m < channels_; ++m) {
      const std::string gate = spec_.Word("gate");
      const double weight = gate == "none" ? 1 : ActivationOf(gate, in[channels_ + m]);
      deviation += std::sqrt(of_y_[m]);
      unsure += of_y_[m] * weight * weight;
      all += (y[m] * y[m] + of_y_[m]) * weight * weight;
    }
    const auto channels = static_cast<double>(channels_);
    const auto filters = static_cast<double>(filters_.size());
    readouts_[Readout::kPrecision].push_back(precision / filters);
    readouts_[Readout::kLeastPrecision].push_back(least);
    readouts_[Readout::kDeviation].push_back(deviation / channels);
    readouts_[Readout::kSurprise].push_back(surprise / filters);
    readouts_[Readout::kInformation].push_back(information / channels);
    readouts_[Readout::kSpread].push_back(all > 0 ? std::sqrt(unsure / all) : 0);
  }

  const LayerSpec& spec_;
  const Weights64& weights_;
  const size_t channels_, states_;
  std::vector<Covariance> filters_;  // [M, Sn]
  Row of_y_;                         // variance of y
  std::map<Readout, Row> readouts_;  // of all rows so far
  std::vector<Row> past_;            // inputs of the convolution, oldest first
};

}  // namespace

testing::Trace KalmanLayerReference(const LayerSpec& spec, const Weights64& weights,
                                    const std::vector<double>& x) {
  Reference reference(spec, weights);
  testing::Trace trace;
  const auto width = static_cast<std::ptrdiff_t>(spec.d_model);
  for (auto row = x.begin(); row != x.end(); row += width) {
    const Row y = reference.Step({row, row + width});
    trace.out.insert(trace.out.end(), y.begin(), y.end());
  }
  trace.state = reference.State();
  trace.readouts = reference.readouts();
  return trace;
}

}  // namespace eddy
