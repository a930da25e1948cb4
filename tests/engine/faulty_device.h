// A device that breaks in the middle of a step.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/engine/forwarding_device.h"

namespace eddy {

// From the `healthy`th Forward of its layers on. On a GPU that layer is given rows at an address
// that is nobody's, so that a kernel faults as on a broken card, and CUDA refuses everything that
// the process asks for afterwards; on the CPU Finish says that it broke. Or, on both, if it
// `hangs`, that Forward never comes back, nor, if `healthy` is negative, does Make while the model
// is being loaded.
class FaultyDevice : public ForwardingDevice {
 public:
  FaultyDevice(std::unique_ptr<Device> real, int healthy, bool hangs = false)
      : ForwardingDevice(std::move(real)), healthy_(healthy), hangs_(hangs) {}

  DeviceTraits traits() const override {
    DeviceTraits traits = ForwardingDevice::traits();
    traits.records_steps = false;  // a recorded step calls no layer
    return traits;
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    while (hangs_ && healthy_ < 0) pause();
    return std::make_unique<FaultyLayer>(this, ForwardingDevice::Make(type, spec, parts));
  }
  std::optional<std::string> Finish() override {
    std::optional<std::string> error = ForwardingDevice::Finish();
    if (!hangs_ && forwards_ > healthy_ && backend() == "cpu") error = "the test broke it";
    return error;
  }

 private:
  class FaultyLayer : public Layer {
   public:
    FaultyLayer(FaultyDevice* device, std::unique_ptr<Layer> real)
        : device_(device), real_(std::move(real)) {}
    void Forward(const Step& step, TensorView x) override {
      const bool breaks = ++device_->forwards_ > device_->healthy_;
      while (breaks && device_->hangs_) pause();
      if (breaks && device_->backend() == "cpu") return;
      if (breaks) x.data = reinterpret_cast<void*>(uintptr_t{1} << 12);
      real_->Forward(step, x);
    }
    void Flush(const Step& step) override { real_->Flush(step); }

   private:
    FaultyDevice* const device_;
    const std::unique_ptr<Layer> real_;
  };

  const int healthy_;
  const bool hangs_;
  int forwards_ = 0;
};

}  // namespace eddy
