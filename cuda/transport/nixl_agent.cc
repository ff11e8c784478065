#include "nixl_agent.h"

#include <atomic>
#include <cstdlib>

#include "../core/error_codes.h"

namespace state_handoff {

namespace {

std::atomic<int64_t> live_agents{0};
std::atomic<int64_t> posted_reads{0};

// The progress thread waits for its sockets; this is how long, when nothing comes.
constexpr uint64_t kProgressDelayUs = 100'000;

// How many pieces of at most 512 KiB UCX copies from a process of this machine before it looks at its sockets again; by
// itself it looks after each, which costs a system call for every slice.
constexpr const char* kEngineConfig = "CMA_TX_QUOTA=64";
// With GPU memory: to read through CUDA IPC also where UCX finds no NVLink, as between processes that share a GPU; by
// itself it sends such bytes through sockets. And nothing by process_vm_readv: what is queued there when a peer dies
// under reads through CUDA IPC ends this process (`arbiter.c:36 Assertion ... ucs_arbiter_group_is_empty`, UCX 1.23).
constexpr const char* kGpuEngineConfig = "CUDA_IPC_ENABLE_GET_ZCOPY=on,TLS=^cma";

std::string KindText(const NixlRange& range) {
  return range.memory == kNixlVram ? "of GPU " + std::to_string(range.device) : "of host memory";
}

}  // namespace

NixlList::~NixlList() { agent_.api().release_xfer_dlist_handle(agent_.object(), prepared_); }

NixlRead::~NixlRead() {
  // In this order: destroying what was not released leaks it.
  agent_.api().release_xfer_req(agent_.object(), request_);
  agent_.api().destroy_xfer_req(request_);
}

NixlStatus NixlRead::Post() {
  const int status = agent_.api().post_xfer_req(agent_.object(), request_, nullptr);
  posted_reads.fetch_add(1, std::memory_order_relaxed);
  return static_cast<NixlStatus>(status);
}

NixlStatus NixlRead::Poll() { return static_cast<NixlStatus>(agent_.api().get_xfer_status(agent_.object(), request_)); }

NixlAgent::NixlAgent(std::shared_ptr<const NixlApi> api, const std::string& name, bool progress, bool gpu)
    : api_(std::move(api)) {
  const NixlAgentConfig config{progress, false, 0, kNixlSyncStrict, 1, kProgressDelayUs, kProgressDelayUs, false};
  live_agents.fetch_add(1, std::memory_order_relaxed);
  int status = api_->create_configured_agent(name.c_str(), &config, &agent_);
  NixlParams* params = nullptr;
  if (status == kNixlSuccess) status = api_->create_params(&params);
  const char* engine_config = gpu ? kGpuEngineConfig : kEngineConfig;
  if (status == kNixlSuccess) status = api_->params_add(params, "engine_config", engine_config);
  if (status == kNixlSuccess) status = api_->create_backend(agent_, "UCX", params, &backend_);
  if (params != nullptr) api_->destroy_params(params);
  if (status == kNixlSuccess) status = api_->create_opt_args(&options_);
  if (status == kNixlSuccess) status = api_->opt_args_add_backend(options_, backend_);
  if (status == kNixlSuccess) status = api_->create_notif_map(&inbox_);
  if (status == kNixlSuccess) return;
  Destroy();
  const char* layers = std::getenv("UCX_TLS");
  throw NativeError(
      ErrorCode::kTRANSPORT_UNAVAILABLE,
      "NIXL at " + api_->path + " makes no UCX backend: " + NixlStatusText(status) +
          (layers == nullptr ? "; set NIXL_LOG_LEVEL=INFO and UCX_LOG_LEVEL=info to see why"
                             : "; UCX_TLS is " + std::string(layers) + " and must contain tcp, or be left unset"));
}

NixlAgent::~NixlAgent() { Destroy(); }

void NixlAgent::Destroy() {
  if (inbox_ != nullptr) api_->destroy_notif_map(inbox_);
  if (options_ != nullptr) api_->destroy_opt_args(options_);
  if (agent_ != nullptr) api_->destroy_agent(agent_);
  if (backend_ != nullptr) api_->destroy_backend(backend_);
  live_agents.fetch_sub(1, std::memory_order_relaxed);
}

int64_t NixlAgent::posted() { return posted_reads.load(std::memory_order_relaxed); }

int64_t NixlAgent::live() { return live_agents.load(std::memory_order_relaxed); }

void NixlAgent::Register(const NixlRange& range) {
  NixlRegistrations* list = nullptr;
  int status = api_->create_reg_dlist(range.memory, &list);
  if (status == kNixlSuccess) {
    status = api_->reg_dlist_add_desc(list, range.address, range.bytes, range.device, nullptr, 0);
    if (status == kNixlSuccess) status = api_->register_mem(agent_, list, options_);
    api_->destroy_reg_dlist(list);
  }
  if (status == kNixlSuccess) return;
  throw NativeError(range.memory == kNixlVram ? ErrorCode::kTRANSPORT_UNAVAILABLE : ErrorCode::kNATIVE_SYSTEM,
                    "NIXL registers no region of " + std::to_string(range.bytes) + " bytes " + KindText(range) + ": " +
                        NixlStatusText(status) +
                        (range.memory == kNixlVram ? "; its UCX may lack CUDA, see UCX_TLS" : "; see ulimit -l"));
}

std::string NixlAgent::Metadata() const {
  void* data = nullptr;
  size_t bytes = 0;
  const int status = api_->get_local_md(agent_, &data, &bytes);
  if (status != kNixlSuccess) {
    throw NativeError(ErrorCode::kINVARIANT, "NIXL gives no metadata: " + NixlStatusText(status));
  }
  std::string metadata(static_cast<const char*>(data), bytes);
  std::free(data);
  return metadata;
}

std::string NixlAgent::LoadPeer(const std::string& metadata) {
  char* name = nullptr;
  const int status = api_->load_remote_md(agent_, metadata.data(), metadata.size(), &name);
  if (status != kNixlSuccess || name == nullptr) {
    // One status for all of it.
    throw NativeError(ErrorCode::kPEER_UNREACHABLE,
                      "NIXL finds no way to the peer: " + NixlStatusText(status) +
                          "; it has ended, has another version of NIXL, or no network in common with this process "
                          "(UCX_TLS, UCX_NET_DEVICES)");
  }
  std::string loaded(name);
  std::free(name);
  return loaded;
}

std::unique_ptr<NixlList> NixlAgent::Prepare(const std::string& owner, const std::vector<NixlRange>& descriptors) {
  NixlDescriptors* list = nullptr;
  int status = api_->create_xfer_dlist(descriptors.empty() ? kNixlDram : descriptors[0].memory, &list);
  NixlPrepared* prepared = nullptr;
  if (status == kNixlSuccess) {
    for (const NixlRange& each : descriptors) {
      api_->xfer_dlist_add_desc(list, each.address, each.bytes, each.device);
    }
    status = api_->prep_xfer_dlist(agent_, owner.c_str(), list, &prepared, options_);
    api_->destroy_xfer_dlist(list);
  }
  if (status == kNixlSuccess) return std::make_unique<NixlList>(*this, prepared);
  throw NativeError(owner.empty() ? ErrorCode::kINVARIANT : ErrorCode::kPEER_REFUSED,
                    std::string(owner.empty() ? "this side's" : "the peer's") +
                        " memory is not what was registered with NIXL: " + NixlStatusText(status));
}

std::unique_ptr<NixlRead> NixlAgent::MakeRead(const NixlList& local, const std::vector<int>& local_indices,
                                              const NixlList& remote, const std::vector<int>& remote_indices) {
  NixlRequest* request = nullptr;
  const int status =
      api_->make_xfer_req(agent_, kNixlRead, local.get(), local_indices.data(), local_indices.size(), remote.get(),
                          remote_indices.data(), remote_indices.size(), &request, options_);
  if (status == kNixlSuccess) return std::make_unique<NixlRead>(*this, request);
  throw NativeError(ErrorCode::kPEER_LOST, "NIXL makes no read of the peer's memory: " + NixlStatusText(status));
}

bool NixlAgent::Notify(const std::string& peer, const std::string& text) {
  return api_->gen_notif(agent_, peer.c_str(), text.data(), text.size(), options_) == kNixlSuccess;
}

std::vector<NixlMessage> NixlAgent::TakeMessages() {
  std::vector<NixlMessage> messages;
  size_t senders = 0;
  if (api_->get_notifs(agent_, inbox_, nullptr) != kNixlSuccess) return messages;
  if (api_->notif_map_size(inbox_, &senders) != kNixlSuccess || senders == 0) return messages;
  for (size_t i = 0; i < senders; ++i) {
    const char* sender = nullptr;
    size_t count = 0;
    if (api_->notif_map_get_agent_at(inbox_, i, &sender) != kNixlSuccess || sender == nullptr) continue;
    if (api_->notif_map_get_notifs_size(inbox_, sender, &count) != kNixlSuccess) continue;
    for (size_t k = 0; k < count; ++k) {
      const void* data = nullptr;
      size_t bytes = 0;
      if (api_->notif_map_get_notif(inbox_, sender, k, &data, &bytes) != kNixlSuccess) continue;
      messages.push_back(NixlMessage{sender, std::string(static_cast<const char*>(data), bytes)});
    }
  }
  api_->notif_map_clear(inbox_);
  return messages;
}

}  // namespace state_handoff
