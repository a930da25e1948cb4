#include "server/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

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

// Adds the string fields that are no UTF-8. False: the bytes are malformed.
bool FindBadText(const Descriptor* type, const std::string& bytes, const std::string& path,
                 int depth, Faults* faults) {
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
      faults->Add(name, absl::StrCat(name, " is not valid UTF-8: ", Shown(value)));
    }
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax &&
        !FindBadText(field->message_type(), value, name, depth + 1, faults)) {
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
  if (!FindBadText(type, flat, "", 0, &faults) || faults.empty()) {
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
