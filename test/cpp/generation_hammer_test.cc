// Promise: while another process rewrites blocks, no torn or foreign byte is ever delivered as success, and a handoff
// that had expired before it began touches nothing. Taking away either comparison of generations breaks one of the two.
//
// The other process advances a block's generation, rewrites the block, then publishes the generation; this one pulls
// with published generations, and at times with one that is known to be gone.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "host_fixture.h"

namespace state_handoff::test {

namespace {

constexpr int32_t kBlocks = 16;
constexpr int32_t kPulled = 4;
constexpr size_t kBlockWords = 32 << 10;
constexpr size_t kBlockBytes = kBlockWords * sizeof(uint64_t);
constexpr uint64_t kCanary = 0xc0ffee00c0ffee00;

// In memory that both processes write; only the test's own bookkeeping.
struct Board {
  std::atomic<uint64_t> published[kBlocks];
  char name[64];
  std::atomic<bool> listening;
};

uint64_t Pattern(int32_t block, uint64_t generation) {
  return (generation * 1000 + static_cast<uint64_t>(block) + 1) * 0x9e3779b97f4a7c15;
}

void WriteBlock(uint8_t* data, int32_t block, uint64_t generation) {
  auto* words = reinterpret_cast<uint64_t*>(data + static_cast<size_t>(block) * kBlockBytes);
  std::fill(words, words + kBlockWords, Pattern(block, generation));
}

[[noreturn]] void RewriteForEver(Board& board) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  HostEndpoint::Options options;
  options.blocks = std::make_shared<Generations>(kBlocks);
  const std::shared_ptr<Generations> generations = options.blocks;
  auto exporter = MakeEndpoint(std::move(options));
  const auto region = HostRegion::Allocate(kBlocks * kBlockBytes, "hammer");
  uint8_t* data = region->memory()->data();
  for (int32_t block = 0; block < kBlocks; ++block) {
    WriteBlock(data, block, generations->Get(static_cast<size_t>(block)));
    board.published[block].store(generations->Get(static_cast<size_t>(block)));
  }
  exporter->AddRegion(region);
  const SocketAddress address = exporter->Listen(true, ".", FreshName(), kToken);
  std::strncpy(board.name, address.name.c_str(), sizeof(board.name) - 1);
  board.listening.store(true);
  Random random(11);
  for (;;) {
    const auto block = static_cast<int32_t>(Between(random, 0, kBlocks - 1));
    generations->Advance(&block, 1);
    const uint64_t generation = generations->Get(static_cast<size_t>(block));
    WriteBlock(data, block, generation);
    board.published[block].store(generation, std::memory_order_release);
  }
}

struct Tally {
  int done = 0;
  int expired_early = 0;  // its generations were gone before it began
  int expired_late = 0;
  int foreign = 0;  // success with a byte that is not of the ticket's generation
  int touched = 0;  // expired before it began, and yet something was written
};

Tally Hammer(CopyRules rules, int pulls, const std::function<bool(const Tally&)>& enough) {
  auto* board =
      static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(board != MAP_FAILED);
  const pid_t rewriter = fork();
  CHECK(rewriter >= 0);
  if (rewriter == 0) RewriteForEver(*board);
  WaitFor("the rewriter", [&] { return board->listening.load(); });

  HostEndpoint::Options options;
  options.threads = 2;
  options.rules = rules;
  auto importer = MakeEndpoint(std::move(options));
  const auto target = HostRegion::Allocate(kPulled * kBlockBytes, "hammer");
  auto* words = reinterpret_cast<uint64_t*>(target->memory()->data());
  importer->AddRegion(target);
  HostGrant grant = GrantOf(SocketAddress{true, board->name}, {kBlocks * kBlockBytes});
  grant.block_generations = kBlocks;
  const uint64_t peer = importer->Connect(grant);
  CHECK(Settled(*importer, peer) == LinkStatus::kReady);

  Random random(12);
  Tally tally;
  for (int pull = 0; pull < pulls && !enough(tally); ++pull) {
    std::fill(words, words + kPulled * kBlockWords, kCanary);
    CopyProgram program;
    std::vector<int32_t> ids = Shuffled(random, kBlocks);
    ids.resize(kPulled);
    Table table{ids, {}, {}, {}, kBlockBytes, kBlockBytes, 0, 0};
    for (int32_t i = 0; i < kPulled; ++i) table.target.push_back(i);
    program.tables.push_back(table);
    program.rectangles.push_back(Rectangle{0, 0, 0, 0, kPulled, 0, 0, kBlockBytes, 0, {}});
    ClaimedGenerations claimed{ids, {}};
    for (const int32_t id : ids) claimed.expected.push_back(board->published[id].load(std::memory_order_acquire));
    const bool gone = Between(random, 0, 3) == 0 && claimed.expected[1] > 1;
    if (gone) --claimed.expected[1];
    const std::vector<uint64_t> tickets = claimed.expected;

    const uint64_t id = importer->Begin(peer, std::move(program), std::move(claimed), {});
    const TransferStatus status = Ended(*importer, id);
    WaitFor("the completion", [&] { return importer->TakeChanged().size() == 1; });
    if (status == TransferStatus::kDone) {
      ++tally.done;
      for (size_t i = 0; i < kPulled * kBlockWords; ++i) {
        const size_t block = i / kBlockWords;
        if (words[i] == Pattern(ids[block], tickets[block])) continue;
        ++tally.foreign;
        break;
      }
    } else {
      CHECK(importer->Find(id).error_code() == ErrorCode::kHANDOFF_EXPIRED);
      CHECK_EQUAL(importer->Find(id).bytes_done(), 0);
      ++(gone ? tally.expired_early : tally.expired_late);
      if (gone)
        tally.touched += std::any_of(words, words + kPulled * kBlockWords, [](uint64_t w) { return w != kCanary; });
    }
    importer->Forget(id);
  }
  kill(rewriter, SIGKILL);
  CHECK_EQUAL(waitpid(rewriter, nullptr, 0), rewriter);
  // The exporter is dead; what it left mapped stays readable.
  WaitFor("the loss", [&] { return importer->Link(peer).status() == LinkStatus::kFailed; });
  CHECK(importer->Link(peer).error_code() == ErrorCode::kPEER_LOST);
  munmap(board, sizeof(Board));
  std::printf("  %d delivered, %d expired before, %d while copying; %d foreign, %d touched\n", tally.done,
              tally.expired_early, tally.expired_late, tally.foreign, tally.touched);
  return tally;
}

}  // namespace

TEST(HammerDeliversNothingForeignAndTouchesNothingExpired) {
  const Tally tally = Hammer({}, 100'000, [](const Tally& so_far) {
    return so_far.done >= 500 && so_far.expired_early >= 100 && so_far.expired_late >= 100;
  });
  CHECK_EQUAL(tally.foreign, 0);
  CHECK_EQUAL(tally.touched, 0);
  CHECK(tally.done >= 500 && tally.expired_early >= 100 && tally.expired_late >= 100);
}

TEST(HammerFindsForeignBytesWithoutTheComparisonAfter) {
  CopyRules rules;
  rules.compare_after = false;
  CHECK(Hammer(rules, 100'000, [](const Tally& so_far) { return so_far.foreign > 0; }).foreign > 0);
}

TEST(HammerFindsTouchedTargetsWithoutTheComparisonBefore) {
  CopyRules rules;
  rules.compare_before = false;
  const Tally tally = Hammer(rules, 100'000, [](const Tally& so_far) { return so_far.touched > 0; });
  CHECK(tally.touched > 0);
  CHECK_EQUAL(tally.foreign, 0);
}

}  // namespace state_handoff::test
