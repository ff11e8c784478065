#include "llama_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <stdexcept>

namespace state_handoff::llama {
namespace {

constexpr const char* kRelease = "v0.5.0";
constexpr int32_t kLogError = 4;
constexpr size_t kLogBytesMax = 4096;

std::mutex log_mutex;
std::string logged_errors;

void OnLog(int32_t level, const char* text, void*) {
  if (level != kLogError) return;
  const std::lock_guard<std::mutex> lock(log_mutex);
  if (logged_errors.size() < kLogBytesMax) logged_errors += text;
}

void* Open(const std::filesystem::path& path) {
  // Global, so that the parts that it needs find the one that was loaded before.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(path.filename().string() + " does not load because " + dlerror());
  return library;
}

template <typename Function>
void Bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("llama.cpp: expected a function ") + name);
}

[[noreturn]] void RefuseLayout(const char* what) {
  throw std::runtime_error(std::string("llama.cpp: ") + what + " are not those of release " + kRelease +
                           "; this example calls no other");
}

// Whatever the version says, a struct with another layout does not show these values in these places.
void CheckLayout(const Api& api) {
  const ModelParameters model = api.llama_model_default_params().value;
  if (model.devices != nullptr || model.gpu_layers != -1 || model.split_mode != 1 || model.load_mode != -1 ||
      model.lazy_mode != 1 || model.main_gpu != 0 || model.on_progress != nullptr || model.vocabulary_only ||
      model.checks_tensors || !model.uses_extra_buffers || model.skips_allocation || model.loads_mtp) {
    RefuseLayout("the defaults of model parameters");
  }
  const ContextParameters context = api.llama_context_default_params().value;
  if (context.cells != 512 || context.batch != 2048 || context.micro_batch != 512 || context.sequences != 1 ||
      context.outputs_per_sequence != 1 || context.threads != 4 || context.flash_attention != -1 ||
      context.yarn_extrapolation != -1.0f || context.defragmentation != -1.0f || context.key_type != 1 ||
      context.value_type != 1 || context.on_abort != nullptr || context.embeddings || !context.offloads_attention ||
      !context.skips_timings || !context.full_window_cache || context.unified_cache || context.samplers != nullptr ||
      context.other != nullptr) {
    RefuseLayout("the defaults of context parameters");
  }
}

Api Load(const std::filesystem::path& folder) {
  Api api{};
  void* ggml_base = Open(folder / "libggml-base.so");
  void* ggml = Open(folder / (std::string("libggml.") + kRelease + ".so"));
  void* llama = Open(folder / (std::string("libllama.") + kRelease + ".so"));
  Bind(ggml_base, "ggml_log_set", api.ggml_log_set);
  Bind(ggml, "ggml_backend_load_all_from_path", api.ggml_backend_load_all_from_path);
  Bind(ggml, "ggml_backend_reg_count", api.ggml_backend_reg_count);
#define STATE_HANDOFF_BIND(name) Bind(llama, #name, api.name)
  STATE_HANDOFF_BIND(llama_version);
  STATE_HANDOFF_BIND(llama_log_set);
  STATE_HANDOFF_BIND(llama_model_default_params);
  STATE_HANDOFF_BIND(llama_context_default_params);
  STATE_HANDOFF_BIND(llama_backend_init);
  STATE_HANDOFF_BIND(llama_model_load_from_file);
  STATE_HANDOFF_BIND(llama_model_free);
  STATE_HANDOFF_BIND(llama_init_from_model);
  STATE_HANDOFF_BIND(llama_free);
  STATE_HANDOFF_BIND(llama_model_get_vocab);
  STATE_HANDOFF_BIND(llama_model_n_layer);
  STATE_HANDOFF_BIND(llama_model_n_head_kv);
  STATE_HANDOFF_BIND(llama_model_n_swa);
  STATE_HANDOFF_BIND(llama_model_n_ctx_train);
  STATE_HANDOFF_BIND(llama_model_desc);
  STATE_HANDOFF_BIND(llama_model_is_recurrent);
  STATE_HANDOFF_BIND(llama_model_is_hybrid);
  STATE_HANDOFF_BIND(llama_model_chat_template);
  STATE_HANDOFF_BIND(llama_chat_apply_template);
  STATE_HANDOFF_BIND(llama_vocab_n_tokens);
  STATE_HANDOFF_BIND(llama_vocab_is_eog);
  STATE_HANDOFF_BIND(llama_tokenize);
  STATE_HANDOFF_BIND(llama_token_to_piece);
  STATE_HANDOFF_BIND(llama_decode);
  STATE_HANDOFF_BIND(llama_get_logits_ith);
  STATE_HANDOFF_BIND(llama_get_memory);
  STATE_HANDOFF_BIND(llama_memory_clear);
  STATE_HANDOFF_BIND(llama_memory_seq_rm);
  STATE_HANDOFF_BIND(llama_memory_seq_cp);
  STATE_HANDOFF_BIND(llama_memory_seq_pos_max);
  STATE_HANDOFF_BIND(llama_state_seq_get_size);
  STATE_HANDOFF_BIND(llama_state_seq_get_data);
  STATE_HANDOFF_BIND(llama_state_seq_set_data);
#undef STATE_HANDOFF_BIND
  CheckLayout(api);
  api.ggml_log_set(OnLog, nullptr);
  api.llama_log_set(OnLog, nullptr);
  api.ggml_backend_load_all_from_path(folder.c_str());
  if (api.ggml_backend_reg_count() == 0) {
    throw std::runtime_error("llama.cpp: no backend for this processor lies in its folder");
  }
  api.llama_backend_init();
  return api;
}

}  // namespace

const Api& LoadLibrary(const std::string& folder) {
  static std::mutex mutex;
  static std::string loaded_from;
  static Api api;
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded_from.empty()) {
    if (!std::filesystem::path(folder).is_absolute()) throw std::runtime_error("folder: expected an absolute path");
    api = Load(folder);
    loaded_from = folder;
  } else if (loaded_from != folder) {
    throw std::runtime_error("llama.cpp: this process has loaded it from another folder");
  }
  return api;
}

std::string TakeLoggedErrors() {
  const std::lock_guard<std::mutex> lock(log_mutex);
  std::string taken;
  taken.swap(logged_errors);
  while (!taken.empty() && taken.back() == '\n') taken.pop_back();
  return taken;
}

}  // namespace state_handoff::llama
