// A device that hands everything on, for tests and benches to override what they watch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/device.h"

namespace eddy {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> real) : real_(std::move(real)) {}
  std::string backend() const override { return real_->backend(); }
  std::string description() const override { return real_->description(); }
  std::string choices() const override { return real_->choices(); }
  DeviceTraits traits() const override { return real_->traits(); }
  Stream stream() const override { return real_->stream(); }
  int64_t free_bytes() const override { return real_->free_bytes(); }
  Buffer Allocate(int64_t bytes) override { return real_->Allocate(bytes); }
  Buffer AllocateHost(int64_t bytes) override { return real_->AllocateHost(bytes); }
  void Upload(void* to, std::span<const std::byte> from) override { real_->Upload(to, from); }
  void Download(std::span<std::byte> to, const void* from) override { real_->Download(to, from); }
  void Copy(void* to, const void* from, int64_t bytes) override { real_->Copy(to, from, bytes); }
  void Amend(const LayerType& type, const LayerSpec& spec, LayerNeeds* needs) const override {
    real_->Amend(type, spec, needs);
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    return real_->Make(type, spec, parts);
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return real_->MakeEnds(spec, parts, max_rows);
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return real_->Record(work);
  }
  std::optional<std::string> Finish() override { return real_->Finish(); }

 private:
  const std::unique_ptr<Device> real_;
};

}  // namespace eddy
