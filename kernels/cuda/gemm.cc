#include "kernels/cuda/gemm.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/fixed_product.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/lane_product.h"
#include "kernels/cuda/norm.h"

namespace eddy {
namespace {

// Rows up to which own kernels are faster than cuBLASLt: those of fixed_product.cu; and with those
// of wide_product.cu for many outs, that is more blocks of the former than an H100 takes at once.
// At 64 rows there is no difference.
constexpr int64_t kNarrowRows = 16, kWideRows = 32;
constexpr int64_t kMostNarrowBlocks = 264;
// Rows behind the fixed ones that are computed together with those. A prompt of so many alone takes
// 10 us a layer less for it: its products are one launch.
constexpr int64_t kFewOtherRows = 32;

CudaProduct WithStrides(CudaProduct product) {
  if (product.x_stride == 0) product.x_stride = product.in;
  if (product.y_stride == 0) product.y_stride = product.out;
  return product;
}

}  // namespace

class CudaGemm {
 public:
  explicit CudaGemm(Stream stream) : stream_(stream), lt_(stream) {
    PrepareFixed();
    PrepareWide();
  }

  void Run(std::span<const CudaProduct> given);
  void Prepare(std::span<const CudaProduct> given, bool fixed);
  std::optional<std::string> TakeError() { return lt_.TakeError(); }
  std::string Describe() const { return lt_.Describe(); }

 private:
  bool IsRecording() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // A failure shows at the next launch.
    static_cast<void>(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream_), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  int64_t own_rows() const { return HasWide() ? kWideRows : kNarrowRows; }
  bool LtIsFixed(const CudaProduct& product) const;
  void RunFixedRows(std::span<const CudaProduct> products);
  void RunLt(const CudaProduct& product);
  void RunLanes(const CudaProduct& product);
  void MultiplyGate(const CudaProduct& product);

  const Stream stream_;
  GemmLt lt_;
};

namespace {

void* Offset(const void* data, int64_t elements, DType type) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + elements * SizeOf(type);
}

// The rows of a product from `first` on. Nothing of it is left to be normalised.
CudaProduct RowsFrom(CudaProduct product, int64_t first, int64_t rows) {
  product.x = Offset(product.x, first * product.x_stride, product.type);
  product.y = Offset(product.y, first * product.y_stride, product.y_type);
  if (product.gate_room != nullptr) {
    product.gate_room = Offset(product.gate_room, first * 2 * product.out, product.y_type);
  }
  product.rows = rows;
  return product;
}

// Whether `next` continues `product`: its matrix lies behind that one's, its columns of y too.
bool IsNeighbour(const CudaProduct& product, const CudaProduct& next) {
  return product.w != nullptr && product.y != nullptr && product.gate == nullptr &&
         next.gate == nullptr && product.bias == nullptr && next.bias == nullptr &&
         product.y_type == next.y_type && product.y_stride == next.y_stride &&
         product.accumulate == next.accumulate &&
         Offset(product.w, product.out * product.in, product.type) == next.w &&
         Offset(product.y, product.out, product.y_type) == next.y;
}

// A gated product as two that leave x gate and x w side by side in the room, or as one if the
// matrices lie side by side too; how many.
size_t Ungated(const CudaProduct& product, CudaProduct (&to)[2]) {
  to[0] = product;
  to[0].gate = nullptr;
  if (product.gate == nullptr) return 1;
  to[0].w = product.gate;
  to[0].y = product.gate_room;
  to[0].y_stride = 2 * product.out;
  to[1] = to[0];
  to[1].w = product.w;
  if (product.gate_room != nullptr) {
    to[1].y = Offset(product.gate_room, product.out, product.y_type);
  }
  if (Offset(to[0].w, product.out * product.in, product.type) != to[1].w) return 2;
  to[0].out *= 2;
  return 1;
}

// Whether the matrix unit can take it.
bool ForMatrixUnit(const CudaProduct& product) {
  return product.type == DType::kBF16 && product.in % 8 == 0;
}

bool IsAligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether the kernel for few rows can normalise x while it reads.
bool NormalisesOnTheFly(const CudaProduct& product) {
  return product.rows <= kMostNormedRows && product.in <= kMostNormedIn && ForMatrixUnit(product) &&
         IsAligned(product.x, 16) && IsAligned(product.norm, 16) && product.x_stride % 4 == 0;
}

// Blocks that fixed_product.cu takes for up to 32 rows.
int64_t NarrowBlocks(std::span<const CudaProduct> products) {
  constexpr int64_t kOuts = 16;
  int64_t blocks = 0;
  for (const CudaProduct& product : products) {
    const int64_t outs = product.gate == nullptr ? product.out : 2 * product.out;
    blocks += (outs + kOuts - 1) / kOuts;
  }
  return blocks * ((products[0].rows + 31) / 32);
}

void CheckProduct(const CudaProduct& product, const CudaProduct& first) {
  EDDY_CHECK(product.rows == first.rows && product.in == first.in && product.x == first.x &&
             product.x_stride == first.x_stride && product.type == first.type &&
             product.norm == first.norm && product.fixed_rows == first.fixed_rows);
  EDDY_CHECK(0 <= product.fixed_rows && product.fixed_rows <= product.rows);
  EDDY_CHECK(product.in > 0 && product.out > 0);
  EDDY_CHECK(product.y_type == DType::kF32 || (!product.accumulate && product.bias == nullptr));
  EDDY_CHECK(product.rows == 0 || product.norm == nullptr || product.normed != nullptr);
  if (product.gate != nullptr) {
    EDDY_CHECK(product.rows == 0 || product.gate_room != nullptr);
    EDDY_CHECK(!product.accumulate && product.bias == nullptr);
  }
  if (ForMatrixUnit(product)) {
    EDDY_CHECK(IsAligned(product.w, 16) && IsAligned(product.gate, 16));
    EDDY_CHECK(product.norm != nullptr || (IsAligned(product.x, 16) && product.x_stride % 8 == 0));
  }
}

// Fills in strides, and makes one product of neighbours: matrices and results that lie side by
// side.
size_t Tidy(std::span<const CudaProduct> given, CudaProduct (&products)[kMostProducts]) {
  EDDY_CHECK(!given.empty() && given.size() <= kMostProducts);
  size_t count = 0;
  for (const CudaProduct& one : given) {
    const CudaProduct product = WithStrides(one);
    CheckProduct(product, WithStrides(given[0]));
    if (count > 0 && IsNeighbour(products[count - 1], product)) {
      products[count - 1].out += product.out;
    } else {
      products[count++] = product;
    }
  }
  return count;
}

}  // namespace

bool CudaGemm::LtIsFixed(const CudaProduct& product) const {
  if (product.type != DType::kBF16 || product.rows <= own_rows()) return false;
  CudaProduct ungated[2];
  const size_t count = Ungated(product, ungated);
  return std::all_of(ungated, ungated + count,
                     [&](const CudaProduct& one) { return lt_.IsFixed(one); });
}

void CudaGemm::Run(std::span<const CudaProduct> given) {
  CudaProduct products[kMostProducts];
  const std::span<CudaProduct> all(products, Tidy(given, products));
  const CudaProduct first = all[0];
  if (first.rows == 0) return;
  // A shape that nobody announced, when it first comes: once for each, and never while recording.
  if (first.type == DType::kBF16 && first.fixed_rows > own_rows() && !IsRecording())
    Prepare(given, /*fixed=*/true);
  // Float is for exactness: there all rows take the fixed order, so that the cuts of a prompt
  // change no product. And so few rows are not worth a call of their own.
  const bool all_fixed =
      first.type == DType::kF32 || first.rows - first.fixed_rows <= kFewOtherRows;
  const int64_t fixed_rows = all_fixed ? first.rows : first.fixed_rows;
  if (first.norm != nullptr && !(all_fixed && NormalisesOnTheFly(first))) {
    RunRmsNorm(stream_, {.rows = first.rows,
                         .width = first.in,
                         .x = static_cast<const float*>(first.x),
                         .x_stride = first.x_stride,
                         .weight = first.norm,
                         .eps = first.norm_eps,
                         .y = first.normed,
                         .y_type = first.type});
    for (CudaProduct& product : all) {
      product.x = first.normed;
      product.x_stride = product.in;
      product.norm = nullptr;
    }
  }
  CudaProduct fixed[kMostProducts];
  size_t fixed_count = 0;
  for (const CudaProduct& product : all) {
    // Rows that cuBLASLt sums in the fixed order go together with the others.
    if (fixed_rows > 0 && !LtIsFixed(product)) {
      fixed[fixed_count++] = all_fixed ? product : RowsFrom(product, 0, fixed_rows);
      if (!all_fixed) RunLt(RowsFrom(product, fixed_rows, first.rows - fixed_rows));
    } else {
      RunLt(product);
    }
  }
  if (fixed_count > 0) RunFixedRows({fixed, fixed_count});
}

// `fixed`: for fixed rows too.
void CudaGemm::Prepare(std::span<const CudaProduct> given, bool fixed) {
  CudaProduct products[kMostProducts];
  const size_t count = Tidy(given, products);
  const auto reference = [this](const CudaProduct& product) { RunFixedRows({&product, 1}); };
  for (size_t i = 0; i < count; ++i) {
    CudaProduct& product = products[i];
    if (product.norm != nullptr) product.x_stride = product.in;
    CudaProduct ungated[2];
    const size_t parts = Ungated(product, ungated);
    for (size_t j = 0; j < parts; ++j) {
      if (fixed) {
        lt_.Prepare(ungated[j], reference);
      } else {
        lt_.PrepareLong(ungated[j], reference);
      }
    }
  }
}

void CudaGemm::RunFixedRows(std::span<const CudaProduct> products) {
  const CudaProduct& first = products[0];
  if (!ForMatrixUnit(first)) {
    for (const CudaProduct& product : products) RunLanes(product);
    return;
  }
  FixedProduct fixed = {.x = first.x,
                        .x_stride = first.x_stride,
                        .norm = first.norm,
                        .norm_eps = first.norm_eps,
                        .rows = static_cast<int32_t>(first.rows),
                        .in = static_cast<int32_t>(first.in),
                        .parts = static_cast<int32_t>(products.size())};
  for (size_t i = 0; i < products.size(); ++i) {
    const CudaProduct& product = products[i];
    fixed.part[i] = {.w = product.w,
                     .gate = product.gate,
                     .y = product.y,
                     .y_stride = product.y_stride,
                     .bias = product.bias,
                     .out = static_cast<int32_t>(product.out),
                     .half = product.y_type == DType::kBF16,
                     .accumulate = product.accumulate};
  }
  if (first.rows > kNarrowRows && HasWide() && NarrowBlocks(products) > kMostNarrowBlocks) {
    return RunWide(stream_, fixed);
  }
  RunFixed(stream_, fixed);
}

void CudaGemm::RunLt(const CudaProduct& product) {
  CudaProduct ungated[2];
  const size_t count = Ungated(product, ungated);
  for (size_t i = 0; i < count; ++i) lt_.Run(ungated[i]);
  if (product.bias != nullptr) {
    RunAddBias(stream_, {.rows = product.rows,
                         .width = product.out,
                         .bias = product.bias,
                         .y = static_cast<float*>(product.y),
                         .y_stride = product.y_stride});
  }
  MultiplyGate(product);
}

void CudaGemm::RunLanes(const CudaProduct& product) {
  CudaProduct ungated[2];
  const size_t count = Ungated(product, ungated);
  for (size_t i = 0; i < count; ++i) RunLaneProduct(stream_, ungated[i]);
  MultiplyGate(product);
}

// y from what a gated product has left in the room.
void CudaGemm::MultiplyGate(const CudaProduct& product) {
  if (product.gate == nullptr) return;
  RunGate(stream_, {.function = GateFunction::kSilu,
                    .rows = product.rows,
                    .width = product.out,
                    .in_type = product.y_type,
                    .gate = product.gate_room,
                    .gate_stride = 2 * product.out,
                    .up = Offset(product.gate_room, product.out, product.y_type),
                    .up_stride = 2 * product.out,
                    .y_type = product.y_type,
                    .y = product.y,
                    .y_stride = product.y_stride});
}

void RunProduct(CudaGemm* gemm, const CudaProduct& product) { gemm->Run({&product, 1}); }

void RunProducts(CudaGemm* gemm, std::span<const CudaProduct> products) { gemm->Run(products); }

void CudaGemmDelete::operator()(CudaGemm* gemm) const { delete gemm; }

CudaGemmPtr MakeCudaGemm(Stream stream) { return CudaGemmPtr(new CudaGemm(stream)); }

void PrepareProduct(CudaGemm* gemm, const CudaProduct& shape) {
  gemm->Prepare({&shape, 1}, /*fixed=*/true);
}

void PrepareProducts(CudaGemm* gemm, std::span<const CudaProduct> shapes) {
  gemm->Prepare(shapes, /*fixed=*/true);
}

void PrepareLongProducts(CudaGemm* gemm, std::span<const CudaProduct> shapes) {
  gemm->Prepare(shapes, /*fixed=*/false);
}

std::optional<std::string> TakeGemmError(CudaGemm* gemm) { return gemm->TakeError(); }

std::string DescribeGemm(const CudaGemm* gemm) { return gemm->Describe(); }

}  // namespace eddy
