#include "engine/weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

// Numbers pass through the host in pieces of so many bytes, so that loading needs little memory
// beyond the weights.
constexpr int64_t kStagingBytes = 4 << 20;
// How often progress is logged.
constexpr int64_t kProgressBytes = int64_t{1} << 30;

using Pieces = std::vector<const WeightPlan::Piece*>;

// All pieces that are in the files, in the order of their places there.
Pieces InFileOrder(const WeightPlan& plan) {
  Pieces pieces;
  for (const auto& group : plan.groups) {
    for (const WeightPlan::Piece& piece : group) {
      if (piece.source != nullptr) pieces.push_back(&piece);
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) {
    return std::pair(a->source, a->first_element) < std::pair(b->source, b->first_element);
  });
  return pieces;
}

Sha256::Digest DigestOf(const StoredTensor& tensor) {
  Sha256 hash;
  hash.AddText(tensor.info->dtype);
  hash.AddNumber(static_cast<int64_t>(tensor.info->shape.size()));
  for (int64_t dim : tensor.info->shape) hash.AddNumber(dim);
  hash.Add(tensor.file->Bytes(*tensor.info));
  return hash.Finish();
}

absl::Status DeviceError(Device* device) {
  const std::optional<std::string> error = device->Finish();
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("loading weights: ", *error));
}

// `elements` of the source from `first` on.
absl::Status UploadPart(const WeightPlan::Piece& piece, int64_t first, int64_t elements,
                        std::byte* to, const Buffer& staging, Device* device) {
  const std::span<const std::byte> bytes =
      piece.source->file->Bytes(*piece.source->info)
          .subspan(static_cast<size_t>(first * SizeOf(piece.format)),
                   static_cast<size_t>(elements * SizeOf(piece.format)));
  const int64_t from_size = SizeOf(piece.format);
  const int64_t to_size = SizeOf(piece.field.dtype);
  const int64_t most = kStagingBytes / to_size;
  for (int64_t at = 0; at < elements; at += most) {
    const int64_t n = std::min(most, elements - at);
    const std::span<std::byte> staged(static_cast<std::byte*>(staging.data()),
                                      static_cast<size_t>(n * to_size));
    const auto from =
        bytes.subspan(static_cast<size_t>(at * from_size), static_cast<size_t>(n * from_size));
    if (!ConvertFloats(piece.format, from, piece.field.dtype, staged)) {
      return absl::InvalidArgumentError(absl::StrCat(piece.source->file->path(), ": ",
                                                     piece.source->info->name,
                                                     " holds a number that is not finite"));
    }
    device->Upload(to + at * to_size, staged);
    // The staging memory is used again at once.
    EDDY_RETURN_IF_ERROR(DeviceError(device));
  }
  return absl::OkStatus();
}

absl::Status Upload(const WeightPlan::Piece& piece, std::byte* to, const Buffer& staging,
                    Device* device) {
  const int64_t part = piece.elements / piece.heads;
  for (int64_t i = 0; i < piece.heads * piece.repeats; ++i) {
    const int64_t first = piece.first_element + i / piece.repeats * part;
    EDDY_RETURN_IF_ERROR(
        UploadPart(piece, first, part, to + i * part * SizeOf(piece.field.dtype), staging, device));
  }
  return absl::OkStatus();
}

absl::Status UploadZeros(const WeightPlan& plan, std::byte* base, const Buffer& staging,
                         Device* device) {
  std::memset(staging.data(), 0, static_cast<size_t>(kStagingBytes));
  for (const auto& group : plan.groups) {
    for (const WeightPlan::Piece& piece : group) {
      if (piece.source != nullptr) continue;
      const int64_t bytes = FieldBytes(piece.field);
      for (int64_t at = 0; at < bytes; at += kStagingBytes) {
        const int64_t n = std::min(kStagingBytes, bytes - at);
        device->Upload(
            base + piece.offset + at,
            std::span(static_cast<const std::byte*>(staging.data()), static_cast<size_t>(n)));
      }
    }
  }
  return DeviceError(device);
}

std::vector<std::vector<TensorView>> ViewsOf(const WeightPlan& plan, std::byte* base) {
  std::vector<std::vector<TensorView>> groups;
  for (const auto& pieces : plan.groups) {
    groups.emplace_back();
    for (const WeightPlan::Piece& piece : pieces) {
      groups.back().push_back(
          {.data = base + piece.offset, .dtype = piece.field.dtype, .shape = piece.field.shape});
    }
  }
  return groups;
}

}  // namespace

absl::StatusOr<Weights> LoadWeights(const WeightPlan& plan, Device* device) {
  Weights weights;
  weights.memory = device->Allocate(plan.bytes);
  const Buffer staging = device->AllocateHost(kStagingBytes);
  if (!weights.memory || !staging) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", plan.bytes, " bytes of weights"));
  }
  auto* const base = static_cast<std::byte*>(weights.memory.data());
  weights.groups = ViewsOf(plan, base);

  EDDY_RETURN_IF_ERROR(UploadZeros(plan, base, staging, device));

  const Pieces pieces = InFileOrder(plan);
  std::map<std::string, Sha256::Digest> digests;  // by name
  const absl::Time began = absl::Now();
  int64_t done = 0, logged = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const StoredTensor& source = *pieces[i]->source;
    if (i == 0 || pieces[i - 1]->source != &source) digests[source.info->name] = DigestOf(source);
    EDDY_RETURN_IF_ERROR(Upload(*pieces[i], base + pieces[i]->offset, staging, device));
    if (i + 1 == pieces.size() || pieces[i + 1]->source != &source) {
      source.file->Release(*source.info);
    }
    done += FieldBytes(pieces[i]->field);
    if (done - logged < kProgressBytes) continue;
    logged = done;
    const double left = static_cast<double>(plan.bytes - done) / static_cast<double>(done);
    Log(LogLevel::kInfo, "loading_weights",
        {{"bytes", done},
         {"bytes_total", plan.bytes},
         {"seconds_left", absl::ToDoubleSeconds(absl::Now() - began) * left}});
  }
  Log(LogLevel::kInfo, "weights_loaded",
      {{"bytes", plan.bytes}, {"tensors", digests.size()}, {"parameters", plan.parameters}});

  Sha256 all;
  for (const auto& [name, digest] : digests) {
    all.AddText(name);
    all.Add(std::as_bytes(std::span(digest)));
  }
  weights.digest = all.Finish();
  return weights;
}

}  // namespace eddy
