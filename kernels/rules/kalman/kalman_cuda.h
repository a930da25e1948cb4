// CUDA twin of KalmanCpu: formulas and meaning in kalman.h. Engine thread; enqueues on step.stream.
#pragma once

#include <cstdint>

#include "kernels/rules/kalman/kalman.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// What a step can ask of the filters. Null: not wanted, and not computed.
struct KalmanCudaReadouts {
  // [6, rows], as a Kalman layer tells them: precision, least precision, deviation, surprise,
  // information, spread (kernels/readout.h). Rows without a slot get zeros.
  float* out = nullptr;
  const float* weight = nullptr;  // of the channels in the spread, [rows, M]; null: 1
  int64_t weight_stride = 0;
  float* partials = nullptr;  // scratch: KalmanCudaPartials() floats for each row
};

struct KalmanCudaArgs {
  int64_t channels = 0, state_dim = 0;
  const float* transition = nullptr;  // [M, Sn]
  const float* noise = nullptr;       // [M, Sn]
  // Rows lie `*_stride` elements apart.
  const float* v = nullptr;          // [rows, M]
  const float* certainty = nullptr;  // [rows, M], L
  const float* k = nullptr;          // [rows, Sn]
  const float* q = nullptr;          // [rows, Sn]
  int64_t v_stride = 0, certainty_stride = 0, k_stride = 0, q_stride = 0;
  bool prior = false;
  FieldView precision = {};    // [M, Sn] fp32
  FieldView information = {};  // [M, Sn] fp32
  float* y = nullptr;          // [rows, M], dense
  KalmanCudaReadouts readouts = {};
};

// Decoding sequences read and write their filters once. Of other sequences the filters stay in
// registers while the tokens go by, one after another. Rows of kNoSlot get zeros.
void KalmanCuda(const Step& step, const KalmanCudaArgs& args);

// Floats of KalmanCudaReadouts::partials for each row.
int64_t KalmanCudaPartials(int64_t channels, int64_t state_dim);

// Discretize() on the GPU: all pointers, also those of `args`, are device memory. transition and
// noise [args.count].
void DiscretizeCuda(Stream stream, const KalmanDynamicsArgs& args, float* transition, float* noise);

}  // namespace eddy
