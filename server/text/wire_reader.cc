#include "server/text/wire_reader.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace eddy {
namespace {

absl::Status CutOff() { return absl::InvalidArgumentError("the file is cut off or not protobuf"); }

}  // namespace

absl::StatusOr<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return CutOff();
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return CutOff();
}

absl::StatusOr<uint64_t> WireReader::Fixed(size_t size) {
  if (rest_.size() < size) return CutOff();
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
  }
  rest_.remove_prefix(size);
  return value;
}

absl::StatusOr<WireReader::Field> WireReader::Next() {
  EDDY_ASSIGN_OR_RETURN(const uint64_t key, Varint());
  Field field = {.number = key >> 3, .type = static_cast<Type>(key & 7)};
  if (field.number == 0) return CutOff();
  switch (field.type) {
    case Type::kVarint: {
      EDDY_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case Type::kFixed64: {
      EDDY_ASSIGN_OR_RETURN(field.value, Fixed(8));
      return field;
    }
    case Type::kFixed32: {
      EDDY_ASSIGN_OR_RETURN(field.value, Fixed(4));
      return field;
    }
    case Type::kBytes: {
      EDDY_ASSIGN_OR_RETURN(const uint64_t size, Varint());
      if (size > rest_.size()) return CutOff();
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return field;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("field ", field.number, " has wire type ", key & 7, "; supported: 0, 1, 2, 5"));
}

}  // namespace eddy
