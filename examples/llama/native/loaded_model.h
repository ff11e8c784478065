// One model in memory, and one context of it: a cache of cells that several sequences share, and what computes on it.
// Owns both; refuses models whose state is not plain attention state. One caller at a time; every failure throws
// std::runtime_error with what llama.cpp logged.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama_library.h"
#include "sequence_state.h"

namespace state_handoff::llama {

class LoadedModel {
 public:
  LoadedModel(const std::string& library_folder, const std::string& path);
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Api& api() const { return api_; }
  Model* get() const { return model_; }
  const Vocabulary* vocabulary() const { return vocabulary_; }

  uint32_t layers() const { return static_cast<uint32_t>(api_.llama_model_n_layer(model_)); }
  uint32_t heads() const { return static_cast<uint32_t>(api_.llama_model_n_head_kv(model_)); }
  uint32_t head_dim() const { return head_dim_; }
  std::string description() const;

  std::vector<int32_t> Tokenize(const std::string& text, bool add_special, bool parse_special) const;
  std::string Piece(int32_t token) const;
  // The model's own chat form; `roles` and `texts` are as many.
  std::string Chat(const std::vector<std::string>& roles, const std::vector<std::string>& texts, bool asks) const;

 private:
  void CheckKind() const;
  uint32_t MeasuredHeadDim() const;

  const Api& api_;
  Model* model_ = nullptr;
  const Vocabulary* vocabulary_ = nullptr;
  uint32_t head_dim_ = 0;
};

struct CacheOptions {
  uint32_t cells;
  // Sequences with an id from 0; one more, the last id, is kept for moving state.
  uint32_t sequences;
  // Tokens of one evaluation at most.
  uint32_t batch;
  int32_t element_type;
  uint64_t element_bytes;
};

class Cache {
 public:
  Cache(std::shared_ptr<LoadedModel> model, const CacheOptions& options);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Evaluates the tokens and returns the rows of logits that `outputs` asks for, in order.
  std::vector<float> Evaluate(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                              std::span<const int32_t> sequences, std::span<const uint8_t> outputs);
  // Removes positions [from, end) of a sequence.
  void Truncate(int32_t sequence, int32_t from);
  // The last position of a sequence; -1 when it is empty.
  int32_t LastPosition(int32_t sequence) const;
  // Copies a run of a sequence into blocks, and a run of blocks behind what a sequence has.
  void Export(int32_t sequence, const BlockShape& form, const BlockRun& run, std::span<uint8_t> memory);
  void Import(int32_t sequence, const BlockShape& form, const BlockRun& run, std::span<const uint8_t> memory);

  const StateShape& shape() const { return shape_; }
  const CacheOptions& options() const { return options_; }

 private:
  void CheckSequence(int32_t sequence) const;
  int32_t scratch() const { return static_cast<int32_t>(options_.sequences); }

  std::shared_ptr<LoadedModel> model_;
  const Api& api_;
  CacheOptions options_;
  StateShape shape_;
  Context* context_ = nullptr;
  Memory* memory_ = nullptr;
  std::vector<uint8_t> state_;
};

}  // namespace state_handoff::llama
