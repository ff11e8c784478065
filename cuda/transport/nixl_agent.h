// One NIXL agent with UCX behind it, its registered memory, and what is made of it: prepared lists and reads.
//
// Lists and reads belong to their agent and are let go of before it is destroyed. Whoever destroys an agent has a
// proof: its endpoints and sockets are gone, so nothing that it started can touch memory any more, whatever the peer
// does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nixl_api.h"

namespace state_handoff {

// Memory of this process or of a peer.
struct NixlRange {
  uint64_t address;
  uint64_t bytes;
  NixlMemory memory = kNixlDram;
  uint64_t device = 0;

  // Whether one kernel, or one CPU, can reach both.
  bool IsWith(const NixlRange& other) const { return memory == other.memory && device == other.device; }
  NixlRange Part(uint64_t offset, uint64_t part_bytes) const {
    return NixlRange{address + offset, part_bytes, memory, device};
  }
};

struct NixlMessage {
  std::string sender;
  std::string text;
};

class NixlAgent;

// Descriptors that were resolved once against an agent's registrations.
class NixlList {
 public:
  NixlList(NixlAgent& agent, NixlPrepared* prepared) : agent_(agent), prepared_(prepared) {}
  ~NixlList();
  NixlList(const NixlList&) = delete;
  NixlList& operator=(const NixlList&) = delete;

  NixlPrepared* get() const { return prepared_; }

 private:
  NixlAgent& agent_;
  NixlPrepared* const prepared_;
};

// One read request. Destroying it while it is in progress stops nothing: only the agent's end does.
class NixlRead {
 public:
  NixlRead(NixlAgent& agent, NixlRequest* request) : agent_(agent), request_(request) {}
  ~NixlRead();
  NixlRead(const NixlRead&) = delete;
  NixlRead& operator=(const NixlRead&) = delete;

  // Once. May do all the copying before it returns.
  NixlStatus Post();
  NixlStatus Poll();

 private:
  NixlAgent& agent_;
  NixlRequest* const request_;
};

class NixlAgent {
 public:
  // Blocks for about half a second; twice that for one that moves GPU memory, with a context current. `progress` gives
  // it a thread of its own, which the passive side of a read needs. Throws TRANSPORT_UNAVAILABLE.
  NixlAgent(std::shared_ptr<const NixlApi> api, const std::string& name, bool progress, bool gpu);
  // Blocks for some ten milliseconds.
  ~NixlAgent();
  NixlAgent(const NixlAgent&) = delete;
  NixlAgent& operator=(const NixlAgent&) = delete;

  const NixlApi& api() const { return *api_; }
  NixlAgentObject* object() const { return agent_; }

  // For the agent's whole life. Throws naming size and kind: NATIVE_SYSTEM, TRANSPORT_UNAVAILABLE for GPU memory.
  void Register(const NixlRange& range);
  // What a peer needs in order to read what is registered.
  std::string Metadata() const;
  // Gives the peer's name. Throws PEER_UNREACHABLE, also for metadata that is none.
  std::string LoadPeer(const std::string& metadata);

  // `owner`: a loaded peer, or empty for this process's own memory. All of one kind. Throws PEER_REFUSED (a peer's) or
  // INVARIANT (ours) when a descriptor is not inside a registration.
  std::unique_ptr<NixlList> Prepare(const std::string& owner, const std::vector<NixlRange>& descriptors);
  // Entry i of the one list is filled from entry i of the other. Throws PEER_LOST.
  std::unique_ptr<NixlRead> MakeRead(const NixlList& local, const std::vector<int>& local_indices,
                                     const NixlList& remote, const std::vector<int>& remote_indices);

  // False when it cannot be sent.
  bool Notify(const std::string& peer, const std::string& text);
  // What came since the last call.
  std::vector<NixlMessage> TakeMessages();

  // Of this process, for tests: agents that live, and reads that were posted so far.
  static int64_t live();
  static int64_t posted();

 private:
  void Destroy();

  const std::shared_ptr<const NixlApi> api_;
  NixlAgentObject* agent_ = nullptr;
  NixlBackend* backend_ = nullptr;
  NixlOptArgs* options_ = nullptr;
  NixlNotifications* inbox_ = nullptr;
};

}  // namespace state_handoff
