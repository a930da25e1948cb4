#include "server/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace eddy {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kDepthMax = 16;  // more than our messages are nested

// The string fields of a message that are no UTF-8. Of a list, which may hold millions, only the
// first few are described, so that an answer never takes more memory than the question.
class BadTexts {
 public:
  explicit BadTexts(Faults* faults) : faults_(faults) {}

  void Add(const std::string& name, const std::string& text) {
    if (++wrong_[name] > Faults::kDescribedPerList) return;
    faults_->Add(name, absl::StrCat(name, " is not valid UTF-8: ", Shown(text)));
  }
  void AddTheRest() {
    for (const auto& [name, wrong] : wrong_) {
      if (wrong <= Faults::kDescribedPerList) continue;
      faults_->Add(name, absl::StrCat(name, ": ", wrong - Faults::kDescribedPerList,
                                      " more are not valid UTF-8"));
    }
  }

 private:
  Faults* const faults_;
  std::map<std::string, int> wrong_;  // how many, by the name of the field
};

// False: the bytes are malformed.
bool FindBadText(const Descriptor* type, const std::string& bytes, const std::string& path,
                 int depth, BadTexts* found) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field =
        type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool has_length =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (field == nullptr || !has_length) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t size = 0;
    std::string value;
    if (!in.ReadVarint32(&size) || !in.ReadString(&value, static_cast<int>(size))) return false;
    const std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (field->type() == FieldDescriptor::TYPE_STRING && !IsUtf8(value)) {
      found->Add(name, value);
    }
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax &&
        !FindBadText(field->message_type(), value, name, depth + 1, found)) {
      return false;
    }
  }
  return in.ConsumedEntireMessage();
}

}  // namespace

std::optional<Error> ReadMessage(const grpc::ByteBuffer& bytes,
                                 google::protobuf::Message* message) {
  {
    grpc::ByteBuffer copy(bytes);  // shares the bytes; the reader wants one that it may change
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return std::nullopt;
  }
  std::string flat;
  std::vector<grpc::Slice> slices;
  if (bytes.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  Faults faults;
  const Descriptor* const type = message->GetDescriptor();
  BadTexts found(&faults);
  const bool well_formed = FindBadText(type, flat, "", 0, &found);
  found.AddTheRest();
  if (!well_formed || faults.empty()) {
    faults.Add("", absl::StrCat("the message is not a well-formed ", type->full_name()));
  }
  return faults.ToError();
}

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  // The slice is new, so that nobody else sees it being written.
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace eddy
