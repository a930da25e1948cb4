// Asks a server by reflection which services it has. The message types of reflection are in the
// library, without their header; so this speaks raw bytes.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

namespace eddy {

// All length-delimited fields `number` of a message.
inline std::vector<std::string> FieldsOf(const std::string& message, uint32_t number) {
  std::vector<std::string> values;
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()),
                                            static_cast<int>(message.size()));
  while (const uint32_t tag = in.ReadTag()) {
    if ((tag & 7) != 2) return values;
    uint32_t size = 0;
    std::string value;
    in.ReadVarint32(&size);
    in.ReadString(&value, static_cast<int>(size));
    if (tag >> 3 == number) values.push_back(value);
  }
  return values;
}

inline std::vector<std::string> ListServices(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice list_services(std::string("\x3a\x01*"));  // field 7, "*"
  call->WriteLast(grpc::ByteBuffer(&list_services, 1), {}, nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  std::string bytes;
  std::vector<grpc::Slice> slices;
  if (answer.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  std::vector<std::string> names;
  for (const std::string& list : FieldsOf(bytes, 6)) {
    for (const std::string& service : FieldsOf(list, 1)) {
      for (std::string& name : FieldsOf(service, 1)) names.push_back(std::move(name));
    }
  }
  return names;
}

}  // namespace eddy
