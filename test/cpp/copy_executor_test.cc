// Promises: what is copied is what a plain loop copies; an ended transfer touches nothing; a cancel is obeyed within
// one quantum of every thread; stopping with transfers under way ends each of them once.
#include <cstring>
#include <thread>

#include "transfer_fixture.h"

namespace state_handoff::test {

namespace {

constexpr size_t kBytes = 8 << 20;

std::shared_ptr<HostRegion> FilledRegion(Random& random) {
  auto region = HostRegion::Allocate(kBytes, "test");
  auto* words = reinterpret_cast<uint64_t*>(region->memory()->data());
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) words[i] = random();
  return region;
}

}  // namespace

TEST(ExecutorCopiesWhatAPlainLoopCopies) {
  Random random(1);
  const auto source = FilledRegion(random);
  Ends ends;
  CopyExecutor executor(3, [&](const Transfer& transfer) { ends.Report(transfer); });
  executor.Start();
  std::vector<uint8_t> expected(kBytes);
  for (uint64_t id = 1; id <= 60; ++id) {
    const auto target = FilledRegion(random);
    uint8_t* data = target->memory()->data();
    std::memcpy(expected.data(), data, kBytes);
    const int64_t block = int64_t{1} << Between(random, 9, 20);
    const int64_t slice = Between(random, 0, 1) == 0 ? 0 : block >> Between(random, 1, 9);
    CopyProgram program =
        BlockProgram(random, static_cast<int32_t>(static_cast<int64_t>(kBytes) / block), block, slice);
    CopyPlainly(program, source->memory()->data(), expected.data());
    const int64_t bytes = ProgramBytes(program);
    auto transfer = std::make_shared<Transfer>(id, std::move(program), TargetOf(target), ClaimedGenerations{},
                                               ClaimedGenerations{});
    executor.Submit(transfer, SourceOf(source));
    ends.Wait(id);
    CHECK(transfer->status() == TransferStatus::kDone);
    CHECK_EQUAL(transfer->bytes_done(), bytes);
    CHECK(std::memcmp(expected.data(), data, kBytes) == 0);
    CHECK(target->TryClose());
  }
}

TEST(ExecutorRefusesWhatTheCheckRefuses) {
  Random random(2);
  const auto source = FilledRegion(random);
  const auto target = FilledRegion(random);
  Ends ends;
  CopyExecutor executor(2, [&](const Transfer& transfer) { ends.Report(transfer); });
  executor.Start();
  CopyProgram beyond = BlockProgram(random, 8, 1 << 20, 0);
  beyond.tables[0].target[3] = 8;
  CopyProgram twice = BlockProgram(random, 8, 1 << 20, 0);
  twice.rectangles.push_back(twice.rectangles[0]);
  const std::vector<uint8_t> before(target->memory()->data(), target->memory()->data() + kBytes);
  uint64_t id = 0;
  for (const CopyProgram& program : {beyond, twice}) {
    auto transfer =
        std::make_shared<Transfer>(++id, program, TargetOf(target), ClaimedGenerations{}, ClaimedGenerations{});
    executor.Submit(transfer, SourceOf(source));
    ends.Wait(id);
    CHECK(transfer->status() == TransferStatus::kFailed);
    CHECK(transfer->error_code() == (id == 1 ? ErrorCode::kPROGRAM_OUT_OF_RANGE : ErrorCode::kPROGRAM_OVERLAP));
  }
  CHECK(std::memcmp(before.data(), target->memory()->data(), kBytes) == 0);
}

TEST(ExecutorObeysACancelWithinOneQuantumOfEveryThread) {
  constexpr size_t kThreads = 2;
  Random random(3);
  const auto source = FilledRegion(random);
  Ends ends;
  CopyExecutor executor(kThreads, [&](const Transfer& transfer) { ends.Report(transfer); });
  executor.Start();
  int cut_short = 0;
  for (uint64_t id = 1; id <= 200; ++id) {
    const auto target = HostRegion::Allocate(kBytes, "test");
    auto transfer = std::make_shared<Transfer>(id, BlockProgram(random, 128, 64 << 10, 0), TargetOf(target),
                                               ClaimedGenerations{}, ClaimedGenerations{});
    executor.Submit(transfer, SourceOf(source));
    const int64_t enough = Between(random, 0, 4 << 20);
    while (transfer->bytes_done() < enough && transfer->status() == TransferStatus::kActive) std::this_thread::yield();
    executor.Cancel(transfer);
    const int64_t at_cancel = transfer->bytes_done();
    ends.Wait(id);
    CHECK(transfer->bytes_done() - at_cancel <= static_cast<int64_t>(kThreads) * CopyWalk::kQuantumBytes);
    if (transfer->status() == TransferStatus::kDone) continue;
    ++cut_short;
    CHECK(transfer->error_code() == ErrorCode::kTRANSFER_CANCELLED);
    CHECK(transfer->bytes_done() < static_cast<int64_t>(kBytes));
    // Quiet: nobody writes any more, and the region closes.
    const std::vector<uint8_t> after(target->memory()->data(), target->memory()->data() + kBytes);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    CHECK(std::memcmp(after.data(), target->memory()->data(), kBytes) == 0);
    CHECK(target->TryClose());
  }
  CHECK(cut_short > 20);
}

TEST(ExecutorNeverCallsDoneWhatACancelCutShort) {
  constexpr auto kAll = static_cast<int64_t>(kBytes);
  Random random(5);
  const auto source = FilledRegion(random);
  const auto target = HostRegion::Allocate(kBytes, "test");
  Ends ends;
  CopyExecutor executor(1, [&](const Transfer& transfer) { ends.Report(transfer); });
  executor.Start();
  int cut_in_the_last_chunk = 0;
  // A busy machine may let a cut come too late for long; the point is that one did come in time.
  for (uint64_t id = 1; id <= 400 || (cut_in_the_last_chunk == 0 && id <= 20'000); ++id) {
    auto transfer = std::make_shared<Transfer>(id, BlockProgram(random, 1, kAll, 0), TargetOf(target),
                                               ClaimedGenerations{}, ClaimedGenerations{});
    executor.Submit(transfer, SourceOf(source));
    // All chunks are handed out by then; the last one is still being copied.
    const int64_t enough = kAll - Between(random, 1, 7) * CopyWalk::kQuantumBytes;
    while (transfer->bytes_done() < enough && transfer->status() == TransferStatus::kActive) {
    }
    executor.Cancel(transfer);
    ends.Wait(id);
    CHECK_EQUAL(transfer->status() == TransferStatus::kDone, transfer->bytes_done() == kAll);
    cut_in_the_last_chunk += transfer->status() == TransferStatus::kFailed;
  }
  CHECK(cut_in_the_last_chunk > 0);
}

TEST(ExecutorStopsWithoutFinishingWhatIsQueued) {
  Random random(6);
  const auto source = FilledRegion(random);
  Ends ends;
  std::vector<std::shared_ptr<HostRegion>> targets;
  std::vector<std::shared_ptr<Transfer>> transfers;
  CopyExecutor executor(2, [&](const Transfer& transfer) { ends.Report(transfer); });
  executor.Start();
  for (uint64_t id = 1; id <= 20; ++id) {
    targets.push_back(HostRegion::Allocate(kBytes, "test"));
    transfers.push_back(std::make_shared<Transfer>(id, BlockProgram(random, 8, 1 << 20, 0), TargetOf(targets.back()),
                                                   ClaimedGenerations{}, ClaimedGenerations{}));
    executor.Submit(transfers.back(), SourceOf(source));
  }
  executor.Stop();
  CHECK(transfers.back()->status() == TransferStatus::kFailed);
  CHECK(transfers.back()->error_code() == ErrorCode::kTRANSFER_CANCELLED);
  CHECK(executor.quiet());
}

TEST(ExecutorEndsEveryTransferOnceWhenItStops) {
  Random random(4);
  const auto source = FilledRegion(random);
  std::vector<std::shared_ptr<HostRegion>> targets;
  for (int i = 0; i < 6; ++i) targets.push_back(FilledRegion(random));
  for (int round = 0; round < 100; ++round) {
    Ends ends;
    std::vector<std::shared_ptr<Transfer>> transfers;
    {
      CopyExecutor executor(2, [&](const Transfer& transfer) { ends.Report(transfer); });
      executor.Start();
      for (uint64_t id = 1; id <= 6; ++id) {
        transfers.push_back(std::make_shared<Transfer>(id, BlockProgram(random, 8, 1 << 20, 64),
                                                       TargetOf(targets[id - 1]), ClaimedGenerations{},
                                                       ClaimedGenerations{}));
      }
      std::thread other([&] {
        for (const auto& transfer : transfers) executor.Cancel(transfer);
      });
      for (const auto& transfer : transfers) executor.Submit(transfer, SourceOf(source));
      if (round % 2 == 0) executor.BeginStop();
      other.join();
    }
    for (const auto& transfer : transfers) {
      ends.Wait(transfer->id());
      CHECK(transfer->status() != TransferStatus::kActive);
    }
  }
  for (const auto& target : targets) CHECK(target->TryClose());
  CHECK_EQUAL(ThreadPool::live(), 0);
}

}  // namespace state_handoff::test
