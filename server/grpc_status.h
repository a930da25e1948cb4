// The one place where an error becomes what gRPC sends.
#pragma once

#include <grpcpp/support/status.h>

#include "server/errors.h"

namespace eddy {

// Code, message and google.rpc details, together under 4 KiB, since trailers count against a peer's
// limit of 8 KiB of metadata. Of faults that do not fit only the number is told.
grpc::Status ToGrpcStatus(const Error& error);

}  // namespace eddy
