// Reads the protobuf wire format: fields of a message, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace eddy {

// Every read is checked against the end of the message. The bytes outlive it.
class WireReader {
 public:
  enum class Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  struct Field {
    uint64_t number = 0;
    Type type = Type::kVarint;
    uint64_t value = 0;           // of kVarint, kFixed64 and kFixed32
    std::string_view bytes = {};  // of kBytes
  };
  explicit WireReader(std::string_view message) : rest_(message) {}

  bool AtEnd() const { return rest_.empty(); }
  // InvalidArgument if the message is cut off or not protobuf. REQUIRES: not AtEnd().
  absl::StatusOr<Field> Next();

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> Fixed(size_t size);
  std::string_view rest_;
};

}  // namespace eddy
