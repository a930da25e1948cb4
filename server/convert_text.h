// Tokenize and Detokenize.
#pragma once

#include <optional>

#include "eddy/v1/generation.pb.h"
#include "server/errors.h"
#include "server/served_model.h"

namespace eddy {

std::optional<Error> CheckTokenizeRequest(const v1::TokenizeRequest& request,
                                          const ServedModel& model);
// REQUIRES: CheckTokenizeRequest found nothing. May take milliseconds.
std::optional<Error> Encode(const v1::TokenizeRequest& request, const ServedModel& model,
                            v1::TokenizeResponse* response);

std::optional<Error> CheckDetokenizeRequest(const v1::DetokenizeRequest& request,
                                            const ServedModel& model);
// REQUIRES: CheckDetokenizeRequest found nothing. May take milliseconds.
v1::DetokenizeResponse Decode(const v1::DetokenizeRequest& request, const ServedModel& model);

}  // namespace eddy
