// The CUDA version of layer "delta": products, one kernel that prepares the rule's inputs, the
// rule, one kernel for norm and gate, the output product; for few decoding rows the three between
// the products are one (delta_token_cuda.h). Decoding rows and all others go through these apart
// (delta_parts_cuda.h); norm, output product and residual they share.
#include "kernels/layers/delta/delta_cuda.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/cuda/gemm.h"
#include "kernels/layers/delta/delta_cuda_rows.h"
#include "kernels/layers/delta/delta_parts_cuda.h"
#include "kernels/layers/delta/delta_projection_cuda.h"
#include "kernels/layers/delta/delta_token_cuda.h"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.h"
#include "kernels/rules/delta_rule/delta_rule_cuda.h"
#include "kernels/rules/osdn_scale/osdn_scale_cuda.h"

namespace eddy {
namespace {

constexpr int64_t kAlign = 256;
// More than the pieces that a step's scratch is cut into: what their alignment takes at most.
constexpr int64_t kPieces = 48;

// Where the chunk form begins to pay: with 8 rows of each where 64 prompts are read together (109
// us a layer against 112), with 64 rows where one is read alone (53 against 85); at 16 rows of one
// the two are 46 and 44 (GDN, 8 heads of 128, one H200; delta_layer_bench). The form of short
// prompts thus depends on their neighbours; the chunk form for all would cost them exactness.
constexpr int kChunkRows = 16;

bool TakesChunks(const DeltaOptions& o, DType matrices) {
  return matrices == DType::kBF16 && DeltaChunkFits(o.shape);
}

// What the layer takes beside the parts: of one type and form for all rows.
struct SharedRows {
  SharedRows(const DeltaOptions& o, DType matrices, bool chunks, int64_t rows, bool tells,
             DeltaCutter* cutter) {
    mixed = cutter->Take(rows, std::max(o.d_model, o.v_width()) * SizeOf(matrices));
    if (chunks) {
      chunk = cutter->Take(rows, DeltaChunkScratchBytesPerRow(o.shape, o.rule_decay()));
    }
    if (tells) {
      const int64_t floats =
          std::max(DeltaReadoutFloats(o.shape), DeltaChunkReadoutFloats(o.shape));
      readouts = cutter->Take<float>(rows, floats * static_cast<int64_t>(sizeof(float)));
    }
  }
  void* mixed = nullptr;      // [rows, D] normed x, then [rows, HV V] the output product's input
  void* chunk = nullptr;      // scratch of the chunk form; null: not taken
  float* readouts = nullptr;  // null: not wanted
};

class DeltaCuda : public Layer {
 public:
  DeltaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;
  void Flush(const Step& step) override;

 private:
  void PrepareProducts() const;
  DeltaPrepareArgs PrepareArgs(const DeltaPart& part, const DeltaCudaRows& rows) const;
  DeltaRuleCudaArgs RuleArgs() const;
  DeltaRuleCudaArgs StepArgs(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows,
                             const SharedRows& shared) const;
  DeltaGateArgs GateArgs(const DeltaPart& part, const DeltaCudaRows& rows,
                         const SharedRows& shared) const;
  void ScaleKeys(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows) const;
  DeltaForm FormOfMany(const Step& step) const;
  void Chunks(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows,
              const SharedRows& shared) const;
  struct Output {
    void* data;
    int64_t stride;  // elements
  };
  Output OutputOf(const DeltaPart& part, const DeltaCudaRows& rows, const SharedRows& shared) const;
  void Single(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows,
              const SharedRows& shared) const;

  const DeltaOptions options_;
  const DeltaColumns columns_;
  const DType matrices_;
  const bool takes_chunks_;
  CudaGemm* const gemm_;
  void* const scratch_;
  FieldView state_, scale_, conv_q_, conv_k_, conv_v_;
  DeltaRing ring_;
  std::optional<DeltaProjection> projection_;
  const void* out_ = nullptr;
  const float *gate_bias_ = nullptr, *out_norm_ = nullptr;
  DeltaVectors vectors_;
};

DeltaCuda::DeltaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
    : options_(spec),
      columns_(options_),
      matrices_(context.matrices),
      takes_chunks_(TakesChunks(options_, matrices_)),
      gemm_(context.gemm),
      scratch_(parts.scratch) {
  const LayerNeeds needs = DeltaNeedsNamed(spec, parts);
  const auto field = [&](const char* name) {
    const FieldView* view = FindState(needs, parts, name);
    return view == nullptr ? FieldView{} : *view;
  };
  state_ = field("state");
  scale_ = field("scale");
  conv_q_ = field("conv_q");
  conv_k_ = field("conv_k");
  conv_v_ = field("conv_v");
  ring_ = DeltaRingOf(needs, parts);
  projection_.emplace(options_, needs, parts, context);
  vectors_ = MakeDeltaVectors(options_, needs, parts, context);
  out_ = FindWeight(needs, parts, "out.weight")->data;
  out_norm_ = FindWeight(needs, parts, "out_norm.weight")->as<float>();
  const TensorView* const gate_bias = FindWeight(needs, parts, "gate_up.bias");
  if (gate_bias != nullptr) gate_bias_ = gate_bias->as<float>();
  PrepareProducts();
}

// What long prompts will take.
void DeltaCuda::PrepareProducts() const {
  if (!takes_chunks_) return;
  DeltaCutter cutter(scratch_, kAlign);
  // Two rows, so that what follows the last column is another row and not another matrix.
  projection_->PrepareLong(DeltaCudaRows(options_, matrices_, DeltaForm::kChunk, 2, &cutter));
  const CudaProduct out = {.in = options_.v_width(),
                           .out = options_.d_model,
                           .type = matrices_,
                           .w = out_,
                           .accumulate = true};
  PrepareLongProducts(gemm_, {&out, 1});
}

DeltaPrepareArgs DeltaCuda::PrepareArgs(const DeltaPart& part, const DeltaCudaRows& rows) const {
  return {.part = part,
          .type = rows.type,
          .projected = rows.projected,
          .projected_stride = rows.projected_stride,
          .k_column = columns_.k,
          .v_column = columns_.v,
          .logits = rows.logits,
          .logits_stride = rows.logits_stride,
          .step_at = columns_.step,
          .decay_at = columns_.decay,
          .retention_at = columns_.retention,
          .channel_decay = rows.channel_decay,
          .log_channel_decay = rows.type == DType::kBF16,
          .q = rows.q,
          .k = rows.k,
          .v = rows.v,
          .stride = rows.qkv_stride,
          .beta = rows.beta,
          .decay = rows.decay,
          .log_decay = rows.log_decay,
          .retention = rows.retention,
          .w = static_cast<float*>(part.single ? rows.w : nullptr),
          .conv_q = conv_q_,
          .conv_k = conv_k_,
          .conv_v = conv_v_,
          .scale = scale_,
          .vectors = vectors_};
}

// All but the rows. Of the decay, a flush looks only whether there is one.
DeltaRuleCudaArgs DeltaCuda::RuleArgs() const {
  return {.shape = options_.shape,
          .decay = {.data = reinterpret_cast<const float*>(ring_.a.base)},
          .channel_decay = options_.decay == DeltaOptions::Decay::kChannel,
          .state = state_,
          .ring = ring_,
          .pending_updates = ring_.pending_updates()};
}

// In the order of DeltaNeeds.
DeltaReadouts ReadoutsOf(const Step& step) {
  if (step.readouts == nullptr) return {};
  return {.residual = step.readouts,
          .contraction = step.readouts + step.rows,
          .decay = step.readouts + 2 * int64_t{step.rows}};
}

// Of the exact form: decoding rows, and others where the chunk form does not do.
DeltaRuleCudaArgs DeltaCuda::StepArgs(const Step& step, const DeltaPart& part,
                                      const DeltaCudaRows& rows, const SharedRows& shared) const {
  const auto [out, out_stride] = OutputOf(part, rows, shared);
  // The rule counts rows from the step's first one.
  const auto from_step = [&](const void* data, int64_t stride) {
    if (data == nullptr) return DeltaRows{};
    return DeltaRows{.data = static_cast<const float*>(data) - part.first_row * stride,
                     .stride = stride};
  };
  const int64_t value_heads = options_.shape.value_heads;
  const int64_t channels = value_heads * options_.shape.key_dim;
  DeltaRuleCudaArgs args = RuleArgs();
  args.q = from_step(rows.q, rows.qkv_stride);
  args.k = from_step(rows.k, rows.qkv_stride);
  args.v = from_step(rows.v, rows.qkv_stride);
  args.w = from_step(rows.w, channels);
  args.beta = from_step(rows.beta, value_heads);
  args.decay = args.channel_decay ? from_step(rows.channel_decay, channels)
                                  : from_step(rows.decay, value_heads);
  args.out = static_cast<float*>(out) - part.first_row * out_stride;
  args.out_stride = out_stride;
  args.readouts = ReadoutsOf(step);
  args.readout_scratch = shared.readouts;
  return args;
}

// The same for all sequences but the decoding ones, whatever they are.
DeltaForm DeltaCuda::FormOfMany(const Step& step) const {
  const bool chunk = takes_chunks_ && step.max_rows_per_sequence >= kChunkRows;
  return chunk ? DeltaForm::kChunk : DeltaForm::kRows;
}

// The chunk form, in bfloat16.
void DeltaCuda::Chunks(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows,
                       const SharedRows& shared) const {
  if (ring_.pending_updates() > 1) {
    Step readers = step;
    readers.sequences = part.sequences;
    readers.single_row_sequences = 0;
    readers.row_start += part.first_sequence;
    readers.slots += part.first_sequence;
    DeltaRuleFlushCuda(readers, RuleArgs());
  }
  // The rule counts rows from the step's first one.
  const auto from_step = [&](const void* data, int64_t row_bytes) {
    return static_cast<const std::byte*>(data) - part.first_row * row_bytes;
  };
  const auto floats_from_step = [&](const float* data, int64_t stride) {
    return data == nullptr ? nullptr : data - part.first_row * stride;
  };
  constexpr int64_t kSize = SizeOf(DType::kBF16);
  const int64_t value_heads = options_.shape.value_heads;
  const int64_t channels = value_heads * options_.shape.key_dim;
  const bool channel = options_.rule_decay() == DeltaDecay::kChannel;
  DeltaRuleChunkCuda(step, {.shape = options_.shape,
                            .q = from_step(rows.q, rows.qkv_stride * kSize),
                            .k = from_step(rows.k, rows.qkv_stride * kSize),
                            .w = rows.w == nullptr ? nullptr : from_step(rows.w, channels * kSize),
                            .v = from_step(rows.v, rows.qkv_stride * kSize),
                            .q_stride = rows.qkv_stride,
                            .k_stride = rows.qkv_stride,
                            .v_stride = rows.qkv_stride,
                            .beta = floats_from_step(rows.beta, value_heads),
                            .decay = options_.rule_decay(),
                            .log_decay = channel ? floats_from_step(rows.channel_decay, channels)
                                                 : floats_from_step(rows.log_decay, value_heads),
                            .state = state_,
                            .out = shared.mixed,
                            .readouts = ReadoutsOf(step),
                            .readout_scratch = shared.readouts,
                            .scratch = shared.chunk});
}

void DeltaCuda::ScaleKeys(const Step& step, const DeltaPart& part,
                          const DeltaCudaRows& rows) const {
  const auto& [heads, value_heads, key_dim, value_dim] = options_.shape;
  const int64_t size = SizeOf(rows.type), first = part.first_row;
  const float* retention = vectors_.fixed_retention;
  if (rows.retention != nullptr) retention = rows.retention - first * value_heads;
  OsdnScaleCuda(step,
                {.heads = heads,
                 .value_heads = value_heads,
                 .key_dim = key_dim,
                 .options = options_.scale->rule,
                 .type = rows.type,
                 .k = static_cast<const std::byte*>(rows.k) - first * rows.qkv_stride * size,
                 .k_stride = rows.qkv_stride,
                 .beta = rows.beta - first * value_heads,
                 .retention = retention,
                 .retention_stride = rows.retention != nullptr ? value_heads : 0,
                 .scale = scale_,
                 .w = static_cast<std::byte*>(rows.w) - first * value_heads * key_dim * size},
                part.first_sequence);
}

// Where the rule's outputs of a part go, to the part's first row.
DeltaCuda::Output DeltaCuda::OutputOf(const DeltaPart& part, const DeltaCudaRows& rows,
                                      const SharedRows& shared) const {
  if (rows.out != nullptr) return {rows.out, rows.out_stride};
  const int64_t width = options_.v_width();
  return {static_cast<std::byte*>(shared.mixed) + part.first_row * width * SizeOf(matrices_),
          width};
}

// shared.mixed = RMSNorm_V(o) * act(z).
DeltaGateArgs DeltaCuda::GateArgs(const DeltaPart& part, const DeltaCudaRows& rows,
                                  const SharedRows& shared) const {
  const auto [o, o_stride] = OutputOf(part, rows, shared);
  return {.rows = part.rows,
          .o_type = rows.type,
          .o = o,
          .o_stride = o_stride,
          .z_type = rows.type,
          .z = rows.z,
          .z_stride = rows.z_stride,
          .bias = gate_bias_,
          .out_norm = out_norm_,
          .y_type = matrices_,
          .y = static_cast<std::byte*>(shared.mixed) +
               part.first_row * options_.v_width() * SizeOf(matrices_)};
}

// Decoding rows, from their projections to shared.mixed.
void DeltaCuda::Single(const Step& step, const DeltaPart& part, const DeltaCudaRows& rows,
                       const SharedRows& shared) const {
  const DeltaPrepareArgs prepare = PrepareArgs(part, rows);
  const DeltaGateArgs gate = GateArgs(part, rows, shared);
  const DeltaRuleCudaArgs rule = StepArgs(step, part, rows, shared);
  if (DeltaTokenFits(options_, part.rows)) {
    return DeltaTokenCuda(step, options_, prepare, rule, gate);
  }
  DeltaPrepareCuda(step, options_, prepare);
  DeltaRuleStepCuda(step, rule);
  DeltaGateCuda(step, options_, gate);
}

void DeltaCuda::Forward(const Step& step, TensorView x_view) {
  auto* const x = x_view.as<float>();
  const DeltaPart single{
      .single = true, .rows = step.single_row_sequences, .sequences = step.single_row_sequences};
  const DeltaPart many{.first_row = single.rows,
                       .rows = step.rows - single.rows,
                       .first_sequence = single.sequences,
                       .sequences = step.sequences - single.sequences};
  DeltaCutter cutter(scratch_, kAlign);
  const SharedRows shared(options_, matrices_, takes_chunks_, step.rows, step.readouts != nullptr,
                          &cutter);
  const DeltaCudaRows single_rows(options_, matrices_, DeltaForm::kSingle, single.rows, &cutter);
  const DeltaForm form = FormOfMany(step);
  const DeltaCudaRows many_rows(options_, matrices_, form, many.rows, &cutter);

  // All products come first: what they read is written over by the rule.
  if (single.rows > 0) projection_->Run(single, x, shared.mixed, single_rows);
  if (many.rows > 0) {
    const int64_t at = many.first_row * options_.d_model;
    projection_->Run(many, x + at, static_cast<std::byte*>(shared.mixed) + at * SizeOf(matrices_),
                     many_rows);
  }
  if (single.rows > 0) Single(step, single, single_rows, shared);
  if (many.rows > 0) {
    const DeltaPrepareArgs prepare = PrepareArgs(many, many_rows);
    DeltaPrepareCuda(step, options_, prepare);
    DeltaSaveHistoryCuda(step, options_, prepare);
    if (options_.scale) ScaleKeys(step, many, many_rows);
    if (form == DeltaForm::kChunk) {
      Chunks(step, many, many_rows, shared);
    } else {
      const DeltaRuleCudaArgs rule = StepArgs(step, many, many_rows, shared);
      DeltaRuleRowsCuda(step, rule, many.first_sequence);
    }
    DeltaGateCuda(step, options_, GateArgs(many, many_rows, shared));
  }
  RunProduct(gemm_, {.rows = step.rows,
                     .in = options_.v_width(),
                     .out = options_.d_model,
                     .fixed_rows = single.rows,
                     .type = matrices_,
                     .x = shared.mixed,
                     .w = out_,
                     .y = x,
                     .accumulate = true});
}

void DeltaCuda::Flush(const Step& step) { DeltaRuleFlushCuda(step, RuleArgs()); }

CudaScratch Scratch(const LayerSpec& spec, DType matrices) {
  const DeltaOptions options(spec);
  const auto bytes = [&](DeltaForm form) {
    DeltaCutter count(nullptr, 1);
    DeltaCudaRows(options, matrices, form, 1, &count);
    return count.used();
  };
  DeltaCutter shared(nullptr, 1);
  SharedRows(options, matrices, TakesChunks(options, matrices), 1, /*tells=*/true, &shared);
  int64_t part = std::max(bytes(DeltaForm::kSingle), bytes(DeltaForm::kRows));
  if (matrices == DType::kBF16) part = std::max(part, bytes(DeltaForm::kChunk));
  return {.bytes = kPieces * kAlign, .bytes_per_row = shared.used() + part};
}

}  // namespace

const CudaLayerType& DeltaCudaType() {
  static constexpr CudaLayerType kType = {
      .name = "delta",
      .make = [](const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
          -> std::unique_ptr<Layer> { return std::make_unique<DeltaCuda>(spec, parts, context); },
      .scratch = Scratch};
  return kType;
}

}  // namespace eddy
