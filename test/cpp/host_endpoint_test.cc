// Promises of the two ends together: bytes arrive, a dead or closed peer is noticed, reconnecting works, and nothing is
// left behind, whatever is under way when an end goes.
#include <cstring>

#include "host_fixture.h"

namespace state_handoff::test {

namespace {

constexpr size_t kBytes = 4 << 20;

std::shared_ptr<HostRegion> Filled(uint64_t seed) {
  auto region = HostRegion::Allocate(kBytes, "test");
  Random random(seed);
  auto* words = reinterpret_cast<uint64_t*>(region->memory()->data());
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) words[i] = random();
  return region;
}

struct Pair {
  explicit Pair(HostEndpoint::Options exporter_options = {}, bool abstract = true, const char* directory = ".")
      : source(Filled(1)),
        target(Filled(2)),
        exporter(MakeEndpoint(std::move(exporter_options))),
        importer(MakeEndpoint()) {
    exporter->AddRegion(source);
    importer->AddRegion(target);
    address = exporter->Listen(abstract, directory, FreshName(), kToken);
  }

  std::shared_ptr<HostRegion> source;
  std::shared_ptr<HostRegion> target;
  std::unique_ptr<HostEndpoint> exporter;
  std::unique_ptr<HostEndpoint> importer;
  SocketAddress address;
};

}  // namespace

TEST(EndpointPullsOverAbstractAndPathSockets) {
  for (const bool abstract : {true, false}) {
    Random random(5);
    char folder[] = "handoff-test-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    {
      Pair pair({}, abstract, folder);
      CHECK_EQUAL(pair.address.abstract, abstract);
      const CopyProgram program = BlockProgram(random, 64, 64 << 10, 512);
      std::vector<uint8_t> expected(pair.target->memory()->data(), pair.target->memory()->data() + kBytes);
      CopyPlainly(program, pair.source->memory()->data(), expected.data());
      const uint64_t peer = pair.importer->Connect(GrantOf(pair.address, {kBytes}));
      // Begun before the peer is ready: starts when it is.
      const uint64_t transfer = pair.importer->Begin(peer, program, {}, {});
      CHECK(Ended(*pair.importer, transfer) == TransferStatus::kDone);
      CHECK(std::memcmp(expected.data(), pair.target->memory()->data(), kBytes) == 0);
      const std::vector<uint64_t> ended = pair.importer->TakeChanged();
      CHECK_EQUAL(ended.size(), size_t{1});
      CHECK_EQUAL(ended[0], transfer);
      pair.importer->Forget(transfer);
    }
    CHECK_EQUAL(rmdir(folder), 0);  // the broker's own folder is gone
  }
}

TEST(EndpointConnectsAtOnceEveryTime) {
  Pair pair;
  for (int i = 0; i < 300; ++i) {
    auto importer = MakeEndpoint();
    const auto started = std::chrono::steady_clock::now();
    const uint64_t peer = importer->Connect(GrantOf(pair.address, {kBytes}));
    CHECK(Settled(*importer, peer) == LinkStatus::kReady);
    CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(4));
  }
}

TEST(EndpointNoticesThatItsPeerClosedAndReconnects) {
  Random random(6);
  Pair pair;
  const uint64_t peer = pair.importer->Connect(GrantOf(pair.address, {kBytes}));
  CHECK(Settled(*pair.importer, peer) == LinkStatus::kReady);
  pair.exporter->Close();
  WaitFor("the loss", [&] { return pair.importer->Link(peer).status() == LinkStatus::kFailed; });
  CHECK(pair.importer->Link(peer).error_code() == ErrorCode::kPEER_LOST);
  const uint64_t refused = pair.importer->Begin(peer, BlockProgram(random, 4, 1 << 20, 0), {}, {});
  CHECK(Ended(*pair.importer, refused) == TransferStatus::kFailed);
  CHECK(pair.importer->Find(refused).error_code() == ErrorCode::kPEER_LOST);
  CHECK_EQUAL(FailureOf(*pair.importer, GrantOf(pair.address, {kBytes})), "PEER_UNREACHABLE");

  auto restarted = MakeEndpoint();
  restarted->AddRegion(pair.source);
  const SocketAddress address = restarted->Listen(true, ".", FreshName(), kToken);
  const uint64_t again = pair.importer->Connect(GrantOf(address, {kBytes}));
  const uint64_t transfer = pair.importer->Begin(again, BlockProgram(random, 4, 1 << 20, 0), {}, {});
  CHECK(Ended(*pair.importer, transfer) == TransferStatus::kDone);
}

TEST(EndpointKeepsAMappingForAsLongAsATransferNeedsIt) {
  Random random(7);
  Pair pair;
  for (int i = 0; i < 100; ++i) {
    const uint64_t peer = pair.importer->Connect(GrantOf(pair.address, {kBytes}));
    CHECK(Settled(*pair.importer, peer) == LinkStatus::kReady);
    const uint64_t transfer = pair.importer->Begin(peer, BlockProgram(random, 64, 64 << 10, 64), {}, {});
    pair.importer->Disconnect(peer);
    Ended(*pair.importer, transfer);
    CHECK(pair.importer->Find(transfer).status() == TransferStatus::kDone);
  }
  WaitFor("mappings to go", [] { return HostMapping::live() == 0; });
}

TEST(EndpointRefusesWrongTokensCountsAndClosedRegions) {
  Pair pair;
  HostGrant wrong_token = GrantOf(pair.address, {kBytes});
  wrong_token.token[15] ^= 1;
  CHECK_EQUAL(FailureOf(*pair.importer, wrong_token), "PEER_REFUSED");
  CHECK_EQUAL(FailureOf(*pair.importer, GrantOf(pair.address, {kBytes, kBytes})), "PEER_REFUSED");
  CHECK_EQUAL(FailureOf(*pair.importer, GrantOf(pair.address, {kBytes - 1})), "PEER_REFUSED");
  HostGrant generations = GrantOf(pair.address, {kBytes});
  generations.block_generations = 4;
  CHECK_EQUAL(FailureOf(*pair.importer, generations), "PEER_REFUSED");
  CHECK(pair.source->TryClose());
  CHECK_EQUAL(FailureOf(*pair.importer, GrantOf(pair.address, {kBytes})), "PEER_REFUSED");
}

TEST(EndpointIsPatientWithAPeerThatIsReady) {
  Pair pair;
  HostGrant grant = GrantOf(pair.address, {kBytes});
  grant.patience = std::chrono::milliseconds(150);
  const uint64_t peer = pair.importer->Connect(grant);
  CHECK(Settled(*pair.importer, peer) == LinkStatus::kReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(pair.importer->Link(peer).status() == LinkStatus::kReady);
}

TEST(EndpointServesAsManyImportersAsItSaysAndNoMore) {
  Pair pair;
  std::vector<uint64_t> peers;
  for (int i = 0; i < 256; ++i) peers.push_back(pair.importer->Connect(GrantOf(pair.address, {kBytes})));
  for (const uint64_t peer : peers) CHECK(Settled(*pair.importer, peer) == LinkStatus::kReady);
  CHECK_EQUAL(FailureOf(*pair.importer, GrantOf(pair.address, {kBytes})), "PEER_UNREACHABLE");
  pair.importer->Disconnect(peers[0]);
  WaitFor("a free place", [&] {
    return Settled(*pair.importer, pair.importer->Connect(GrantOf(pair.address, {kBytes}))) == LinkStatus::kReady;
  });
}

TEST(EndpointLeavesNothingBehindWhateverIsUnderWay) {
  Random random(8);
  // The first use of anything may open descriptors that stay.
  { Pair warm; }
  const size_t descriptors = OpenDescriptors();
  for (int round = 0; round < 60; ++round) {
    Pair pair;
    const uint64_t peer = pair.importer->Connect(GrantOf(pair.address, {kBytes}));
    if (round % 3 != 0) Settled(*pair.importer, peer);
    for (int i = 0; i < 4; ++i) pair.importer->Begin(peer, BlockProgram(random, 64, 64 << 10, 64), {}, {});
    if (round % 4 == 0) pair.exporter.reset();
    if (round % 4 == 1) {
      pair.importer->BeginClose();
      WaitFor("quiet", [&] { return pair.importer->quiet(); });
      CHECK_EQUAL(pair.importer->ActiveCount(), size_t{0});
      CHECK_EQUAL(CodeOf([&] { pair.importer->Begin(peer, {}, {}, {}); }), "CLOSED");
    }
  }
  CHECK_EQUAL(ThreadPool::live(), 0);
  CHECK_EQUAL(HostMapping::live(), 0);
  CHECK_EQUAL(HostRegion::live(), 0);
  CHECK_EQUAL(OpenDescriptors(), descriptors);
}

TEST(EndpointRefusesAFullRingAndAClosedTarget) {
  Random random(9);
  Pair pair({}, true);
  HostEndpoint::Options options;
  options.transfers_max = 2;
  auto importer = MakeEndpoint(std::move(options));
  importer->AddRegion(pair.target);
  const uint64_t peer = importer->Connect(GrantOf(pair.address, {kBytes}));
  const uint64_t first = importer->Begin(peer, BlockProgram(random, 4, 1 << 20, 0), {}, {});
  const uint64_t second = importer->Begin(peer, {}, {}, {});
  CHECK_EQUAL(CodeOf([&] { importer->Begin(peer, {}, {}, {}); }), "NATIVE_LIMIT");
  Ended(*importer, first);
  Ended(*importer, second);
  CHECK_EQUAL(CodeOf([&] { importer->Begin(peer, {}, {}, {}); }), "NATIVE_LIMIT");
  WaitFor("both in the ring",
          [&, seen = size_t{0}]() mutable { return (seen += importer->TakeChanged().size()) == 2; });
  CHECK(Ended(*importer, importer->Begin(peer, {}, {}, {})) == TransferStatus::kDone);
  CHECK(pair.target->TryClose());
  CHECK_EQUAL(CodeOf([&] { importer->Begin(peer, BlockProgram(random, 4, 1 << 20, 0), {}, {}); }), "CLOSED");
  CHECK_EQUAL(CodeOf([&] { importer->AddRegion(pair.target); }), "CLOSED");
  CHECK_EQUAL(CodeOf([&] { importer->Begin(99, {}, {}, {}); }), "ARGUMENT_INVALID");
  CHECK_EQUAL(CodeOf([&] { importer->Cancel(99); }), "ARGUMENT_INVALID");
}

}  // namespace state_handoff::test
