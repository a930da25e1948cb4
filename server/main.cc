// eddy-server: builds everything in order, waits for a signal, takes it down in reverse.
//
// Exit status: 0 after a drain, or a signal while the model is being loaded; 1 if the device was
// lost or hangs; 2 if it could not start; 128 + n if signal n came while it drained.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "base/version.h"
#include "engine/load.h"
#include "engine/open_device.h"
#include "server/config.h"
#include "server/load_to_serve.h"
#include "server/port_file.h"
#include "server/server.h"
#include "server/signals.h"

namespace eddy {
namespace {

constexpr int kDeviceLostStatus = 1;
constexpr int kStartFailedStatus = 2;
// How long calls may take to hear that the device was lost.
constexpr absl::Duration kGoodbyeTime = absl::Seconds(1);
// How long the server's parts may take to end beside a step of the device: traces take the longest.
constexpr absl::Duration kEndTime = absl::Seconds(10);

int FailToStart(const absl::Status& why) {
  Log(LogLevel::kError, "start_failed", {{"error", std::string(why.message())}});
  return kStartFailedStatus;
}

absl::StatusOr<OpenedDevice> OpenDevice(const ServerConfig& config) {
  DeviceOptions options = {.ordinal = config.device_index,
                           .threads = config.cpu_threads,
                           .pending_updates = config.write_back_ring,
                           .matrices = DType::kF32,
                           .states = config.state_type == "bfloat16" ? DType::kBF16 : DType::kF32};
  if (config.weight_type == "bfloat16") options.matrices = DType::kBF16;
  if (config.weight_type == "stored") {
    EDDY_ASSIGN_OR_RETURN(options.matrices, StoredWeightType(config.model_dir));
  }
  EDDY_ASSIGN_OR_RETURN(OpenedDevice opened, OpenDevice(config.device, options));
  if (config.weight_type == "bfloat16" && opened.device->backend() == "cpu") {
    return absl::UnavailableError(
        "--weight_type=bfloat16: the CPU holds float32; it needs a GPU" +
        (opened.no_gpu.empty() ? std::string() : ", and there is none: " + opened.no_gpu));
  }
  if (config.check_layers) CheckLayers(&opened);
  if (!opened.no_gpu.empty()) {
    Log(LogLevel::kWarning, "no_gpu", {{"device", "cpu"}, {"reason", opened.no_gpu}});
  }
  Log(LogLevel::kInfo, "device_opened", {{"device", opened.device->description()}});
  return opened;
}

absl::Status TellPorts(const ServerConfig& config, const Server::Ports& ports) {
  Log(LogLevel::kInfo, "serving",
      {{"model", config.model_name},
       {"listen_port", ports.listen},
       {"admin_port", ports.admin_listen},
       {"metrics_port", ports.metrics_listen}});
  if (config.port_file.empty()) return absl::OkStatus();
  return WritePortFile(config.port_file, {{"listen", ports.listen},
                                          {"admin_listen", ports.admin_listen},
                                          {"metrics_listen", ports.metrics_listen}});
}

// Waits until no call is open or `deadline`, for `done` to say so. A second signal ends the program
// at once.
template <typename Done>
void WaitUntil(Signals* signals, absl::Time deadline, Done done) {
  while (!done()) {
    const Signals::News news = signals->Wait(deadline);
    if (news.what == Signals::News::What::kTimeout) return;
    if (news.what != Signals::News::What::kSignal) continue;
    Log(LogLevel::kWarning, "stopped_at_once", {{"signal", news.number}});
    std::_Exit(128 + news.number);
  }
}

// After a signal: health turns, calls are still taken for a while, then those that were taken end.
void Drain(const ServerConfig& config, Signals* signals, Server* server) {
  Log(LogLevel::kInfo, "draining", {{"open_calls", server->open_calls()}});
  server->Leave();
  WaitUntil(signals, absl::Now() + config.drain_delay, [&] { return server->device_lost(); });
  server->Drain();
  WaitUntil(signals, absl::Now() + config.drain_timeout,
            [&] { return server->open_calls() == 0 || server->device_lost(); });
  if (const int left = server->open_calls(); left > 0) {
    Log(LogLevel::kWarning, "drain_timeout", {{"open_calls", left}});
  }
}

// Hears signals on a thread of its own, while it lives: for work of this thread that may take long
// or for ever. Nobody else waits for signals meanwhile.
class Watch {
 public:
  // `watch` returns when it is told that what it watches is done, or ends the program.
  Watch(Signals* signals, std::function<void(const std::function<bool()>& done)> watch)
      : signals_(signals), thread_([this, watch = std::move(watch)] {
          NameThisThread("watch");
          watch([this] { return done_.load(); });
        }) {}
  ~Watch() {
    done_ = true;
    signals_->Wake();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Signals* const signals_;
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: starts when all else is ready
};

// A signal ends the program at once, since nothing is open yet.
absl::StatusOr<ModelToServe> Load(const ServerConfig& config, const OpenedDevice& device,
                                  Signals* signals) {
  const Watch watch(signals, [signals](const auto& done) {
    while (!done()) {
      const Signals::News news = signals->Wait(absl::InfiniteFuture());
      if (news.what != Signals::News::What::kSignal) continue;
      Log(LogLevel::kInfo, "stopped", {{"signal", news.number}, {"while", "loading"}});
      std::_Exit(EXIT_SUCCESS);
    }
  });
  return LoadToServe(config, device);
}

// Takes the server down. A device that hangs keeps the engine's thread for ever, and only the end
// of the process helps; a second signal does not wait for that.
void End(const ServerConfig& config, Signals* signals, std::unique_ptr<Server> server) {
  const absl::Time deadline = absl::Now() + config.watchdog_timeout + kEndTime;
  const Watch watch(signals, [=](const auto& done) {
    WaitUntil(signals, deadline, done);
    if (done()) return;
    Log(LogLevel::kError, "stuck", {{"error", "a step does not come back from the device"}});
    std::_Exit(kDeviceLostStatus);
  });
  server.reset();
}

int Main(int argc, char** argv) {
  Signals signals;
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(argc, argv);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kStartFailedStatus;
  }
  ConfigureLog(config->log_level, config->log_format);
  Log(LogLevel::kInfo, "starting",
      {{"version", Version()},
       {"commit", Commit()},
       {"settings", absl::StrJoin(config->changed, " ")}});
  absl::StatusOr<OpenedDevice> device = OpenDevice(*config);
  if (!device.ok()) return FailToStart(device.status());
  // The ports come first: a probe hears that the model is being loaded, and a port in use is told
  // before minutes of loading.
  const RealClock clock;
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*config, &clock, [&signals] { signals.Wake(); });
  if (!server.ok()) return FailToStart(server.status());
  absl::StatusOr<ModelToServe> model = Load(*config, *device, &signals);
  if (!model.ok()) return FailToStart(model.status());
  (*server)->Serve(*std::move(model));
  if (absl::Status told = TellPorts(*config, (*server)->ports()); !told.ok()) {
    return FailToStart(told);
  }
  Signals::News news;
  while (!(*server)->device_lost() && news.what != Signals::News::What::kSignal) {
    news = signals.Wait(absl::InfiniteFuture());
  }
  if (!(*server)->device_lost()) Drain(*config, &signals, server->get());
  const bool lost = (*server)->device_lost();
  if (lost) {
    WaitUntil(&signals, absl::Now() + kGoodbyeTime, [&] { return (*server)->open_calls() == 0; });
  }
  End(*config, &signals, *std::move(server));
  Log(LogLevel::kInfo, "stopped");
  return lost ? kDeviceLostStatus : EXIT_SUCCESS;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
