// Messages and errors as text.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "eddy/v1/generation.pb.h"

namespace eddy::client {

// One line of JSON with the names of the proto files; values that are not set are there with their
// default, except those that the proto calls optional.
std::string Json(const google::protobuf::Message& message);

// An error on several lines: code, reason and message, then metadata and faults; as JSON on one, as
// google.rpc.Status.
void PrintError(const grpc::Status& status, bool json, std::ostream& err);
// INVALID_ARGUMENT and so on.
std::string CodeName(grpc::StatusCode code);

// "0.125 MiB": sizes beside each other are in one unit.
std::string InMiB(uint64_t bytes);

// token, logprob, rank and the likeliest tokens of the place, with tabs between.
void PrintLogprob(const v1::TokenLogprob& logprob, std::ostream& out);
// Entropy, then those of the other values that are there, with tabs between.
void PrintUncertainty(const v1::TokenUncertainty& uncertainty, std::ostream& out);
// token and logprob.
void PrintCandidate(const v1::Candidate& candidate, std::ostream& out);
void PrintTimings(const v1::Timings& timings, std::ostream& out);

absl::Duration ToDuration(const google::protobuf::Duration& duration);
google::protobuf::Duration ToProto(absl::Duration duration);

}  // namespace eddy::client
