#include "kernels/cuda/gemm_lt.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/cuda/trial.h"

namespace eddy {
namespace {

// What cuBLASLt's documentation asks for on Hopper.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Rows are counted in powers of two from here to there; more rows take the last bucket's algorithm.
constexpr int64_t kLeastBucket = 16, kMostBucket = 65536;
// Algorithms that are asked for, and buckets for which they are tried.
constexpr int kAlgorithms = 32;
constexpr int64_t kLeastTried = 32, kMostTried = 4096;
// The least bucket of those whose algorithms are timed, with no more rows than that, and of how
// many rows the order is looked at.
constexpr int64_t kLongBucket = 8192, kLongChecked = 1000;
// Memory for a trial beside that for w: x, and y twice. It bounds the rows.
struct TrialRoom {
  int64_t x, y;
};
constexpr TrialRoom kRoom = {16 << 20, 64 << 20}, kLongRoom = {64 << 20, 128 << 20};
// Behind a y, which may begin as badly aligned as its shape says.
constexpr int64_t kTrialGap = 256;

cudaDataType_t CudaType(DType type) { return type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

// The largest power of two up to 16 that divides an address or a distance in bytes.
int Alignment(uint64_t bytes) {
  return bytes == 0 ? 16 : 1 << std::min(4, std::countr_zero(bytes));
}

int Attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  int value = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written);
  return value;
}

std::string TypeWord(DType type) { return type == DType::kBF16 ? "bf16" : "f32"; }

}  // namespace

GemmLt::GemmLt(Stream stream) : stream_(stream) {
  Check(cublasLtCreate(&handle_), "cublasLtCreate");
  if (cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    workspace_ = nullptr;
    if (!error_) error_ = "no memory for the workspace of cuBLASLt, 32 MiB";
  }
}

GemmLt::~GemmLt() {
  for (auto& [shape, plan] : plans_) {
    if (plan.product != nullptr) cublasLtMatmulDescDestroy(plan.product);
    for (const cublasLtMatrixLayout_t layout : {plan.w, plan.x, plan.y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

bool GemmLt::Check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  if (!error_) error_ = what + ": " + cublasLtGetStatusName(status);
  return false;
}

bool GemmLt::CheckCuda(int error, const char* what) {
  if (error == cudaSuccess) return true;
  if (!error_) {
    error_ = std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(error));
  }
  return false;
}

std::optional<std::string> GemmLt::TakeError() { return std::exchange(error_, std::nullopt); }

GemmLt::Shape GemmLt::ShapeOf(const CudaProduct& p) {
  const auto bits = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
  const auto bytes = [](int64_t elements, DType type) {
    return static_cast<uint64_t>(elements * SizeOf(type));
  };
  const uint64_t all = bits(p.x) | bits(p.w) | bits(p.y) | bytes(p.x_stride, p.type) |
                       bytes(p.in, p.type) | bytes(p.y_stride, p.y_type);
  return {.in = p.in,
          .out = p.out,
          .x_stride = p.x_stride,
          .y_stride = p.y_stride,
          .bucket = std::clamp(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.rows))),
                               kLeastBucket, kMostBucket),
          .type = p.type,
          .y_type = p.y_type,
          .accumulate = p.accumulate,
          .alignment = Alignment(all)};
}

GemmLt::Plan* GemmLt::Find(const Shape& shape) {
  const auto [it, fresh] = plans_.try_emplace(shape);
  if (fresh) it->second = Choose(shape);
  return it->second.algorithms.empty() ? nullptr : &it->second;
}

// cuBLASLt counts columns first: it is asked for y^T [out, rows] = w [out, in] x^T [in, rows],
// where w, being stored row by row, is the transpose of what it sees.
GemmLt::Plan GemmLt::Choose(const Shape& s) {
  Plan plan;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  bool ok = Check(cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                  "cublasLtMatmulDescCreate");
  ok = ok && Check(cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transposed, sizeof(transposed)),
                   "cublasLtMatmulDescSetAttribute");
  const auto layout = [&](cublasLtMatrixLayout_t* to, DType type, int64_t rows, int64_t columns,
                          int64_t stride) {
    ok = ok && Check(cublasLtMatrixLayoutCreate(to, CudaType(type), static_cast<uint64_t>(rows),
                                                static_cast<uint64_t>(columns), stride),
                     "cublasLtMatrixLayoutCreate");
  };
  layout(&plan.w, s.type, s.in, s.out, s.in);
  layout(&plan.x, s.type, s.in, s.bucket, s.x_stride);
  layout(&plan.y, s.y_type, s.out, s.bucket, s.y_stride);
  cublasLtMatmulPreference_t wish = nullptr;
  ok = ok && Check(cublasLtMatmulPreferenceCreate(&wish), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    ok = ok && Check(cublasLtMatmulPreferenceSetAttribute(wish, name, &value, sizeof(value)),
                     "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(name, static_cast<uint32_t>(s.alignment));
  }
  // Sums that were split are added in float, while cuBLASLt by itself may add them in the type of
  // y.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t results[kAlgorithms];
  int found = 0;
  ok = ok && Check(cublasLtMatmulAlgoGetHeuristic(handle_, plan.product, plan.w, plan.x, plan.y,
                                                  plan.y, wish, kAlgorithms, results, &found),
                   "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; ok && i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) plan.algorithms.push_back(results[i].algo);
  }
  if (wish != nullptr) cublasLtMatmulPreferenceDestroy(wish);
  if (ok && plan.algorithms.empty()) Check(CUBLAS_STATUS_NOT_SUPPORTED, Words(s, plan));
  return plan;
}

std::string GemmLt::Words(const Shape& s, const Plan& plan) {
  std::string words = "product " + std::to_string(s.in) + " to " + std::to_string(s.out) + ", " +
                      TypeWord(s.type) + (s.accumulate ? " onto " : " to ") + TypeWord(s.y_type) +
                      ", up to " + std::to_string(s.bucket) + " rows: cuBLASLt";
  if (plan.algorithms.empty()) return words;
  const auto value = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    words += std::string(name) + std::to_string(Attribute(plan.algorithms[plan.chosen], attribute));
  };
  value(" algorithm ", CUBLASLT_ALGO_CONFIG_ID);
  value(", tile ", CUBLASLT_ALGO_CONFIG_TILE_ID);
  value(", stages ", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  value(", splits ", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  return words + (plan.fixed ? ", fixed order" : "");
}

// Device memory and events for trials of a shape, freed with it; w and x are filled in.
struct GemmLt::Trial {
  Trial(Stream stream, const Shape& s, const TrialRoom& given)
      : w_bytes((s.in * s.out * 2 + 255) / 256 * 256), room(given) {
    const auto bytes = static_cast<size_t>(w_bytes + room.x + 2 * (room.y + kTrialGap) + 256);
    const bool made = cudaEventCreate(&begin) == cudaSuccess &&
                      cudaEventCreate(&end) == cudaSuccess &&
                      cudaMalloc(&data, bytes) == cudaSuccess;
    if (made) {
      FillTrialW(stream, w(), s.out, s.in);
      FillTrialX(stream, x(), room.x / (2 * s.x_stride), s.in, s.x_stride);
    } else {
      static_cast<void>(cudaGetLastError());
      data = nullptr;
    }
  }
  ~Trial() {
    cudaFree(data);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  std::byte* w() const { return static_cast<std::byte*>(data); }
  std::byte* x() const { return w() + w_bytes; }
  std::byte* y(int which) const { return x() + room.x + which * (room.y + kTrialGap); }
  int32_t* count() const { return reinterpret_cast<int32_t*>(y(2)); }
  // As many rows of a shape as there is room for, at most `wanted`.
  int64_t Rows(const Shape& s, int64_t wanted) const {
    return std::min(
        {wanted, room.x / (s.x_stride * SizeOf(s.type)), room.y / (s.y_stride * SizeOf(s.y_type))});
  }
  int64_t w_bytes;
  TrialRoom room;
  void* data = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

void GemmLt::Prepare(const CudaProduct& shape, const Reference& reference) {
  PrepareLong(shape, reference);
  CudaProduct product = shape;
  product.rows = kLeastBucket;
  if (error_ || !prepared_.insert(ShapeOf(product)).second) return;
  std::vector<Shape> tried;  // the largest bucket first
  for (int64_t rows = kMostBucket; rows >= kLeastBucket; rows /= 2) {
    product.rows = rows;
    const Shape key = ShapeOf(product);
    if (Find(key) == nullptr) return;
    if (kLeastTried <= rows && rows <= kMostTried) tried.push_back(key);
  }
  if (shape.type != DType::kBF16 || shape.in % 8 != 0) return;
  // A launch that was refused before must not be lost with the error of an allocation.
  if (!CheckCuda(cudaGetLastError(), "launch")) return;
  // Without memory nothing is tried, and fixed rows take the kernels of fixed_product.h.
  const Trial trial(stream_, tried.front(), kRoom);
  if (trial.data == nullptr) return;
  // For few rows cuBLASLt may propose nothing but split sums; then what is good for more will do.
  std::vector<cublasLtMatmulAlgo_t> others;
  for (const Shape& key : tried) {
    Plan& plan = plans_.at(key);
    plan.algorithms.insert(plan.algorithms.end(), others.begin(), others.end());
    TryFixed(trial, key, reference, &plan);
    if (plan.fixed) others = {plan.algorithms[plan.chosen]};
  }
}

void GemmLt::PrepareLong(const CudaProduct& shape, const Reference& reference) {
  CudaProduct product = shape;
  product.rows = kLeastBucket;
  if (shape.type != DType::kBF16 || shape.in % 8 != 0 || error_ ||
      !prepared_long_.insert(ShapeOf(product)).second || !CheckCuda(cudaGetLastError(), "launch")) {
    return;
  }
  const Trial trial(stream_, ShapeOf(product), kLongRoom);
  if (trial.data == nullptr) return;
  for (int64_t rows = kLongBucket; rows <= kMostBucket; rows *= 2) {
    product.rows = rows;
    const Shape key = ShapeOf(product);
    Plan* const plan = Find(key);
    if (plan == nullptr) return;
    TryLong(trial, key, reference, plan);
  }
}

// Takes the fastest algorithm that gives the bits of the reference on a few rows, if one does.
void GemmLt::TryLong(const Trial& trial, const Shape& s, const Reference& reference, Plan* plan) {
  const int64_t rows = trial.Rows(s, kLongBucket);
  if (rows == 0) return;
  std::vector<std::pair<float, size_t>> times;
  for (size_t i = 0; i < plan->algorithms.size() && !error_; ++i) {
    if (Attribute(plan->algorithms[i], CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
    times.emplace_back(TimeOf(trial, s, rows, *plan, i, /*at_once=*/4), i);
  }
  std::sort(times.begin(), times.end());
  const auto fastest = std::find_if(times.begin(), times.end(), [&](const auto& time) {
    return std::isfinite(time.first) &&
           HasFixedOrder(trial, s, std::min(rows, kLongChecked), reference, *plan, time.second);
  });
  if (fastest != times.end() && !error_) plan->chosen = fastest->second;
}

// Takes the fastest of the algorithms that give the bits of the reference; leaves the plan alone if
// none does.
void GemmLt::TryFixed(const Trial& trial, const Shape& s, const Reference& reference, Plan* plan) {
  const int64_t most = trial.Rows(s, s.bucket);
  if (most == 0) return;  // such long rows stay untried
  // How an algorithm cuts its work may depend on the number of rows: all of the bucket's, its
  // fewest, and an odd number of them.
  const int64_t counts[] = {most, std::min(most, s.bucket / 2 + 1),
                            std::max<int64_t>(1, most * 2 / 3 | 1)};
  float least = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < plan->algorithms.size() && !error_; ++i) {
    // One that splits sums has another order, whatever the trial's rounding shows of it.
    if (Attribute(plan->algorithms[i], CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
    const bool fixed = std::all_of(std::begin(counts), std::end(counts), [&](int64_t rows) {
      return HasFixedOrder(trial, s, rows, reference, *plan, i);
    });
    if (!fixed) continue;
    const float took = TimeOf(trial, s, most, *plan, i, /*at_once=*/1);
    if (error_ || !(took < least)) continue;
    plan->chosen = i;
    plan->fixed = true;
    least = took;
  }
}

CudaProduct GemmLt::ProductOf(const Trial& trial, const Shape& s, int64_t rows) {
  return {.rows = rows,
          .in = s.in,
          .out = s.out,
          .type = s.type,
          .x = trial.x(),
          .x_stride = s.x_stride,
          .w = trial.w(),
          .y = trial.y(1) + s.alignment % 16,
          .y_stride = s.y_stride,
          .y_type = s.y_type,
          .accumulate = s.accumulate};
}

// Whether the algorithm gives so many rows of the trial the bits of the reference.
bool GemmLt::HasFixedOrder(const Trial& trial, const Shape& s, int64_t rows,
                           const Reference& reference, const Plan& plan, size_t algorithm) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  CudaProduct product = ProductOf(trial, s, rows);
  const int64_t bytes = rows * s.y_stride * SizeOf(s.y_type) + 16;
  const auto write_to = [&](int which) {
    product.y = trial.y(which) + s.alignment % 16;
    // What is added to is some small number.
    CheckCuda(cudaMemsetAsync(trial.y(which), 0x3b, static_cast<size_t>(bytes), stream), "trial");
  };
  write_to(0);
  reference(product);
  write_to(1);
  if (Multiply(product, plan, algorithm) != CUBLAS_STATUS_SUCCESS) return false;
  int32_t different = 0;
  CheckCuda(cudaMemsetAsync(trial.count(), 0, sizeof(different), stream), "trial");
  CountDifferences(stream_, trial.y(0), trial.y(1), bytes / 4, trial.count());
  CheckCuda(
      cudaMemcpyAsync(&different, trial.count(), sizeof(different), cudaMemcpyDeviceToHost, stream),
      "trial");
  CheckCuda(cudaStreamSynchronize(stream), "trial");
  return different == 0 && !error_;
}

// Milliseconds of so many products in a row, the least of a few such, of which the first finds w in
// memory and not in a cache. Infinite if the algorithm is refused.
float GemmLt::TimeOf(const Trial& trial, const Shape& s, int64_t rows, const Plan& plan,
                     size_t algorithm, int at_once) {
  const CudaProduct product = ProductOf(trial, s, rows);
  constexpr int kRuns = 3;
  const auto stream = static_cast<cudaStream_t>(stream_);
  constexpr float kNever = std::numeric_limits<float>::infinity();
  float least = kNever;
  for (int run = 0; run < kRuns && !error_; ++run) {
    float took = 0;
    // Long enough that all that follows is enqueued meanwhile.
    CheckCuda(cudaMemsetAsync(trial.y(0), 0, static_cast<size_t>(2 * trial.room.y), stream),
              "trial");
    CheckCuda(cudaEventRecord(trial.begin, stream), "trial");
    for (int i = 0; i < at_once; ++i) {
      if (Multiply(product, plan, algorithm) != CUBLAS_STATUS_SUCCESS) return kNever;
    }
    CheckCuda(cudaEventRecord(trial.end, stream), "trial");
    CheckCuda(cudaEventSynchronize(trial.end), "trial");
    CheckCuda(cudaEventElapsedTime(&took, trial.begin, trial.end), "trial");
    least = std::min(least, took);
  }
  return least;
}

bool GemmLt::IsFixed(const CudaProduct& product) const {
  const auto it = plans_.find(ShapeOf(product));
  return it != plans_.end() && it->second.fixed;
}

cublasStatus_t GemmLt::Multiply(const CudaProduct& p, const Plan& plan, size_t algorithm) {
  const auto rows = static_cast<uint64_t>(p.rows);
  for (const cublasLtMatrixLayout_t layout : {plan.x, plan.y}) {
    const cublasStatus_t set =
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof(rows));
    if (set != CUBLAS_STATUS_SUCCESS) return set;
  }
  const float one = 1.0f, keep = p.accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(handle_, plan.product, &one, p.w, plan.w, p.x, plan.x, &keep, p.y, plan.y,
                        p.y, plan.y, &plan.algorithms[algorithm], workspace_, kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream_));
}

void GemmLt::Run(const CudaProduct& p) {
  if (error_ || p.rows == 0) return;
  const Plan* const plan = Find(ShapeOf(p));
  if (plan == nullptr) return;
  const cublasStatus_t status = Multiply(p, *plan, plan->chosen);
  if (status != CUBLAS_STATUS_SUCCESS) Check(status, Words(ShapeOf(p), *plan));
}

std::string GemmLt::Describe() const {
  std::string lines;
  for (const auto& [shape, plan] : plans_) lines += Words(shape, plan) + "\n";
  return lines;
}

}  // namespace eddy
