#include "server/server.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "server/generation_service.h"
#include "server/grpc_server.h"
#include "server/health.h"
#include "server/housekeeper.h"
#include "server/metrics.h"
#include "server/metrics_server.h"
#include "server/model_service.h"
#include "server/session_service.h"
#include "server/trace_exporter.h"
#include "server/trace_metrics.h"

namespace eddy {
namespace {

// How long gRPC may take to end calls that were told to end.
constexpr absl::Duration kShutdownTime = absl::Seconds(1);

class TokenObserver : public CallObserver {
 public:
  explicit TokenObserver(Metrics* metrics) : metrics_(metrics) {}
  void Tokens(const std::vector<double>& first, const std::vector<double>& between) override {
    if (!first.empty()) metrics_->ObserveFirstTokens(first);
    if (!between.empty()) metrics_->ObserveInterToken(between);
  }

 private:
  Metrics* const metrics_;
};

Metrics::Options MetricsOptions(const ServerConfig& config) {
  return {.model_name = config.model_name,
          .max_prompt_tokens = config.max_prompt_tokens,
          .max_new_tokens = config.max_new_tokens,
          .max_rows_per_step = config.max_rows_per_step == 0 ? 2048 : config.max_rows_per_step};
}

// Few where cores are few: a thread that wakes there takes the engine's core.
int DeliveryThreads(const ServerConfig& config) {
  if (config.delivery_threads > 0) return config.delivery_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

RequestLimits LimitsOf(const ServerConfig& config) {
  return {.max_prompt_tokens = config.max_prompt_tokens,
          .max_new_tokens = config.max_new_tokens,
          .default_max_new_tokens = config.default_max_new_tokens,
          .max_logprob_entries = config.max_logprob_entries,
          .max_message_bytes = config.max_message_bytes,
          .max_request_time = config.max_request_time};
}

// Null if traces go nowhere.
std::unique_ptr<TraceExporter> ExporterOf(const ServerConfig& config, const Clock* clock,
                                          TraceObserver* observer) {
  if (config.otlp_endpoint.empty()) return nullptr;
  std::string fault;
  TraceExporter::Options options{
      .endpoint = config.otlp_endpoint,
      .resource = ReadResource(std::getenv("OTEL_SERVICE_NAME"),
                               std::getenv("OTEL_RESOURCE_ATTRIBUTES"), &fault),
      .model_name = config.model_name};
  if (!fault.empty()) Log(LogLevel::kWarning, "resource_not_read", {{"error", fault}});
  return std::make_unique<TraceExporter>(options, clock, observer);
}

}  // namespace

// In order of construction; the engine's side is built by Serve and goes before the edges do.
struct Server::Parts {
  Parts(const ServerConfig& the_config, const Clock* the_clock, absl::AnyInvocable<void()> the_wake)
      : config(the_config),
        clock(the_clock),
        wake(std::move(the_wake)),
        metrics(MetricsOptions(config)),
        trace_metrics(metrics.registry().get()),
        traces(ExporterOf(config, clock, &trace_metrics)),
        open_calls([this] { wake(); }) {
    context.env = {.clock = clock,
                   .metrics = &metrics,
                   .open_calls = &open_calls,
                   .traces = traces.get(),
                   .trace_sample_ratio = config.otlp_sample_ratio};
    context.lifecycle = &lifecycle;
    context.start_time = clock->Now();
    context.outbox_bytes_max = config.outbox_bytes_max;
  }

  void StartEngine(ModelToServe model);
  void CheckUp();

  const ServerConfig config;
  const Clock* const clock;
  absl::AnyInvocable<void()> wake;
  Metrics metrics;
  TraceMetrics trace_metrics;
  std::unique_ptr<TraceExporter> traces;  // when it goes, it sends what is left
  OpenCalls open_calls;
  Lifecycle lifecycle;
  LastStep last_step;
  ServiceContext context;
  GenerationService generation{&context};
  ModelService models{&context};
  SessionService sessions{&context};
  TokenObserver observer{&metrics};
  Ports ports;

  std::unique_ptr<grpc::Server> server, admin;
  std::unique_ptr<MetricsServer> metrics_server;
  std::unique_ptr<Health> health;

  ServedModel served;
  Backend backend;
  std::unique_ptr<Delivery> delivery;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Admission> admission;
  std::unique_ptr<Housekeeper> housekeeper;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& config,
                                                      const Clock* clock,
                                                      absl::AnyInvocable<void()> wake) {
  SetUpGrpc(config);
  auto parts = std::make_unique<Parts>(config, clock, std::move(wake));
  if (!config.metrics_listen.empty()) {
    EDDY_ASSIGN_OR_RETURN(parts->metrics_server,
                          MetricsServer::Start(config.metrics_listen, &parts->metrics));
    parts->ports.metrics_listen = parts->metrics_server->port();
  }
  EDDY_ASSIGN_OR_RETURN(
      ListeningServer listening,
      StartServer(config, {&parts->generation, &parts->models, &parts->sessions}, &parts->metrics));
  parts->server = std::move(listening.server);
  parts->ports.listen = listening.port;
  std::vector<grpc::Server*> servers = {parts->server.get()};
  if (!config.admin_listen.empty()) {
    absl::StatusOr<ListeningServer> admin = StartAdminServer(config);
    if (!admin.ok()) {
      parts->server->Shutdown();
      return admin.status();
    }
    parts->admin = std::move(admin->server);
    parts->ports.admin_listen = admin->port;
    servers.push_back(parts->admin.get());
  }
  parts->health = std::make_unique<Health>(std::move(servers));
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() {
  Drain();
  CutOffAll();
  const auto deadline = absl::ToChronoTime(absl::Now() + kShutdownTime);
  // Returns when every reactor is done; the engine must still run meanwhile, to end its calls.
  parts_->server->Shutdown(deadline);
  if (parts_->admin != nullptr) parts_->admin->Shutdown(deadline);
  parts_->housekeeper.reset();
  parts_->admission.reset();
  parts_->engine.reset();
  parts_->delivery.reset();
}

void Server::Serve(ModelToServe model) {
  parts_->metrics.SetModel({.model_type = model.info.model_type,
                            .state_type = model.info.state_type,
                            .record_bytes = model.info.record_bytes,
                            .slots_total = model.capacity.slots,
                            .pages_total = model.capacity.pages,
                            .weight_bytes = model.capacity.weight_bytes,
                            .state_bytes = model.capacity.state_bytes,
                            .kv_bytes = model.capacity.kv_bytes,
                            .workspace_bytes = model.capacity.workspace_bytes,
                            .load_time = model.load_time});
  parts_->StartEngine(std::move(model));
  const absl::Duration period = std::min(
      {parts_->config.stall_timeout / 4, parts_->config.watchdog_timeout / 4, absl::Seconds(1)});
  parts_->housekeeper = std::make_unique<Housekeeper>(period, [this] { parts_->CheckUp(); });
  parts_->lifecycle.MoveTo(Lifecycle::State::kServing);
  parts_->health->SetReady(true);
  if (device_lost()) parts_->health->SetReady(false);  // it said so before, and was overruled
}

void Server::Parts::StartEngine(ModelToServe model) {
  served = {.name = config.model_name,
            .info = std::move(model.info),
            .capacity = model.capacity,
            .tokenizer = std::move(model.tokenizer),
            .limits = LimitsOf(config)};
  delivery = std::make_unique<Delivery>(
      Delivery::Options{.threads = DeliveryThreads(config),
                        .max_request_time = config.max_request_time,
                        .outbox_bytes_max = config.outbox_bytes_max},
      clock, &observer,
      [this](RequestId id, absl::Status why) { engine->Cancel(id, std::move(why)); });
  Engine::Callbacks callbacks;
  callbacks.sink = [this](std::vector<Event> events) { delivery->Publish(std::move(events)); };
  callbacks.stepped = [this](const StepStats& stats) {
    last_step.Set(stats, clock->Now());
    metrics.ObserveStep(stats);
  };
  callbacks.device_lost = [this](const absl::Status& why) {
    Log(LogLevel::kError, "device_lost", {{"error", why.ToString()}});
    lifecycle.MoveTo(Lifecycle::State::kDeviceLost);
    health->SetReady(false);
    wake();
  };
  engine = std::make_unique<Engine>(
      Engine::Options{.slots = served.capacity.slots,
                      .pages = served.capacity.pages,
                      .rows_per_page = served.capacity.rows_per_page,
                      .pages_per_sequence = served.capacity.pages_per_sequence,
                      .max_rows_per_step = served.capacity.max_rows_per_step,
                      .max_waiting = config.max_waiting_requests,
                      .max_waiting_prompt_tokens = config.max_waiting_prompt_tokens},
      std::move(model.executor), clock, std::move(callbacks));
  admission = std::make_unique<Admission>(
      Admission::Options{.intake_threads = config.intake_threads,
                         .max_waiting_requests = config.max_waiting_requests,
                         .max_waiting_prompt_tokens = config.max_waiting_prompt_tokens},
      &served, clock, engine.get(), delivery.get());
  backend = {.model = &served,
             .device = std::move(model.device),
             .delivery = delivery.get(),
             .admission = admission.get(),
             .engine = engine.get(),
             .last_step = &last_step};
  context.backend.store(&backend, std::memory_order_release);
}

// Cuts off clients that take nothing, and looks whether the engine still moves.
void Server::Parts::CheckUp() {
  const absl::Time now = clock->Now();
  const int cut = open_calls.CutStalled(now - config.stall_timeout);
  if (cut > 0) Log(LogLevel::kWarning, "stalled_calls_cut", {{"calls", cut}});
  const bool busy = engine->busy();  // before last_progress, see there
  const bool alive = !Hangs(busy, engine->last_progress(), now, config.watchdog_timeout);
  if (alive != health->alive()) {
    Log(LogLevel::kError, alive ? "engine_moves_again" : "engine_hangs");
    health->SetAlive(alive);
  }
}

void Server::Leave() {
  parts_->lifecycle.MoveTo(Lifecycle::State::kLeaving);
  parts_->metrics.SetDraining();
  parts_->health->SetReady(false);
}

void Server::Drain() {
  Leave();
  parts_->lifecycle.MoveTo(Lifecycle::State::kDraining);
}

void Server::CutOffAll() {
  if (parts_->delivery != nullptr) parts_->delivery->CutOffAll(Cut::kDrain);
}

int Server::open_calls() const { return parts_->open_calls.count(); }

bool Server::device_lost() const {
  return parts_->lifecycle.state() == Lifecycle::State::kDeviceLost;
}

const Server::Ports& Server::ports() const { return parts_->ports; }

StepStats Server::last_step() const { return parts_->last_step.stats(); }

}  // namespace eddy
