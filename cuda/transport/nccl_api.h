// NCCL's C interface as far as the SDK uses it, declared here so that building needs none of its files.
//
// As of NCCL 2.18 and later: communicators that are made without blocking, and can be aborted.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "../core/cuda_driver.h"

namespace state_handoff {

using NcclComm = struct NcclCommObject*;

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclBytes = 0;  // ncclInt8
inline constexpr int kNcclVersionLeast = 21800;

struct NcclUniqueId {
  char bytes[128];
};

// ncclConfig_t of NCCL 2.18; a newer library takes the older sizes.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kNcclVersionLeast;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int ctas_least = INT_MIN;
  int ctas_most = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

#define STATE_HANDOFF_NCCL_FUNCTIONS(X)                                                              \
  X(GetVersion, (int* version))                                                                      \
  X(GetUniqueId, (NcclUniqueId * id))                                                                \
  X(CommInitRankConfig, (NcclComm * comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config)) \
  X(CommGetAsyncError, (NcclComm comm, int* result))                                                 \
  X(CommAbort, (NcclComm comm))                                                                      \
  X(GroupStart, ())                                                                                  \
  X(GroupEnd, ())                                                                                    \
  X(Send, (const void* buffer, size_t count, int type, int peer, NcclComm comm, CudaStream stream))  \
  X(Recv, (void* buffer, size_t count, int type, int peer, NcclComm comm, CudaStream stream))

// The functions of the one NCCL of this process. Loaded once and never let go of.
struct NcclApi {
#define STATE_HANDOFF_NCCL_MEMBER(name, arguments) int(*name) arguments = nullptr;
  STATE_HANDOFF_NCCL_FUNCTIONS(STATE_HANDOFF_NCCL_MEMBER)
#undef STATE_HANDOFF_NCCL_MEMBER
  const char* (*GetErrorString)(int result) = nullptr;
  std::string path;
  int version = 0;

  // The process's NCCL: the first of `candidates` that loads, unless one was loaded before. Throws
  // TRANSPORT_UNAVAILABLE, also for a version that is too old. Any thread.
  static std::shared_ptr<const NcclApi> Load(const std::vector<std::string>& candidates);

  std::string Describe(int result) const;
};

}  // namespace state_handoff
