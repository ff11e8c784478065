// The part of llama.cpp's C interface (release v0.5.0) that this example calls, in its own words: no header of
// llama.cpp is needed to build. Structs travel by value, so their layout must be that release's; llama_library.cc
// refuses any other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace state_handoff::llama {

struct Model;
struct Context;
struct Vocabulary;
struct Memory;

struct ModelParameters {
  void* devices;
  const void* buffer_overrides;
  int32_t gpu_layers;
  int32_t split_mode;
  int32_t load_mode;
  int32_t lazy_mode;
  int32_t main_gpu;
  const float* tensor_split;
  bool (*on_progress)(float, void*);
  void* on_progress_data;
  const void* metadata_overrides;
  bool vocabulary_only;
  bool checks_tensors;
  bool uses_extra_buffers;
  bool skips_host_buffer;
  bool skips_allocation;
  bool loads_mtp;
};

struct ContextParameters {
  uint32_t cells;
  uint32_t batch;
  uint32_t micro_batch;
  uint32_t sequences;
  uint32_t recurrent_snapshots;
  uint32_t outputs;
  uint32_t outputs_per_sequence;
  int32_t threads;
  int32_t batch_threads;
  int32_t context_type;
  int32_t rope_scaling;
  int32_t pooling;
  int32_t attention;
  int32_t flash_attention;
  float rope_base;
  float rope_scale;
  float yarn_extrapolation;
  float yarn_attention;
  float yarn_beta_fast;
  float yarn_beta_slow;
  uint32_t yarn_original_context;
  float defragmentation;
  void* on_evaluate;
  void* on_evaluate_data;
  int32_t key_type;
  int32_t value_type;
  bool (*on_abort)(void*);
  void* on_abort_data;
  bool embeddings;
  bool offloads_attention;
  bool skips_timings;
  bool offloads_operations;
  bool full_window_cache;
  bool unified_cache;
  void* samplers;
  size_t sampler_count;
  Context* other;
};

struct Batch {
  int32_t tokens;
  int32_t* token;
  float* embedding;
  int32_t* position;
  int32_t* sequence_counts;
  int32_t** sequences;
  int8_t* outputs;
};

struct ChatMessage {
  const char* role;
  const char* content;
};

// What comes back by value has room behind it, so that a release whose struct is larger is refused and not suffered.
template <typename Parameters>
struct Padded {
  Parameters value;
  unsigned char room[512];
};

using LogCallback = void (*)(int32_t level, const char* text, void* data);

// Bound at run time; never linked.
struct Api {
  void (*ggml_backend_load_all_from_path)(const char* folder);
  size_t (*ggml_backend_reg_count)();
  void (*ggml_log_set)(LogCallback callback, void* data);

  const char* (*llama_version)();
  void (*llama_log_set)(LogCallback callback, void* data);
  Padded<ModelParameters> (*llama_model_default_params)();
  Padded<ContextParameters> (*llama_context_default_params)();
  void (*llama_backend_init)();
  Model* (*llama_model_load_from_file)(const char* path, ModelParameters parameters);
  void (*llama_model_free)(Model* model);
  Context* (*llama_init_from_model)(Model* model, ContextParameters parameters);
  void (*llama_free)(Context* context);
  const Vocabulary* (*llama_model_get_vocab)(const Model* model);
  int32_t (*llama_model_n_layer)(const Model* model);
  int32_t (*llama_model_n_head_kv)(const Model* model);
  int32_t (*llama_model_n_swa)(const Model* model);
  int32_t (*llama_model_n_ctx_train)(const Model* model);
  int32_t (*llama_model_desc)(const Model* model, char* text, size_t size);
  bool (*llama_model_is_recurrent)(const Model* model);
  bool (*llama_model_is_hybrid)(const Model* model);
  const char* (*llama_model_chat_template)(const Model* model, const char* name);
  int32_t (*llama_chat_apply_template)(const char* form, const ChatMessage* messages, size_t count, bool asks,
                                       char* text, int32_t size);
  int32_t (*llama_vocab_n_tokens)(const Vocabulary* vocabulary);
  bool (*llama_vocab_is_eog)(const Vocabulary* vocabulary, int32_t token);
  int32_t (*llama_tokenize)(const Vocabulary* vocabulary, const char* text, int32_t length, int32_t* tokens,
                            int32_t tokens_max, bool add_special, bool parse_special);
  int32_t (*llama_token_to_piece)(const Vocabulary* vocabulary, int32_t token, char* text, int32_t size, int32_t strip,
                                  bool special);
  int32_t (*llama_decode)(Context* context, Batch batch);
  float* (*llama_get_logits_ith)(Context* context, int32_t index);
  Memory* (*llama_get_memory)(const Context* context);
  void (*llama_memory_clear)(Memory* memory, bool data);
  bool (*llama_memory_seq_rm)(Memory* memory, int32_t sequence, int32_t from, int32_t to);
  void (*llama_memory_seq_cp)(Memory* memory, int32_t source, int32_t target, int32_t from, int32_t to);
  int32_t (*llama_memory_seq_pos_max)(Memory* memory, int32_t sequence);
  size_t (*llama_state_seq_get_size)(Context* context, int32_t sequence);
  size_t (*llama_state_seq_get_data)(Context* context, uint8_t* target, size_t size, int32_t sequence);
  size_t (*llama_state_seq_set_data)(Context* context, const uint8_t* source, size_t size, int32_t sequence);
};

}  // namespace state_handoff::llama
