// From GenerateRequest and ScoreRequest to what the engine is asked for. All faults of a request
// are found at once; nothing is clamped.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "eddy/v1/generation.pb.h"
#include "server/call.h"
#include "server/convert_output.h"
#include "server/errors.h"
#include "server/served_model.h"

namespace eddy {

struct CallTimes {
  absl::Time arrival = absl::InfinitePast();
  absl::Time client_deadline = absl::InfiniteFuture();  // infinite: none
};

// What is asked for, and how the answer is to look.
struct PlannedCall {
  CallPlan plan = {};
  ResponseShape shape = {};
};

// `faults` holds what was found before. On success `call` is complete but for what only the
// prompt's tokens can tell (prompt.h). First an unknown model is told, then features that are not
// offered, then all faults.
std::optional<Error> ReadGenerateRequest(const v1::GenerateRequest& request,
                                         const ServedModel& model, const CallTimes& times,
                                         Faults faults, PlannedCall* call);
std::optional<Error> ReadScoreRequest(const v1::ScoreRequest& request, const ServedModel& model,
                                      const CallTimes& times, Faults faults, PlannedCall* call);

// Nothing if `name` is empty or that of the model.
std::optional<Error> CheckModel(const std::string& name, const ServedModel& model);

}  // namespace eddy
