#include "loaded_model.h"

#include <stdexcept>
#include <utility>

namespace state_handoff::llama {
namespace {

constexpr int32_t kFlashAttention = 1;
// More threads would split sums by their number, and bits would follow it.
constexpr int32_t kThreads = 1;
// The element type of which a model's state is measured: llama.cpp's number of float16, and its bytes.
constexpr int32_t kProbeType = 1;
constexpr uint64_t kProbeBytes = 2;

[[noreturn]] void Fail(const std::string& what) {
  const std::string logged = TakeLoggedErrors();
  throw std::runtime_error(logged.empty() ? what : what + ": " + logged);
}

// One sequence more than asked for; everything that bits follow from is set here.
ContextParameters ParametersFor(const Api& api, uint32_t cells, uint32_t batch, uint32_t sequences,
                                int32_t element_type) {
  ContextParameters parameters = api.llama_context_default_params().value;
  parameters.cells = cells;
  parameters.batch = batch;
  parameters.micro_batch = batch;
  parameters.sequences = sequences + 1;
  parameters.outputs = sequences + 1;
  parameters.threads = kThreads;
  parameters.batch_threads = kThreads;
  parameters.flash_attention = kFlashAttention;
  parameters.key_type = element_type;
  parameters.value_type = element_type;
  parameters.offloads_attention = false;
  parameters.unified_cache = true;
  return parameters;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& library_folder, const std::string& path)
    : api_(LoadLibrary(library_folder)) {
  ModelParameters parameters = api_.llama_model_default_params().value;
  parameters.gpu_layers = 0;
  TakeLoggedErrors();
  model_ = api_.llama_model_load_from_file(path.c_str(), parameters);
  if (model_ == nullptr) Fail("the model does not load");
  vocabulary_ = api_.llama_model_get_vocab(model_);
  try {
    CheckKind();
    head_dim_ = MeasuredHeadDim();
  } catch (...) {
    api_.llama_model_free(model_);
    throw;
  }
}

LoadedModel::~LoadedModel() { api_.llama_model_free(model_); }

void LoadedModel::CheckKind() const {
  const bool is_plain = !api_.llama_model_is_recurrent(model_) && !api_.llama_model_is_hybrid(model_) &&
                        api_.llama_model_n_swa(model_) == 0;
  if (is_plain) return;
  throw std::runtime_error("model: expected attention over the whole sequence in every layer, got another kind");
}

// llama.cpp tells neither how wide a head is (a file may say so, apart from all other sizes) nor whether all layers are
// alike; the state of one token does.
uint32_t LoadedModel::MeasuredHeadDim() const {
  const std::unique_ptr<Context, void (*)(Context*)> context(
      api_.llama_init_from_model(model_, ParametersFor(api_, 32, 32, 1, kProbeType)), api_.llama_free);
  if (context == nullptr) Fail("no context of this model");
  int32_t token = 0;
  int32_t position = 0;
  int32_t count = 1;
  int32_t sequence = 0;
  int32_t* sequences = &sequence;
  int8_t output = 1;
  if (api_.llama_decode(context.get(), {1, &token, nullptr, &position, &count, &sequences, &output}) != 0) {
    Fail("llama.cpp does not evaluate a token of this model");
  }
  std::vector<uint8_t> state(api_.llama_state_seq_get_size(context.get(), 0));
  state.resize(api_.llama_state_seq_get_data(context.get(), state.data(), state.size(), 0));
  if (state.empty()) Fail("llama.cpp does not give the state of a token of this model");
  StateShape shape;
  try {
    shape = ShapeOf(state);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string("model: expected keys and values of one size in every layer; ") +
                             error.what());
  }
  const uint64_t head_bytes = uint64_t{heads()} * kProbeBytes;
  if (shape.layers != layers() || shape.row_bytes == 0 || shape.row_bytes % head_bytes != 0) {
    throw std::runtime_error("model: expected " + std::to_string(heads()) + " KV heads in each of " +
                             std::to_string(layers()) + " layers, got rows of " + std::to_string(shape.row_bytes) +
                             " bytes in " + std::to_string(shape.layers));
  }
  return static_cast<uint32_t>(shape.row_bytes / head_bytes);
}

std::string LoadedModel::description() const {
  char text[256];
  return api_.llama_model_desc(model_, text, sizeof(text)) < 0 ? "" : text;
}

std::vector<int32_t> LoadedModel::Tokenize(const std::string& text, bool add_special, bool parse_special) const {
  // At most one token a byte, and a special one at each end.
  std::vector<int32_t> tokens(text.size() + 2);
  const int32_t count = api_.llama_tokenize(vocabulary_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                            static_cast<int32_t>(tokens.size()), add_special, parse_special);
  if (count < 0) Fail("the text has no tokens in this vocabulary");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string LoadedModel::Piece(int32_t token) const {
  if (token < 0 || token >= api_.llama_vocab_n_tokens(vocabulary_)) {
    throw std::runtime_error("token: expected one of the vocabulary, got " + std::to_string(token));
  }
  std::string text(64, '\0');
  int32_t size =
      api_.llama_token_to_piece(vocabulary_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  if (size < 0) {
    text.resize(static_cast<size_t>(-size));
    size = api_.llama_token_to_piece(vocabulary_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  }
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

std::string LoadedModel::Chat(const std::vector<std::string>& roles, const std::vector<std::string>& texts,
                              bool asks) const {
  const char* form = api_.llama_model_chat_template(model_, nullptr);
  if (form == nullptr) throw std::runtime_error("model: expected one with a chat template");
  std::vector<ChatMessage> messages;
  size_t size = 256;
  for (size_t i = 0; i < roles.size(); ++i) {
    messages.push_back({roles[i].c_str(), texts[i].c_str()});
    size += 64 + 2 * (roles[i].size() + texts[i].size());
  }
  std::string text(size, '\0');
  const auto apply = [&] {
    return api_.llama_chat_apply_template(form, messages.data(), messages.size(), asks, text.data(),
                                          static_cast<int32_t>(text.size()));
  };
  int32_t length = apply();
  if (length > static_cast<int32_t>(text.size())) {
    text.resize(static_cast<size_t>(length));
    length = apply();
  }
  if (length < 0) throw std::runtime_error("model: expected a chat template that llama.cpp knows");
  text.resize(static_cast<size_t>(length));
  return text;
}

Cache::Cache(std::shared_ptr<LoadedModel> model, const CacheOptions& options)
    : model_(std::move(model)), api_(model_->api()), options_(options) {
  if (options.sequences < 1 || options.sequences > 255 || options.batch < 1 || options.cells < options.batch ||
      options.batch <= options.sequences) {
    throw std::runtime_error("options: expected 1 to 255 sequences, a larger batch and at least as many cells");
  }
  const ContextParameters parameters =
      ParametersFor(api_, options.cells, options.batch, options.sequences, options.element_type);
  TakeLoggedErrors();
  context_ = api_.llama_init_from_model(model_->get(), parameters);
  if (context_ == nullptr) Fail("no context of this model");
  memory_ = api_.llama_get_memory(context_);
  shape_ = {model_->layers(), options.element_type,
            uint64_t{model_->heads()} * model_->head_dim() * options.element_bytes};
}

Cache::~Cache() { api_.llama_free(context_); }

std::vector<float> Cache::Evaluate(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                                   std::span<const int32_t> sequences, std::span<const uint8_t> outputs) {
  const size_t count = tokens.size();
  if (count < 1 || count > options_.batch || positions.size() != count || sequences.size() != count ||
      outputs.size() != count) {
    throw std::runtime_error("batch: expected 1 to " + std::to_string(options_.batch) +
                             " tokens, each with position, sequence and output, got " + std::to_string(count));
  }
  const int32_t vocabulary_size = api_.llama_vocab_n_tokens(model_->vocabulary());
  std::vector<int32_t> token(tokens.begin(), tokens.end());
  std::vector<int32_t> position(positions.begin(), positions.end());
  std::vector<int32_t> sequence(sequences.begin(), sequences.end());
  std::vector<int32_t> counts(count, 1);
  std::vector<int32_t*> lists(count);
  std::vector<int8_t> wanted(count);
  size_t rows = 0;
  for (size_t i = 0; i < count; ++i) {
    CheckSequence(sequence[i]);
    if (token[i] < 0 || token[i] >= vocabulary_size) {
      throw std::runtime_error("batch.tokens: expected tokens of the vocabulary, got " + std::to_string(token[i]));
    }
    lists[i] = &sequence[i];
    wanted[i] = outputs[i] != 0;
    rows += outputs[i] != 0;
  }
  if (rows > options_.sequences) throw std::runtime_error("batch.outputs: expected at most one a sequence");
  TakeLoggedErrors();
  const int32_t status = api_.llama_decode(context_, {static_cast<int32_t>(count), token.data(), nullptr,
                                                      position.data(), counts.data(), lists.data(), wanted.data()});
  if (status != 0) Fail("llama.cpp did not evaluate the batch (status " + std::to_string(status) + ")");
  std::vector<float> logits;
  logits.reserve(rows * static_cast<size_t>(vocabulary_size));
  for (size_t i = 0; i < count; ++i) {
    if (wanted[i] == 0) continue;
    const float* row = api_.llama_get_logits_ith(context_, static_cast<int32_t>(i));
    if (row == nullptr) Fail("llama.cpp has no logits of the batch");
    logits.insert(logits.end(), row, row + vocabulary_size);
  }
  return logits;
}

void Cache::Truncate(int32_t sequence, int32_t from) {
  CheckSequence(sequence);
  if (!api_.llama_memory_seq_rm(memory_, sequence, from, -1)) Fail("llama.cpp does not remove a part of a sequence");
}

int32_t Cache::LastPosition(int32_t sequence) const {
  CheckSequence(sequence);
  return api_.llama_memory_seq_pos_max(memory_, sequence);
}

void Cache::Export(int32_t sequence, const BlockShape& form, const BlockRun& run, std::span<uint8_t> memory) {
  CheckSequence(sequence);
  if (run.from < 0 || run.to <= run.from || LastPosition(sequence) < run.to - 1) {
    throw std::runtime_error("run: expected tokens that the sequence has");
  }
  api_.llama_memory_seq_cp(memory_, sequence, scratch(), run.from, run.to);
  TakeLoggedErrors();
  state_.resize(StateBytes(shape_, static_cast<size_t>(run.to - run.from)));
  const size_t size = api_.llama_state_seq_get_data(context_, state_.data(), state_.size(), scratch());
  api_.llama_memory_seq_rm(memory_, scratch(), -1, -1);
  if (size == 0) Fail("llama.cpp does not give the state of the sequence");
  StateToBlocks({state_.data(), size}, shape_, form, run, memory);
}

void Cache::Import(int32_t sequence, const BlockShape& form, const BlockRun& run, std::span<const uint8_t> memory) {
  CheckSequence(sequence);
  if (LastPosition(sequence) + 1 != run.from) {
    throw std::runtime_error("run.from: expected " + std::to_string(LastPosition(sequence) + 1) +
                             ", the sequence's end, got " + std::to_string(run.from));
  }
  BlocksToState(memory, shape_, form, run, state_);
  TakeLoggedErrors();
  if (api_.llama_state_seq_set_data(context_, state_.data(), state_.size(), scratch()) != state_.size()) {
    api_.llama_memory_seq_rm(memory_, scratch(), -1, -1);
    Fail("llama.cpp does not take the state");
  }
  api_.llama_memory_seq_cp(memory_, scratch(), sequence, run.from, run.to);
  api_.llama_memory_seq_rm(memory_, scratch(), -1, -1);
}

void Cache::CheckSequence(int32_t sequence) const {
  if (sequence < 0 || sequence >= scratch()) {
    throw std::runtime_error("sequence: expected one of " + std::to_string(options_.sequences) + ", got " +
                             std::to_string(sequence));
  }
}

}  // namespace state_handoff::llama
