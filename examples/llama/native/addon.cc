// The JavaScript face of the example's addon: a model, and caches of it. Evaluation runs on a worker thread; until it
// ends every other call on that cache is refused. Arguments are checked before they reach llama.cpp, which asserts.
#include <napi.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "loaded_model.h"

namespace state_handoff::llama {
namespace {

template <typename Function>
auto Guarded(Napi::Env env, Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    throw Napi::Error::New(env, error.what());
  }
}

[[noreturn]] void RefuseArgument(Napi::Env env, const std::string& name, const std::string& expected) {
  throw Napi::TypeError::New(env, name + ": expected " + expected);
}

std::string TextOf(const Napi::Value& value, const char* name) {
  if (!value.IsString()) RefuseArgument(value.Env(), name, "text");
  return value.As<Napi::String>().Utf8Value();
}

int32_t IntegerOf(const Napi::Value& value, const char* name, double minimum, double maximum) {
  const double number = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : minimum - 1;
  if (!(number >= minimum && number <= maximum) || number != static_cast<double>(static_cast<int64_t>(number))) {
    RefuseArgument(value.Env(), name,
                   "an integer from " + std::to_string(static_cast<int64_t>(minimum)) + " to " +
                       std::to_string(static_cast<int64_t>(maximum)));
  }
  return static_cast<int32_t>(number);
}

std::span<int32_t> IntegersOf(const Napi::Value& value, const char* name) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_int32_array) {
    RefuseArgument(value.Env(), name, "an Int32Array");
  }
  auto array = value.As<Napi::Int32Array>();
  return {array.Data(), array.ElementLength()};
}

std::span<uint8_t> BytesOf(const Napi::Value& value, const char* name) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) {
    RefuseArgument(value.Env(), name, "a Uint8Array");
  }
  auto array = value.As<Napi::Uint8Array>();
  return {array.Data(), array.ElementLength()};
}

Napi::Value FieldOf(const Napi::Value& value, const char* name) {
  if (!value.IsObject()) RefuseArgument(value.Env(), name, "an object that has it");
  return value.As<Napi::Object>().Get(name);
}

struct ElementType {
  const char* name;
  int32_t number;
  uint64_t bytes;
};

// llama.cpp's numbers of the types whose elements stand alone.
constexpr ElementType kElementTypes[] = {{"float32", 0, 4}, {"float16", 1, 2}, {"bfloat16", 30, 2}};

const ElementType& ElementTypeOf(const Napi::Value& value) {
  const std::string name = TextOf(value, "dtype");
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return type;
  }
  RefuseArgument(value.Env(), "dtype", "float32, float16 or bfloat16");
}

class JsModel : public Napi::ObjectWrap<JsModel> {
 public:
  static Napi::Function Define(Napi::Env env) {
    return DefineClass(env, "NativeModel",
                       {InstanceMethod<&JsModel::Tokenize>("tokenize"), InstanceMethod<&JsModel::Piece>("piece"),
                        InstanceMethod<&JsModel::Chat>("chat"), InstanceMethod<&JsModel::EndsText>("endsText"),
                        InstanceAccessor<&JsModel::Facts>("facts")});
  }

  explicit JsModel(const Napi::CallbackInfo& info) : Napi::ObjectWrap<JsModel>(info) {
    const std::string folder = TextOf(info[0], "libraryFolder");
    const std::string path = TextOf(info[1], "modelFile");
    model_ = Guarded(info.Env(), [&] { return std::make_shared<LoadedModel>(folder, path); });
  }

  const std::shared_ptr<LoadedModel>& model() const { return model_; }

 private:
  Napi::Value Tokenize(const Napi::CallbackInfo& info) {
    const std::string text = TextOf(info[0], "text");
    const bool special = info[1].ToBoolean();
    return Guarded(info.Env(), [&] {
      const std::vector<int32_t> tokens = model_->Tokenize(text, special, special);
      auto array = Napi::Int32Array::New(info.Env(), tokens.size());
      std::copy(tokens.begin(), tokens.end(), array.Data());
      return array;
    });
  }

  Napi::Value Piece(const Napi::CallbackInfo& info) {
    const int32_t token = IntegerOf(info[0], "token", 0, INT32_MAX);
    return Guarded(info.Env(), [&] {
      const std::string text = model_->Piece(token);
      return Napi::Buffer<char>::Copy(info.Env(), text.data(), text.size());
    });
  }

  Napi::Value Chat(const Napi::CallbackInfo& info) {
    if (!info[0].IsArray()) RefuseArgument(info.Env(), "messages", "a list of [role, text]");
    const auto list = info[0].As<Napi::Array>();
    std::vector<std::string> roles;
    std::vector<std::string> texts;
    for (uint32_t i = 0; i < list.Length(); ++i) {
      const Napi::Value pair = list.Get(i);
      if (!pair.IsArray()) RefuseArgument(info.Env(), "messages", "a list of [role, text]");
      roles.push_back(TextOf(pair.As<Napi::Array>().Get(0u), "role"));
      texts.push_back(TextOf(pair.As<Napi::Array>().Get(1u), "text"));
    }
    const bool asks = info[1].ToBoolean();
    return Guarded(info.Env(), [&] { return Napi::String::New(info.Env(), model_->Chat(roles, texts, asks)); });
  }

  Napi::Value EndsText(const Napi::CallbackInfo& info) {
    const int32_t last = model_->api().llama_vocab_n_tokens(model_->vocabulary()) - 1;
    const int32_t token = IntegerOf(info[0], "token", 0, last);
    return Napi::Boolean::New(info.Env(), model_->api().llama_vocab_is_eog(model_->vocabulary(), token));
  }

  Napi::Value Facts(const Napi::CallbackInfo& info) {
    auto facts = Napi::Object::New(info.Env());
    facts["description"] = model_->description();
    facts["layers"] = model_->layers();
    facts["heads"] = model_->heads();
    facts["headDim"] = model_->head_dim();
    facts["vocabulary"] = model_->api().llama_vocab_n_tokens(model_->vocabulary());
    facts["trainedLength"] = model_->api().llama_model_n_ctx_train(model_->get());
    facts["release"] = model_->api().llama_version();
    return facts;
  }

  std::shared_ptr<LoadedModel> model_;
};

class JsCache;

// One evaluation on a worker thread. It holds the JavaScript object, so that nothing goes away under it.
class Evaluation : public Napi::AsyncWorker {
 public:
  Evaluation(Napi::Env env, Napi::Object owner, std::shared_ptr<Cache> cache, bool* is_busy)
      : Napi::AsyncWorker(env, "llama evaluation"),
        deferred_(Napi::Promise::Deferred::New(env)),
        owner_(Napi::Persistent(owner)),
        cache_(std::move(cache)),
        is_busy_(is_busy) {}

  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override { logits_ = cache_->Evaluate(tokens, positions, sequences, outputs); }

  void OnOK() override {
    *is_busy_ = false;
    auto array = Napi::Float32Array::New(Env(), logits_.size());
    std::copy(logits_.begin(), logits_.end(), array.Data());
    deferred_.Resolve(array);
  }

  void OnError(const Napi::Error& error) override {
    *is_busy_ = false;
    deferred_.Reject(error.Value());
  }

  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequences;
  std::vector<uint8_t> outputs;

 private:
  Napi::Promise::Deferred deferred_;
  Napi::ObjectReference owner_;
  std::shared_ptr<Cache> cache_;
  bool* is_busy_;
  std::vector<float> logits_;
};

class JsCache : public Napi::ObjectWrap<JsCache> {
 public:
  static Napi::Function Define(Napi::Env env) {
    return DefineClass(
        env, "NativeCache",
        {InstanceMethod<&JsCache::Evaluate>("evaluate"), InstanceMethod<&JsCache::Truncate>("truncate"),
         InstanceMethod<&JsCache::LastPosition>("lastPosition"), InstanceMethod<&JsCache::Export>("exportBlocks"),
         InstanceMethod<&JsCache::Import>("importBlocks"), InstanceMethod<&JsCache::Close>("close"),
         InstanceAccessor<&JsCache::RowBytes>("rowBytes")});
  }

  explicit JsCache(const Napi::CallbackInfo& info) : Napi::ObjectWrap<JsCache>(info) {
    if (!info[0].IsObject() || !info[0].As<Napi::Object>().InstanceOf(ModelClass(info.Env()).Value())) {
      RefuseArgument(info.Env(), "model", "a NativeModel");
    }
    const auto& model = JsModel::Unwrap(info[0].As<Napi::Object>())->model();
    const ElementType& type = ElementTypeOf(FieldOf(info[1], "dtype"));
    const CacheOptions options{
        static_cast<uint32_t>(IntegerOf(FieldOf(info[1], "cells"), "cells", 1, 1 << 22)),
        static_cast<uint32_t>(IntegerOf(FieldOf(info[1], "sequences"), "sequences", 1, 255)),
        static_cast<uint32_t>(IntegerOf(FieldOf(info[1], "batch"), "batch", 1, 1 << 16)),
        type.number,
        type.bytes,
    };
    cache_ = Guarded(info.Env(), [&] { return std::make_shared<Cache>(model, options); });
  }

  static Napi::FunctionReference& ModelClass(Napi::Env env) { return *env.GetInstanceData<Napi::FunctionReference>(); }

 private:
  Cache& Idle(Napi::Env env) {
    if (cache_ == nullptr) throw Napi::Error::New(env, "the cache was closed");
    if (is_busy_) throw Napi::Error::New(env, "the cache evaluates; wait for its end");
    return *cache_;
  }

  Napi::Value Evaluate(const Napi::CallbackInfo& info) {
    Idle(info.Env());
    const auto tokens = IntegersOf(info[0], "tokens");
    const auto positions = IntegersOf(info[1], "positions");
    const auto sequences = IntegersOf(info[2], "sequences");
    const auto outputs = BytesOf(info[3], "outputs");
    auto* evaluation = new Evaluation(info.Env(), info.This().As<Napi::Object>(), cache_, &is_busy_);
    evaluation->tokens.assign(tokens.begin(), tokens.end());
    evaluation->positions.assign(positions.begin(), positions.end());
    evaluation->sequences.assign(sequences.begin(), sequences.end());
    evaluation->outputs.assign(outputs.begin(), outputs.end());
    const Napi::Promise promise = evaluation->promise();
    is_busy_ = true;
    evaluation->Queue();
    return promise;
  }

  void Truncate(const Napi::CallbackInfo& info) {
    Cache& cache = Idle(info.Env());
    const int32_t sequence = IntegerOf(info[0], "sequence", 0, 254);
    const int32_t from = IntegerOf(info[1], "from", 0, INT32_MAX);
    Guarded(info.Env(), [&] { cache.Truncate(sequence, from); });
  }

  Napi::Value LastPosition(const Napi::CallbackInfo& info) {
    Cache& cache = Idle(info.Env());
    const int32_t sequence = IntegerOf(info[0], "sequence", 0, 254);
    return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), cache.LastPosition(sequence)); });
  }

  // (sequence, from, to, blocks, form, memory), for both directions.
  template <typename Move>
  void MoveBlocks(const Napi::CallbackInfo& info, Move&& move) {
    Cache& cache = Idle(info.Env());
    const int32_t sequence = IntegerOf(info[0], "sequence", 0, 254);
    const BlockRun run{IntegerOf(info[1], "from", 0, INT32_MAX), IntegerOf(info[2], "to", 1, INT32_MAX),
                       IntegersOf(info[3], "blocks")};
    const auto stride = [&](const char* name) {
      return static_cast<uint64_t>(IntegerOf(FieldOf(info[4], name), name, 1, INT32_MAX));
    };
    const BlockShape form{static_cast<uint32_t>(stride("blockTokens")), stride("blockStride"), stride("layerStride"),
                          stride("planeStride")};
    const auto memory = BytesOf(info[5], "memory");
    Guarded(info.Env(), [&] { move(cache, sequence, form, run, memory); });
  }

  void Export(const Napi::CallbackInfo& info) {
    MoveBlocks(info, [](Cache& cache, int32_t sequence, const BlockShape& form, const BlockRun& run,
                        std::span<uint8_t> memory) { cache.Export(sequence, form, run, memory); });
  }

  void Import(const Napi::CallbackInfo& info) {
    MoveBlocks(info, [](Cache& cache, int32_t sequence, const BlockShape& form, const BlockRun& run,
                        std::span<uint8_t> memory) { cache.Import(sequence, form, run, memory); });
  }

  Napi::Value RowBytes(const Napi::CallbackInfo& info) {
    return Napi::Number::New(info.Env(), static_cast<double>(Idle(info.Env()).shape().row_bytes));
  }

  void Close(const Napi::CallbackInfo& info) {
    if (cache_ == nullptr) return;
    Idle(info.Env());
    cache_.reset();
  }

  std::shared_ptr<Cache> cache_;
  bool is_busy_ = false;
};

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  const Napi::Function model = JsModel::Define(env);
  env.SetInstanceData(new Napi::FunctionReference(Napi::Persistent(model)));
  exports["NativeModel"] = model;
  exports["NativeCache"] = JsCache::Define(env);
  return exports;
}

NODE_API_MODULE(llama_state, Init)

}  // namespace
}  // namespace state_handoff::llama
