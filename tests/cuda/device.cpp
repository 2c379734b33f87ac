// Tells torch that there is one CUDA device, which has nothing to wait for. device.py loads this before torch.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

constexpr auto kind = c10::DeviceType::CUDA;

// What the autograd engine asks before it starts a thread for a device and switches streams.
struct OneDevice final : c10::impl::NoOpDeviceGuardImpl<kind> {
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kind, 0)); }
  c10::Device exchangeDevice(c10::Device) const override { return c10::Device(kind, 0); }
  c10::Device getDevice() const override { return c10::Device(kind, 0); }
  c10::Stream getStream(c10::Device) const noexcept override { return only(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

static OneDevice device;
static const bool registered = [] {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kind)].store(&device);
  return true;
}();

// What the rest of torch asks about CUDA.
struct PresentHooks : at::CUDAHooksInterface {
  explicit PresentHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PresentHooks);
}

// DistributedDataParallel creates a timer for its device.
struct NoTimer final : c10d::Timer {
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, NoTimer);
}
