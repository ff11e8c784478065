#include "nixl_pack_message.h"

#include <cstring>

#include "../core/error_codes.h"

namespace state_handoff {

namespace {

constexpr uint64_t kMagic = 0x314b434150444853;  // "SHDPACK1", and the version with it
constexpr size_t kReadMax = 64;

struct Head {
  uint64_t magic;
  PackTicket ticket;
  uint64_t read;
  uint64_t rectangles;
  uint64_t tables;
  uint64_t rows;
};

template <typename Value>
void Put(std::string& text, const Value* values, size_t count) {
  if (count > 0) text.append(reinterpret_cast<const char*>(values), count * sizeof(Value));
}

template <typename Value>
std::vector<Value> Take(const std::string& text, size_t& at, size_t count) {
  std::vector<Value> values(count);
  if (count > 0) std::memcpy(values.data(), text.data() + at, count * sizeof(Value));
  at += count * sizeof(Value);
  return values;
}

void PutProgram(const CopyProgram& program, std::vector<double>& rectangles, std::vector<double>& tables,
                std::vector<int32_t>& rows) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  for (const Rectangle& each : program.rectangles) {
    for (const int64_t value : {each.source_region, each.target_region, each.table, each.table_from, each.table_count,
                                each.source_offset, each.target_offset, each.fragment_bytes}) {
      rectangles.push_back(number(value));
    }
    rectangles.push_back(each.loop_count);
    for (size_t i = 0; i < kLoopsMax; ++i) {
      const Loop loop = i < static_cast<size_t>(each.loop_count) ? each.loops[i] : Loop{0, 0, 0};
      for (const int64_t value : {loop.count, loop.source_stride, loop.target_stride}) {
        rectangles.push_back(number(value));
      }
    }
  }
  for (const Table& each : program.tables) {
    tables.insert(tables.end(),
                  {static_cast<double>(each.source.size()), each.source_sub.empty() ? 0.0 : 1.0,
                   each.target_sub.empty() ? 0.0 : 1.0, number(each.source_block), number(each.target_block),
                   number(each.source_sub_stride), number(each.target_sub_stride)});
    for (const std::vector<int32_t>* column : {&each.source, &each.target, &each.source_sub, &each.target_sub}) {
      rows.insert(rows.end(), column->begin(), column->end());
    }
  }
}

}  // namespace

std::string EncodePackMessage(const PackMessage& message) {
  std::vector<double> rectangles;
  std::vector<double> tables;
  std::vector<int32_t> rows;
  if (message.program) PutProgram(*message.program, rectangles, tables, rows);
  const Head head{kMagic, message.ticket, message.read.size(), rectangles.size(), tables.size(), rows.size()};
  std::string text;
  Put(text, &head, 1);
  Put(text, message.read.data(), message.read.size());
  Put(text, rectangles.data(), rectangles.size());
  Put(text, tables.data(), tables.size());
  Put(text, rows.data(), rows.size());
  return text;
}

std::optional<PackMessage> DecodePackMessage(const std::string& text) {
  Head head;
  if (text.size() < sizeof(head) || text.size() > kPackMessageBytesMax) return std::nullopt;
  std::memcpy(&head, text.data(), sizeof(head));
  // Each below what the text can hold, so that their sum is exact.
  const size_t most = text.size();
  if (head.magic != kMagic || head.read > kReadMax || head.rectangles > most || head.tables > most ||
      head.rows > most) {
    return std::nullopt;
  }
  const size_t bytes = sizeof(head) + head.read * sizeof(PackTicket) +
                       (head.rectangles + head.tables) * sizeof(double) + head.rows * sizeof(int32_t);
  if (bytes != text.size()) return std::nullopt;
  size_t at = sizeof(head);
  PackMessage message;
  message.ticket = head.ticket;
  message.read = Take<PackTicket>(text, at, head.read);
  const auto rectangles = Take<double>(text, at, head.rectangles);
  const auto tables = Take<double>(text, at, head.tables);
  const auto rows = Take<int32_t>(text, at, head.rows);
  if (rectangles.empty()) return message;
  if (head.ticket.low == 0) return std::nullopt;  // what an empty slot says
  try {
    message.program = DecodeProgram(
        EncodedProgram{rectangles.data(), rectangles.size(), tables.data(), tables.size(), rows.data(), rows.size()});
  } catch (const NativeError&) {
    return std::nullopt;
  }
  return message;
}

}  // namespace state_handoff
