#include "nccl_comm.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "../core/copy_program_check.h"

namespace state_handoff {

NcclTransfer::NcclTransfer(uint64_t id, bool sends, CopyProgram program, std::vector<CudaRegionUse> uses,
                           std::vector<std::shared_ptr<CudaRegion>> regions, std::vector<int64_t> peer_bytes)
    : id_(id),
      sends_(sends),
      program_(std::move(program)),
      uses_(std::move(uses)),
      regions_(std::move(regions)),
      peer_bytes_(std::move(peer_bytes)) {}

void NcclTransfer::End(NcclStatus status) {
  if (status != NcclStatus::kInDoubt) uses_.clear();
  status_.store(status, std::memory_order_release);
}

void NcclTransfer::Refuse(ErrorCode code, const std::string& message) {
  error_code_ = code;
  error_message_ = message;
  End(NcclStatus::kFailed);
}

NcclCommLink::NcclCommLink(uint64_t id, std::shared_ptr<const NcclApi> api, std::shared_ptr<CudaDevice> device,
                           NcclUniqueId unique, int rank, NcclCut cut)
    : id_(id), api_(std::move(api)), device_(std::move(device)), unique_(unique), rank_(rank), cut_(cut) {}

NcclCommLink::~NcclCommLink() {
  const CudaDriver& driver = device_->driver();
  if (driver.ContextPush(device_->context()) != kCudaSuccess) return;
  if (comm_ != nullptr) api_->CommAbort(comm_);
  for (const Place& place : places_) {
    if (place.staging != 0) driver.MemFree(place.staging);
    if (place.plan_device != 0) driver.MemFree(place.plan_device);
    if (place.plan_host != nullptr) driver.MemFreeHost(place.plan_host);
    if (place.copied != nullptr) driver.EventDestroy(place.copied);
    if (place.moved != nullptr) driver.EventDestroy(place.moved);
  }
  for (const CudaEvent event : drained_) {
    if (event != nullptr) driver.EventDestroy(event);
  }
  for (const CudaStream stream : {copy_stream_, move_stream_}) {
    if (stream != nullptr) driver.StreamDestroy(stream);
  }
  CudaContext popped;
  driver.ContextPop(&popped);
}

void NcclCommLink::Open() {
  opened_ = true;
  const CudaDriver& driver = device_->driver();
  copy_stream_ = device_->MakeStream();
  move_stream_ = device_->MakeStream();
  for (CudaEvent& event : drained_) Check(driver.EventCreate(&event, kCudaEventDisableTiming), "making a CUDA event");
  for (Place& place : places_) {
    Check(driver.EventCreate(&place.copied, kCudaEventDisableTiming), "making a CUDA event");
    Check(driver.EventCreate(&place.moved, kCudaEventDisableTiming), "making a CUDA event");
    Check(driver.MemAlloc(&place.staging, static_cast<size_t>(cut_.chunk_bytes)),
          "allocating a place of the staging ring");
  }
  NcclConfig config;
  const int result = api_->CommInitRankConfig(&comm_, 2, unique_, rank_, &config);
  if (result != kNcclSuccess && result != kNcclInProgress) {
    throw NativeError(ErrorCode::kPEER_UNREACHABLE, "NCCL makes no communicator: " + api_->Describe(result));
  }
}

void NcclCommLink::Start(std::shared_ptr<NcclTransfer> transfer) {
  transfer_ = std::move(transfer);
  std::vector<int64_t> own;
  for (const auto& region : transfer_->regions_) own.push_back(static_cast<int64_t>(region->bytes()));
  try {
    const bool sends = transfer_->sends_;
    CheckProgram(transfer_->program_, sends ? own : transfer_->peer_bytes_, sends ? transfer_->peer_bytes_ : own, {});
    if (cut_.packed) {
      std::vector<size_t> all(transfer_->program_.rectangles.size());
      std::iota(all.begin(), all.end(), size_t{0});
      transfer_->chunks_.emplace(transfer_->program_, all, cut_.chunk_bytes);
    } else {
      transfer_->messages_.emplace(transfer_->program_, cut_.chunk_bytes);
    }
    next_place_ = 0;
  } catch (const NativeError& error) {
    // The peer waits for messages that will not come.
    Abort(error.code(), error.what());
  }
}

bool NcclCommLink::Step() {
  const CudaDriver& driver = device_->driver();
  try {
    const CudaContextScope current(driver, device_->context());
    if (draining_) {
      for (const CudaEvent event : drained_) {
        const CudaResult result = driver.EventQuery(event);
        if (result == kCudaNotReady) return false;
        Check(result, "waiting for the end of aborted copies");
      }
      draining_ = false;
      if (transfer_ != nullptr) std::exchange(transfer_, nullptr)->End(NcclStatus::kFailed);
      return true;
    }
    if (status() == NcclCommStatus::kFailed) return false;
    if (!opened_) {
      Open();
      return true;
    }
    int state = kNcclSuccess;
    const int asked = api_->CommGetAsyncError(comm_, &state);
    if (asked != kNcclSuccess || (state != kNcclSuccess && state != kNcclInProgress)) {
      const bool ready = status() == NcclCommStatus::kReady;
      Abort(ready ? ErrorCode::kPEER_LOST : ErrorCode::kPEER_UNREACHABLE,
            "NCCL lost the peer: " + api_->Describe(asked != kNcclSuccess ? asked : state));
      return true;
    }
    if (status() == NcclCommStatus::kConnecting) {
      if (state == kNcclInProgress) return false;
      status_.store(NcclCommStatus::kReady, std::memory_order_release);
      return true;
    }
    // What was posted last is not on its stream before this says so.
    return transfer_ != nullptr && state == kNcclSuccess && StepPlaces();
  } catch (const NativeError& error) {
    if (draining_ || status() == NcclCommStatus::kFailed) {
      // Not even the proof of quiet is to be had.
      draining_ = false;
      if (transfer_ != nullptr) {
        transfer_->error_code_ = error.code();
        transfer_->error_message_ = error.what();
        std::exchange(transfer_, nullptr)->End(NcclStatus::kInDoubt);
      }
      return true;
    }
    Abort(error.code(), error.what());
    return true;
  }
}

bool NcclCommLink::NextChunk(MessageChunk& chunk) {
  if (!cut_.packed) return transfer_->messages_->Next(chunk);
  chunk = MessageChunk{};
  if (!transfer_->chunks_->Next(chunk.staged)) return false;
  chunk.bytes = chunk.staged.bytes;
  chunk.messages.push_back(Message{true, 0, 0, 0, 0, chunk.bytes});
  return true;
}

bool NcclCommLink::StepPlaces() {
  const CudaDriver& driver = device_->driver();
  NcclTransfer& transfer = *transfer_;
  bool moved = false;
  for (Place& place : places_) {
    if (place.stage == Stage::kPosting) {
      Finish(place);
      moved = true;
    } else if (place.stage == Stage::kRunning) {
      CudaResult result = driver.EventQuery(place.moved);
      if (result == kCudaSuccess && !transfer.sends_ && place.plan) result = driver.EventQuery(place.copied);
      if (result == kCudaNotReady) continue;
      Check(result, "moving a packed chunk");
      transfer.bytes_done_.fetch_add(place.chunk.bytes, std::memory_order_relaxed);
      place.stage = Stage::kFree;
      place.plan.reset();
      moved = true;
    }
  }
  if (PostFree()) moved = true;
  const bool free =
      std::all_of(places_.begin(), places_.end(), [](const Place& each) { return each.stage == Stage::kFree; });
  if (transfer.exhausted_ && free) {
    std::exchange(transfer_, nullptr)->End(NcclStatus::kDone);
    moved = true;
  }
  return moved;
}

void NcclCommLink::MakePlan(Place& place) {
  const NcclTransfer& transfer = *transfer_;
  const CudaDriver& driver = device_->driver();
  std::vector<PlanRegion> regions;
  for (const auto& region : transfer.regions_) {
    regions.push_back(PlanRegion{region->address(), static_cast<int64_t>(region->bytes())});
  }
  const std::vector<PlanRegion> staging{PlanRegion{place.staging, cut_.chunk_bytes}};
  const CopyProgram& program = transfer.sends_ ? place.chunk.staged.pack : place.chunk.staged.unpack;
  place.plan.emplace(program, transfer.sends_ ? regions : staging, transfer.sends_ ? staging : regions);
  const size_t bytes = place.plan->image_bytes();
  if (bytes > place.plan_bytes) {
    if (place.plan_device != 0) driver.MemFree(std::exchange(place.plan_device, 0));
    if (place.plan_host != nullptr) driver.MemFreeHost(std::exchange(place.plan_host, nullptr));
    place.plan_bytes = 0;
    const size_t rounded = std::bit_ceil(bytes);
    Check(driver.MemHostAlloc(&place.plan_host, rounded, kCudaHostAllocPortable), "allocating pinned memory");
    Check(driver.MemAlloc(&place.plan_device, rounded), "allocating GPU memory for a plan");
    place.plan_bytes = rounded;
  }
  place.plan->WriteImage(static_cast<uint8_t*>(place.plan_host));
}

void NcclCommLink::LaunchPlan(Place& place) {
  const CudaDriver& driver = device_->driver();
  Check(driver.CopyToDeviceAsync(place.plan_device, place.plan_host, place.plan->image_bytes(), copy_stream_),
        "uploading a plan");
  for (const PlanChunk& chunk : place.plan->chunks()) {
    Check(device_->LaunchCopy(place.plan->Launch(place.plan_device, chunk), chunk.tiles, copy_stream_),
          "launching the copy kernel");
  }
  Check(driver.EventRecord(place.copied, copy_stream_), "recording a CUDA event");
}

int NcclCommLink::PostMessage(const Place& place, const Message& message) {
  const bool sends = transfer_->sends_;
  CudaPointer at = place.staging;
  if (!message.staged) {
    at = transfer_->regions_[static_cast<size_t>(sends ? message.source_region : message.target_region)]->address();
  }
  at += static_cast<CudaPointer>(sends ? message.source_offset : message.target_offset);
  void* buffer = reinterpret_cast<void*>(at);
  const auto bytes = static_cast<size_t>(message.bytes);
  if (sends) return api_->Send(buffer, bytes, kNcclBytes, 1 - rank_, comm_, move_stream_);
  return api_->Recv(buffer, bytes, kNcclBytes, 1 - rank_, comm_, move_stream_);
}

bool NcclCommLink::PostFree() {
  NcclTransfer& transfer = *transfer_;
  if (transfer.exhausted_) return false;
  std::array<Place*, kTogether> filled;
  size_t count = 0;
  size_t messages = 0;
  while (count < kTogether && places_[next_place_].stage == Stage::kFree) {
    Place& place = places_[next_place_];
    if (!NextChunk(place.chunk)) {
      transfer.exhausted_ = true;
      break;
    }
    Fill(place);
    next_place_ = (next_place_ + 1) % kPlaces;
    filled[count++] = &place;
    messages += place.chunk.messages.size();
    // Unpacked, there is a limit to what is posted together.
    if (!cut_.packed) break;
  }
  if (count == 0) return transfer.exhausted_;  // there was nothing left
  int failed = kNcclSuccess;
  const auto note = [&failed](int result) {
    if (result != kNcclSuccess && result != kNcclInProgress && failed == kNcclSuccess) failed = result;
  };
  // One launch for both of them: it costs as long as many mebibytes take.
  if (messages > 1) note(api_->GroupStart());
  for (size_t i = 0; i < count; ++i) {
    for (const Message& message : filled[i]->chunk.messages) note(PostMessage(*filled[i], message));
  }
  if (messages > 1) note(api_->GroupEnd());
  if (failed != kNcclSuccess) {
    throw NativeError(ErrorCode::kPEER_LOST, "NCCL moves nothing: " + api_->Describe(failed));
  }
  return true;
}

void NcclCommLink::Fill(Place& place) {
  place.plan.reset();
  place.stage = Stage::kPosting;
  if (place.chunk.staged.bytes == 0) return;
  MakePlan(place);
  if (!transfer_->sends_) return;
  LaunchPlan(place);
  Check(device_->driver().StreamWaitEvent(move_stream_, place.copied, 0), "ordering a send behind its gathering");
}

void NcclCommLink::Finish(Place& place) {
  const CudaDriver& driver = device_->driver();
  Check(driver.EventRecord(place.moved, move_stream_), "recording a CUDA event");
  if (!transfer_->sends_ && place.plan) {
    Check(driver.StreamWaitEvent(copy_stream_, place.moved, 0), "ordering the scattering behind what was received");
    LaunchPlan(place);
  }
  place.stage = Stage::kRunning;
}

void NcclCommLink::Abort(ErrorCode code, const std::string& message) {
  if (status() == NcclCommStatus::kFailed) return;
  error_code_ = code;
  error_message_ = message;
  status_.store(NcclCommStatus::kFailed, std::memory_order_release);
  if (transfer_ != nullptr) {
    transfer_->error_code_ = code;
    transfer_->error_message_ = message;
  }
  if (!opened_) {
    if (transfer_ != nullptr) std::exchange(transfer_, nullptr)->End(NcclStatus::kFailed);
    return;
  }
  const CudaDriver& driver = device_->driver();
  draining_ = true;
  try {
    const CudaContextScope current(driver, device_->context());
    // Makes kernels that wait for the peer return; whatever is behind them on the streams runs then, into staging or
    // out of it, and the events behind all of it say when.
    if (comm_ != nullptr) api_->CommAbort(std::exchange(comm_, nullptr));
    const CudaStream streams[] = {move_stream_, copy_stream_};
    for (size_t i = 0; i < 2; ++i) {
      if (streams[i] == nullptr || drained_[i] == nullptr) {
        draining_ = false;
        break;
      }
      Check(driver.EventRecord(drained_[i], streams[i]), "recording a CUDA event");
    }
  } catch (const NativeError& error) {
    draining_ = false;
    if (transfer_ != nullptr) std::exchange(transfer_, nullptr)->End(NcclStatus::kInDoubt);
    return;
  }
  if (!draining_ && transfer_ != nullptr) std::exchange(transfer_, nullptr)->End(NcclStatus::kFailed);
}

}  // namespace state_handoff
