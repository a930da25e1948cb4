// Between bytes and messages. Services read their requests themselves, since gRPC answers one that
// does not parse, such as text that is no UTF-8, with an empty UNIMPLEMENTED.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "server/errors.h"

namespace eddy {

// What is wrong with the bytes: all string fields that are no UTF-8, or that they are malformed.
std::optional<Error> ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

}  // namespace eddy
