// The chunk form of the delta rule on the tensor cores: for sequences with many rows in a step.
#pragma once

#include <cstdint>

#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// The operands of delta_rule.h as the tensor cores take them. Rows of q, k, w and v may lie further
// apart than they are long, so that they can be columns of one wider matrix: strides in elements,
// multiples of 8, 0 if the rows are packed; addresses are multiples of 16 bytes.
struct DeltaChunkArgs {
  DeltaRuleShape shape = {};
  const void* q = nullptr;  // [rows, H, K] bf16, scaled by K^-1/2
  const void* k = nullptr;  // [rows, H, K] bf16
  const void* w = nullptr;  // [rows, HV, K] bf16; null: w = k
  const void* v = nullptr;  // [rows, HV, V] bf16
  int64_t q_stride = 0, k_stride = 0, w_stride = 0, v_stride = 0;
  const float* beta = nullptr;  // [rows, HV]
  DeltaDecay decay = DeltaDecay::kNone;
  const float* log_decay = nullptr;  // g <= 0: [rows, HV] if scalar, [rows, HV, K] if vector
  FieldView state = {};              // [HV, K, V] fp32 or bf16; nothing pending
  void* out = nullptr;               // [rows, HV, V]
  DType out_type = DType::kBF16;     // or kF32
  DeltaReadouts readouts = {};       // of the rows of the sequences that it advances
  float* readout_scratch = nullptr;  // given if readouts.wanted(): DeltaChunkReadoutFloats * rows
  void* scratch = nullptr;           // rows of the step * DeltaChunkScratchBytesPerRow, 256-aligned
};

// Whether the kernels below take the shape: K is 64, 128 or 256 and V a multiple of 16.
bool DeltaChunkFits(const DeltaRuleShape& shape);

int64_t DeltaChunkScratchBytesPerRow(const DeltaRuleShape& shape, DeltaDecay decay);

// Floats of args.readout_scratch for each row of a step.
int64_t DeltaChunkReadoutFloats(const DeltaRuleShape& shape);

// Advances the states of the sequences behind the first step.single_row_sequences, of any number of
// rows, and writes the outputs of their rows. Rows of kNoSlot become zeros. Only enqueues on
// step.stream. REQUIRES: DeltaChunkFits(args.shape).
//
// The bits of a sequence depend on its own rows and state and on the shape alone. Products take
// bf16 operands and sum in fp32; decays, the inverse and the state between the chunks are fp32.
// Rows before one whose numbers are not finite keep theirs.
void DeltaRuleChunkCuda(const Step& step, const DeltaChunkArgs& args);

}  // namespace eddy
