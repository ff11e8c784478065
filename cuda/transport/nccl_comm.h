// A pairwise communicator, and the places of a staging ring through which one transfer at a time passes over it:
// gathered by a kernel into a place, sent as one message, received into a place, scattered by a kernel. Or, unpacked,
// as the messages that the reference's backend has.
//
// Both ends cut a transfer alike (PackedChunks, MessageChunks) and post in the same order; who may post is agreed
// beforehand, by other means. An abort ends what is posted, here and with it over there; its stream's last event is the
// proof of quiet. On one thread, all of it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "../core/copy_plan.h"
#include "../core/cuda_region.h"
#include "../core/error_codes.h"
#include "../core/message_chunks.h"
#include "../core/packed_copy.h"
#include "nccl_api.h"

namespace state_handoff {

enum class NcclStatus : uint8_t { kActive = 0, kDone = 1, kFailed = 2, kInDoubt = 3 };
enum class NcclCommStatus : uint8_t { kConnecting = 0, kReady = 1, kFailed = 2 };

// One end of one transfer. The owner reads status and outcome.
class NcclTransfer {
 public:
  NcclTransfer(uint64_t id, bool sends, CopyProgram program, std::vector<CudaRegionUse> uses,
               std::vector<std::shared_ptr<CudaRegion>> regions, std::vector<int64_t> peer_bytes);

  uint64_t id() const { return id_; }
  NcclStatus status() const { return status_.load(std::memory_order_acquire); }
  int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  // Once it has failed.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }

  // The transport's thread: ends it before it began.
  void Refuse(ErrorCode code, const std::string& message);

 private:
  friend class NcclCommLink;

  void End(NcclStatus status);

  const uint64_t id_;
  const bool sends_;
  const CopyProgram program_;
  std::vector<CudaRegionUse> uses_;
  const std::vector<std::shared_ptr<CudaRegion>> regions_;
  const std::vector<int64_t> peer_bytes_;
  // One of them once it has started.
  std::optional<PackedChunks> chunks_;
  std::optional<MessageChunks> messages_;
  bool exhausted_ = false;
  std::atomic<int64_t> bytes_done_{0};
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<NcclStatus> status_{NcclStatus::kActive};
};

// How both ends of a pair cut.
struct NcclCut {
  int64_t chunk_bytes;
  bool packed;
};

class NcclCommLink {
 public:
  NcclCommLink(uint64_t id, std::shared_ptr<const NcclApi> api, std::shared_ptr<CudaDevice> device, NcclUniqueId unique,
               int rank, NcclCut cut);
  // The transport's thread, after everything is over.
  ~NcclCommLink();
  NcclCommLink(const NcclCommLink&) = delete;
  NcclCommLink& operator=(const NcclCommLink&) = delete;

  uint64_t id() const { return id_; }
  // Any thread, these three; the last two once it is kFailed.
  NcclCommStatus status() const { return status_.load(std::memory_order_acquire); }
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }

  bool busy() const { return transfer_ != nullptr; }
  // Begins a transfer; one at a time.
  void Start(std::shared_ptr<NcclTransfer> transfer);
  // Makes what progress there is without waiting; true when anything moved.
  bool Step();
  // Ends the communicator and what is under way; quiet once the streams are. The first reason counts.
  void Abort(ErrorCode code, const std::string& message);
  // Nothing of it touches memory any more and it will not be used.
  bool over() const { return status() == NcclCommStatus::kFailed && transfer_ == nullptr && !draining_; }

 private:
  // Three times two are under way: one is gathered or scattered and one posted while one moves.
  static constexpr size_t kPlaces = 6;
  static constexpr size_t kTogether = 2;
  enum class Stage : uint8_t { kFree, kPosting, kRunning };

  struct Place {
    CudaPointer staging = 0;
    void* plan_host = nullptr;
    CudaPointer plan_device = 0;
    size_t plan_bytes = 0;
    CudaEvent copied = nullptr;  // packed, or (at the target) scattered
    CudaEvent moved = nullptr;   // sent, or received
    Stage stage = Stage::kFree;
    MessageChunk chunk;
    std::optional<CopyPlan> plan;  // none where nothing is staged
  };

  void Open();
  bool NextChunk(MessageChunk& chunk);
  void MakePlan(Place& place);
  void LaunchPlan(Place& place);
  // Gathers into places that are free, and posts their messages together; true when that was something. What is posted
  // together is over together.
  bool PostFree();
  void Fill(Place& place);
  int PostMessage(const Place& place, const Message& message);
  void Finish(Place& place);
  bool StepPlaces();
  void Check(CudaResult result, const char* what) const { device_->driver().Check(result, what); }

  const uint64_t id_;
  const std::shared_ptr<const NcclApi> api_;
  const std::shared_ptr<CudaDevice> device_;
  const NcclUniqueId unique_;
  const int rank_;
  const NcclCut cut_;
  bool opened_ = false;
  bool draining_ = false;
  NcclComm comm_ = nullptr;
  CudaStream copy_stream_ = nullptr;
  CudaStream move_stream_ = nullptr;
  CudaEvent drained_[2] = {nullptr, nullptr};
  std::array<Place, kPlaces> places_;
  size_t next_place_ = 0;
  std::shared_ptr<NcclTransfer> transfer_;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<NcclCommStatus> status_{NcclCommStatus::kConnecting};
};

}  // namespace state_handoff
