// What ModelService tells.
#pragma once

#include "absl/time/time.h"
#include "eddy/v1/model.pb.h"
#include "server/backend.h"
#include "server/lifecycle.h"
#include "server/served_model.h"

namespace eddy {

v1::Model ToModel(const ServedModel& model);
// `backend` is null while the model is being loaded.
v1::GetServerStatusResponse ToServerStatus(Lifecycle::State state, absl::Time start_time,
                                           absl::Time now, const Backend* backend);

}  // namespace eddy
