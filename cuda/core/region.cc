#include "region.h"

#include <utility>

#include "error_codes.h"

namespace state_handoff {

std::atomic<int64_t> HostRegion::live_{0};

std::shared_ptr<HostRegion> HostRegion::Allocate(size_t bytes, const std::string& name) {
  return std::shared_ptr<HostRegion>(new HostRegion(SealedMemory::Create(bytes, name)));
}

HostRegion::HostRegion(std::shared_ptr<SealedMemory> memory) : bytes_(memory->bytes()), memory_(std::move(memory)) {
  live_.fetch_add(1, std::memory_order_relaxed);
}

HostRegion::~HostRegion() { live_.fetch_sub(1, std::memory_order_relaxed); }

std::shared_ptr<SealedMemory> HostRegion::memory() const {
  const std::lock_guard lock(mutex_);
  return memory_;
}

std::shared_ptr<SealedMemory> HostRegion::BeginUse() {
  const std::lock_guard lock(mutex_);
  if (memory_ != nullptr) ++users_;
  return memory_;
}

void HostRegion::EndUse() {
  const std::lock_guard lock(mutex_);
  --users_;
}

bool HostRegion::TryClose() {
  std::shared_ptr<SealedMemory> last;  // unmapped outside the lock
  const std::lock_guard lock(mutex_);
  if (users_ > 0) return false;
  last.swap(memory_);
  return true;
}

RegionUse::RegionUse(std::shared_ptr<HostRegion> region, const std::string& field)
    : region_(std::move(region)), memory_(region_->BeginUse()) {
  if (memory_ == nullptr) throw NativeError(ErrorCode::kCLOSED, field + ": expected an open region, got a closed one");
}

RegionUse::~RegionUse() {
  if (region_ == nullptr) return;  // moved from
  memory_.reset();
  region_->EndUse();
}

}  // namespace state_handoff
