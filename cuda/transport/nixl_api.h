// NIXL's C interface, declared here so that building needs none of its files: types, codes, and one table of functions.
//
// As of NIXL 1.5 (libnixl_capi.so of the nixl-cu12 and nixl-cu13 wheels). All objects are opaque and copy what they are
// given; what comes back through `char**` and `void**` belongs to the caller and is freed with free().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace state_handoff {

struct NixlAgentObject;
struct NixlParams;
struct NixlBackend;
struct NixlOptArgs;
struct NixlRegistrations;  // a list of memory to register
struct NixlDescriptors;    // a list of memory to transfer
struct NixlPrepared;       // such a list, resolved against registrations
struct NixlRequest;
struct NixlNotifications;

enum NixlStatus : int {
  kNixlSuccess = 0,
  kNixlInProgress = 1,
  kNixlInvalidParameter = -1,
  kNixlBackendError = -2,
  kNixlInvalidState = -3,
  kNixlNotFound = -6,
};

enum NixlMemory : int { kNixlDram = 0, kNixlVram = 1 };
enum NixlOperation : int { kNixlRead = 0 };
enum NixlSync : int { kNixlSyncStrict = 1 };

struct NixlAgentConfig {
  bool progress_thread;
  bool listen_thread;
  int listen_port;
  NixlSync sync;
  unsigned workers;  // not read by the library
  uint64_t progress_delay_us;
  uint64_t listen_delay_us;
  bool telemetry;
};
static_assert(offsetof(NixlAgentConfig, listen_port) == 4 && offsetof(NixlAgentConfig, sync) == 8 &&
              offsetof(NixlAgentConfig, progress_delay_us) == 16 && offsetof(NixlAgentConfig, telemetry) == 32);

#define STATE_HANDOFF_NIXL_FUNCTIONS(X)                                                                                \
  X(create_configured_agent, (const char* name, const NixlAgentConfig* config, NixlAgentObject** agent))               \
  X(destroy_agent, (NixlAgentObject * agent))                                                                          \
  X(create_params, (NixlParams * *params))                                                                             \
  X(destroy_params, (NixlParams * params))                                                                             \
  X(params_add, (NixlParams * params, const char* key, const char* value))                                             \
  X(create_backend, (NixlAgentObject * agent, const char* plugin, NixlParams* params, NixlBackend** backend))          \
  X(destroy_backend, (NixlBackend * backend))                                                                          \
  X(create_opt_args, (NixlOptArgs * *args))                                                                            \
  X(destroy_opt_args, (NixlOptArgs * args))                                                                            \
  X(opt_args_add_backend, (NixlOptArgs * args, NixlBackend * backend))                                                 \
  X(opt_args_set_notif_msg, (NixlOptArgs * args, const void* data, size_t bytes))                                      \
  X(opt_args_set_has_notif, (NixlOptArgs * args, bool has))                                                            \
  X(create_reg_dlist, (NixlMemory memory, NixlRegistrations * *list))                                                  \
  X(destroy_reg_dlist, (NixlRegistrations * list))                                                                     \
  X(reg_dlist_add_desc, (NixlRegistrations * list, uintptr_t address, size_t bytes, uint64_t device,                   \
                         const void* metadata, size_t metadata_bytes))                                                 \
  X(register_mem, (NixlAgentObject * agent, NixlRegistrations * list, NixlOptArgs * args))                             \
  X(deregister_mem, (NixlAgentObject * agent, NixlRegistrations * list, NixlOptArgs * args))                           \
  X(get_local_md, (NixlAgentObject * agent, void** data, size_t* bytes))                                               \
  X(load_remote_md, (NixlAgentObject * agent, const void* data, size_t bytes, char** name))                            \
  X(invalidate_remote_md, (NixlAgentObject * agent, const char* name))                                                 \
  X(create_xfer_dlist, (NixlMemory memory, NixlDescriptors * *list))                                                   \
  X(destroy_xfer_dlist, (NixlDescriptors * list))                                                                      \
  X(xfer_dlist_add_desc, (NixlDescriptors * list, uintptr_t address, size_t bytes, uint64_t device))                   \
  X(prep_xfer_dlist,                                                                                                   \
    (NixlAgentObject * agent, const char* owner, NixlDescriptors* list, NixlPrepared** prepared, NixlOptArgs* args))   \
  X(release_xfer_dlist_handle, (NixlAgentObject * agent, NixlPrepared * prepared))                                     \
  X(make_xfer_req, (NixlAgentObject * agent, NixlOperation operation, NixlPrepared * local, const int* local_indices,  \
                    size_t local_count, NixlPrepared* remote, const int* remote_indices, size_t remote_count,          \
                    NixlRequest** request, NixlOptArgs* args))                                                         \
  X(post_xfer_req, (NixlAgentObject * agent, NixlRequest * request, NixlOptArgs * args))                               \
  X(get_xfer_status, (NixlAgentObject * agent, NixlRequest * request))                                                 \
  X(release_xfer_req, (NixlAgentObject * agent, NixlRequest * request))                                                \
  X(destroy_xfer_req, (NixlRequest * request))                                                                         \
  X(gen_notif, (NixlAgentObject * agent, const char* to, const void* data, size_t bytes, NixlOptArgs* args))           \
  X(create_notif_map, (NixlNotifications * *map))                                                                      \
  X(destroy_notif_map, (NixlNotifications * map))                                                                      \
  X(get_notifs, (NixlAgentObject * agent, NixlNotifications * map, NixlOptArgs * args))                                \
  X(notif_map_size, (NixlNotifications * map, size_t * size))                                                          \
  X(notif_map_get_agent_at, (NixlNotifications * map, size_t index, const char** agent))                               \
  X(notif_map_get_notifs_size, (NixlNotifications * map, const char* agent, size_t* size))                             \
  X(notif_map_get_notif, (NixlNotifications * map, const char* agent, size_t index, const void** data, size_t* bytes)) \
  X(notif_map_clear, (NixlNotifications * map))

// The functions of the one NIXL of this process. Loaded once and never let go of.
struct NixlApi {
#define STATE_HANDOFF_NIXL_MEMBER(name, arguments) int(*name) arguments = nullptr;
  STATE_HANDOFF_NIXL_FUNCTIONS(STATE_HANDOFF_NIXL_MEMBER)
#undef STATE_HANDOFF_NIXL_MEMBER
  std::string path;

  // The process's NIXL: the first of `candidates` that loads, unless one was loaded before. Throws
  // TRANSPORT_UNAVAILABLE. Any thread; takes up to a third of a second.
  static std::shared_ptr<const NixlApi> Load(const std::vector<std::string>& candidates);
};

// "invalid parameter (-1)": a status in words, for messages.
std::string NixlStatusText(int status);

}  // namespace state_handoff
