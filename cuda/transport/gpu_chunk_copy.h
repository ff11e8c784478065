// Copies between two memories of one GPU for a transport that moves state in chunks: a program is lowered, uploaded and
// launched on a stream of low priority, and asked now and then whether it is over.
//
// One thread uses it. Nothing here waits but the end, and a launch that fails. A GPU that fails is lost: its copies are
// never over.
#pragma once

#include <memory>
#include <vector>

#include "../core/copy_plan.h"
#include "../core/cuda_device.h"

namespace state_handoff {

class GpuChunkCopies {
 public:
  // One copy: memory for its plan and the event by which it ends.
  class Copy {
   public:
    explicit Copy(const CudaDriver& driver) : driver_(driver) {}
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    // Throws NATIVE_SYSTEM when the GPU was lost.
    bool IsOver();
    bool lost() const { return result_ != kCudaSuccess && result_ != kCudaNotReady; }

   private:
    friend class GpuChunkCopies;
    const CudaDriver& driver_;
    void* host_ = nullptr;
    CudaPointer device_ = 0;
    size_t bytes_ = 0;
    CudaEvent event_ = nullptr;
    bool started_ = false;
    CudaResult result_ = kCudaSuccess;  // what the event said last
  };

  // Loads the kernels; see CudaDevice::LoadKernels. Throws TRANSPORT_UNAVAILABLE, NATIVE_SYSTEM. Any thread.
  GpuChunkCopies(std::shared_ptr<CudaDevice> device, const std::string& kernels);
  // Waits for what is under way.
  ~GpuChunkCopies();
  GpuChunkCopies(const GpuChunkCopies&) = delete;
  GpuChunkCopies& operator=(const GpuChunkCopies&) = delete;

  const std::shared_ptr<CudaDevice>& device() const { return device_; }

  // `program` was checked against regions of these sizes. Throws NATIVE_SYSTEM, NATIVE_LIMIT.
  std::shared_ptr<Copy> Start(const CopyProgram& program, const std::vector<PlanRegion>& sources,
                              const std::vector<PlanRegion>& targets);

 private:
  // One that nobody waits for and that is over, with room for so many bytes.
  std::shared_ptr<Copy> TakeFree(size_t bytes);

  const std::shared_ptr<CudaDevice> device_;
  CudaStream stream_ = nullptr;
  std::vector<std::shared_ptr<Copy>> all_;
};

}  // namespace state_handoff
