#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/json_text.h"
#include "engine/safetensors.h"

namespace eddy {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<const char*, uint64_t>, 16> kTypes = {{{"BOOL", 1},
                                                                      {"U8", 1},
                                                                      {"I8", 1},
                                                                      {"F8_E5M2", 1},
                                                                      {"F8_E4M3", 1},
                                                                      {"F8_E8M0", 1},
                                                                      {"I16", 2},
                                                                      {"U16", 2},
                                                                      {"F16", 2},
                                                                      {"BF16", 2},
                                                                      {"I32", 4},
                                                                      {"U32", 4},
                                                                      {"F32", 4},
                                                                      {"F64", 8},
                                                                      {"I64", 8},
                                                                      {"U64", 8}}};

// 0: no such type.
uint64_t ElementBytes(const std::string& dtype) {
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

// The header, read as it comes, so that its size in memory is that of the list it makes. A method
// that returns false ends the reading; `fault()` then says why.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return Go(Place::kTop);
    if (place_ != Place::kTensorStart) return Fail("an object stands where none may be");
    place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTop) return Go(Place::kEnd);
    if (place_ == Place::kTensor) {
      if (!has_dtype_) return Fail("dtype is missing");
      if (!has_shape_) return Fail("shape is missing");
      if (offsets_ != 2) return Fail("data_offsets are missing");
      tensors_.push_back(std::exchange(tensor_, {}));
    }
    return Go(Place::kTop);
  }
  bool key(std::string& name) override {
    switch (place_) {
      case Place::kTop:
        return StartTensor(name);
      case Place::kMetadata:
        return Go(Place::kMetadataValue);
      case Place::kTensor:
        break;
      default:
        return Fail("a key stands where none may be");
    }
    if (name == "dtype" && !has_dtype_) return Go(Place::kDtype);
    if (name == "shape" && !has_shape_) return Go(Place::kShapeStart);
    if (name == "data_offsets" && offsets_ == 0) return Go(Place::kOffsetsStart);
    return Fail(absl::StrCat("the key ", ShortDump(name), " is unknown or stands twice"));
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadataValue) return Go(Place::kMetadata);
    if (place_ != Place::kDtype) return Fail("a text stands where none may be");
    if (ElementBytes(text) == 0) return Fail(absl::StrCat("unknown dtype ", ShortDump(text)));
    tensor_.dtype = text;
    has_dtype_ = true;
    return Go(Place::kTensor);
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kShapeStart) return Go(Place::kShape);
    if (place_ == Place::kOffsetsStart) return Go(Place::kOffsets);
    return Fail("a list stands where none may be");
  }
  bool end_array() override {
    if (place_ == Place::kShape) has_shape_ = true;
    if (place_ == Place::kOffsets && offsets_ != 2) return Fail("data_offsets must be two numbers");
    return Go(Place::kTensor);
  }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr size_t kMaxDims = 8;
    if (value > static_cast<uint64_t>(INT64_MAX)) return Fail("a number is too large");
    if (place_ == Place::kShape && tensor_.shape.size() < kMaxDims) {
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kShape) return Fail("shape has more than 8 dimensions");
    if (place_ != Place::kOffsets || offsets_ == 2)
      return Fail("a number stands where none may be");
    (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return Fail("a number is negative"); }
  bool number_float(number_float_t, const std::string&) override {
    return Fail("a number is not whole");
  }
  bool null() override { return Fail("null stands where it may not be"); }
  bool boolean(bool) override { return Fail("a truth value stands where none may be"); }
  bool binary(Json::binary_t&) override { return Fail("bytes stand where none may be"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("the header is not JSON at byte ", position));
  }

  const std::string& fault() const { return fault_; }
  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

 private:
  enum class Place {
    kStart,
    kTop,
    kTensorStart,
    kTensor,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kMetadata,
    kMetadataValue,
    kEnd
  };
  bool Go(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(const std::string& what) {
    const std::string where = tensor_.name.empty() ? "" : ShortDump(tensor_.name) + ": ";
    if (fault_.empty()) fault_ = where + what;
    return false;
  }
  bool StartTensor(const std::string& name) {
    tensor_ = {};
    tensor_.name = name;
    if (name.empty()) return Fail("a tensor has no name");
    if (!names_.insert(name).second) return Fail("stands twice");
    in_metadata_ = name == "__metadata__";
    has_dtype_ = has_shape_ = false;
    offsets_ = 0;
    return Go(Place::kTensorStart);
  }

  Place place_ = Place::kStart;
  bool in_metadata_ = false;
  TensorInfo tensor_;
  bool has_dtype_ = false, has_shape_ = false;
  int offsets_ = 0;  // how many were read
  std::vector<TensorInfo> tensors_;
  std::unordered_set<std::string> names_;
  std::string fault_;
};

// The bytes that type and shape ask for; nothing if there are more than a file can have.
std::optional<uint64_t> BytesOf(const TensorInfo& tensor) {
  uint64_t bytes = ElementBytes(tensor.dtype);
  for (int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
  }
  return bytes;
}

// Checks each tensor against its own range, and that all of them fill the data without a hole.
std::optional<std::string> PlaceFault(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string name = ShortDump(tensor.name);
    const std::string range = absl::StrCat("[", tensor.begin, ", ", tensor.end, ")");
    if (tensor.begin > tensor.end) return absl::StrCat(name, ": range ", range, " is reversed");
    if (tensor.end > data_bytes) {
      return absl::StrCat(name, ": range ", range, " passes the end of the data at ", data_bytes);
    }
    const std::optional<uint64_t> bytes = BytesOf(tensor);
    if (bytes != tensor.end - tensor.begin) {
      return absl::StrCat(name, ": range ", range, " is not as long as dtype and shape say");
    }
    if (tensor.begin < at) return absl::StrCat(name, ": range ", range, " overlaps another tensor");
    if (tensor.begin > at) return absl::StrCat("nothing covers bytes ", at, " to ", tensor.begin);
    at = tensor.end;
  }
  if (at != data_bytes) return absl::StrCat("nothing covers bytes ", at, " to ", data_bytes);
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::span<const std::byte> header,
                                                               uint64_t file_bytes,
                                                               const std::string& file) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
  };
  if (file_bytes < 8 || header.size() < 8) return error("too short for a safetensors file");
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(header[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    return error(
        absl::StrCat("the header has ", length, " bytes, at most ", kMaxSafetensorsHeader));
  }
  if (length > file_bytes - 8) {
    return error(absl::StrCat("the header has ", length, " bytes, the file ", file_bytes));
  }
  EDDY_CHECK(header.size() >= 8 + length);
  HeaderReader reader;
  const char* const text = reinterpret_cast<const char*>(header.data()) + 8;
  if (!Json::sax_parse(text, text + length, &reader)) return error(reader.fault());

  std::vector<TensorInfo> tensors = reader.TakeTensors();
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (auto fault = PlaceFault(tensors, file_bytes - 8 - length)) return error(*fault);
  for (TensorInfo& tensor : tensors) {
    tensor.begin += 8 + length;
    tensor.end += 8 + length;
  }
  return tensors;
}

}  // namespace eddy
