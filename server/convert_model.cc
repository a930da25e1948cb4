#include "server/convert_model.h"

#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/version.h"
#include "server/checks.h"
#include "server/features.h"

namespace eddy {
namespace {

v1::DataType ToDataType(const std::string& name) {
  if (name == "float32") return v1::DATA_TYPE_FLOAT32;
  if (name == "bfloat16") return v1::DATA_TYPE_BFLOAT16;
  if (name == "float16") return v1::DATA_TYPE_FLOAT16;
  return v1::DATA_TYPE_UNSPECIFIED;
}

template <typename T>
uint32_t ToUint32(T value) {
  return static_cast<uint32_t>(value);
}

std::string ToBytes(const std::array<uint8_t, 32>& hash) {
  return std::string(hash.begin(), hash.end());
}

void SetLimits(const ServedModel& model, v1::Limits* to) {
  to->set_max_prompt_tokens(ToUint32(model.limits.max_prompt_tokens));
  to->set_max_new_tokens(ToUint32(model.limits.max_new_tokens));
  to->set_max_num_sequences(kMaxNumSequences);
  to->set_max_logprob_entries(ToUint32(model.limits.max_logprob_entries));
  to->set_max_message_bytes(static_cast<uint64_t>(model.limits.max_message_bytes));
  *to->mutable_max_request_time() = ToProto(model.limits.max_request_time);
  to->set_max_sequences(ToUint32(model.capacity.slots));
}

v1::ServerState ToServerState(Lifecycle::State state) {
  switch (state) {
    case Lifecycle::State::kStarting:
      return v1::SERVER_STATE_STARTING;
    case Lifecycle::State::kServing:
      return v1::SERVER_STATE_SERVING;
    case Lifecycle::State::kLeaving:
    case Lifecycle::State::kDraining:
      return v1::SERVER_STATE_DRAINING;
    case Lifecycle::State::kDeviceLost:
      return v1::SERVER_STATE_DEVICE_LOST;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

void SetLoad(const Backend& backend, absl::Time now, v1::ModelLoad* to) {
  const StepStats stats = backend.last_step->stats();
  const WaitingLoad waiting = backend.engine->waiting();
  to->set_model(backend.model->name);
  to->set_running_sequences(ToUint32(stats.running));
  to->set_waiting_requests(ToUint32(waiting.requests));
  to->set_waiting_prompt_tokens(static_cast<uint64_t>(waiting.prompt_tokens));
  if (waiting.oldest < absl::InfiniteFuture()) {
    const absl::Duration age = std::max(absl::ZeroDuration(), now - waiting.oldest);
    *to->mutable_oldest_waiting() = ToProto(age);
  }
  to->set_slots_total(ToUint32(backend.model->capacity.slots));
  to->set_kv_pages_total(ToUint32(backend.model->capacity.pages));
  to->set_kv_pages_used(ToUint32(stats.pages_used));
  if (const absl::Time ended = backend.last_step->ended(); ended > absl::InfinitePast()) {
    *to->mutable_last_step_age() = ToProto(std::max(absl::ZeroDuration(), now - ended));
  }
}

}  // namespace

v1::Model ToModel(const ServedModel& model) {
  const ModelInfo& info = model.info;
  v1::Model to;
  to.set_name(model.name);
  to.set_model_type(info.model_type);
  to.set_fingerprint(ToBytes(info.fingerprint));
  to.set_parameters(static_cast<uint64_t>(info.parameters));
  to.set_vocab_size(ToUint32(info.vocab_size));
  to.set_hidden_size(ToUint32(info.hidden_size));
  for (const auto& [type, count] : info.layers) {
    v1::LayerGroup* const group = to.add_layers();
    group->set_type(type);
    group->set_count(ToUint32(count));
  }
  if (info.bos_token.has_value()) to.set_bos_token_id(ToUint32(*info.bos_token));
  for (const int32_t eos : info.eos_tokens) to.add_eos_token_ids(ToUint32(eos));
  to.set_weight_type(ToDataType(info.weight_type));
  to.set_state_type(ToDataType(info.state_type));
  to.set_state_bytes_per_sequence(static_cast<uint64_t>(info.record_bytes));
  to.set_kv_bytes_per_token(static_cast<uint64_t>(info.kv_bytes_per_token));
  SetLimits(model, to.mutable_limits());
  if (model.tokenizer != nullptr) to.add_features(v1::FEATURE_TEXT);
  if (info.kalman_readouts) to.add_features(v1::FEATURE_KALMAN_UNCERTAINTY);
  if (info.record_bytes > 0) to.add_features(v1::FEATURE_STATE_STATS);
  const SamplingParams sampling;
  to.mutable_default_sampling()->set_temperature(sampling.temperature);
  to.mutable_default_sampling()->set_top_p(sampling.top_p);
  to.mutable_default_sampling()->set_typical_p(sampling.typical_p);
  to.mutable_default_sampling()->set_num_sequences(1);
  to.mutable_default_stopping()->set_max_new_tokens(ToUint32(model.limits.default_max_new_tokens));
  to.set_layout_fingerprint(ToBytes(info.layout_fingerprint));
  return to;
}

v1::GetServerStatusResponse ToServerStatus(Lifecycle::State state, absl::Time start_time,
                                           absl::Time now, const Backend* backend) {
  v1::GetServerStatusResponse to;
  to.set_state(ToServerState(state));
  to.set_version(std::string(Version()));
  to.set_commit(std::string(Commit()));
  const int64_t nanos = absl::ToUnixNanos(start_time);
  to.mutable_start_time()->set_seconds(nanos / 1000000000);
  to.mutable_start_time()->set_nanos(static_cast<int32_t>(nanos % 1000000000));
  if (backend == nullptr) return to;
  const Capacity& capacity = backend->model->capacity;
  v1::DeviceStatus* const device = to.mutable_device();
  device->set_backend(backend->device.backend);
  device->set_name(backend->device.name);
  device->set_weight_bytes(static_cast<uint64_t>(capacity.weight_bytes));
  device->set_state_bytes(static_cast<uint64_t>(capacity.state_bytes));
  device->set_kv_bytes(static_cast<uint64_t>(capacity.kv_bytes));
  device->set_workspace_bytes(static_cast<uint64_t>(capacity.workspace_bytes));
  SetLoad(*backend, now, to.add_loads());
  return to;
}

}  // namespace eddy
