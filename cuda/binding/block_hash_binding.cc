// Block hashes as JavaScript sees them: at once, or as work of the process's thread pool that settles a promise.
//
// Work in flight owns copies of everything, so that nothing of JavaScript is touched off its thread. Node waits for
// such work when an environment ends; what cannot be delivered any more is dropped.
#include <optional>

#include "../core/block_hash.h"
#include "memory_arguments.h"
#include "memory_objects.h"

namespace state_handoff {

namespace {

constexpr int64_t kBlockSizeMax = int64_t{1} << 30;

const Sha256& RequireSha256() {
  const Sha256* sha256 = FindSha256();
  if (sha256 == nullptr) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                      "hashing failed because this process exports no SHA-256; hash with node:crypto instead");
  }
  return *sha256;
}

Napi::Value BlockHashBackend(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), FindSha256() == nullptr ? "none" : "openssl");
}

TokenList TokensOf(const Napi::Value& value) {
  if (value.IsTypedArray()) {
    switch (value.As<Napi::TypedArray>().TypedArrayType()) {
      case napi_int32_array: {
        const Borrowed<int32_t> tokens = BorrowElements<int32_t>(value, "tokens");
        return {TokenKind::kInt32, tokens.data, tokens.count};
      }
      case napi_bigint64_array: {
        const Borrowed<int64_t> tokens = BorrowElements<int64_t>(value, "tokens");
        return {TokenKind::kInt64, tokens.data, tokens.count};
      }
      case napi_float64_array: {
        const Borrowed<double> tokens = BorrowElements<double>(value, "tokens");
        return {TokenKind::kDouble, tokens.data, tokens.count};
      }
      default:
        break;
    }
  }
  RefuseArgument("tokens", "an Int32Array, a BigInt64Array or a Float64Array", value);
}

size_t BytesOf(const TokenList& tokens) {
  return tokens.count * (tokens.kind == TokenKind::kInt32 ? sizeof(int32_t) : sizeof(int64_t));
}

struct Request {
  TokenList tokens;
  size_t block_size;
  Borrowed<uint8_t> parent;
  size_t first_index;
};

// Arguments: tokens, blockSize, parent, firstIndex.
Request RequestOf(const Napi::CallbackInfo& info) {
  Request request{};
  request.tokens = TokensOf(info[0]);
  request.block_size = static_cast<size_t>(WholeNumber(info[1], "blockSize", 1, kBlockSizeMax));
  request.parent = OutputElements<uint8_t>(info[2], "parent", kDigestBytes);
  request.first_index = static_cast<size_t>(WholeNumber(info[3], "firstIndex", 0, kSafeInteger));
  return request;
}

// The fifth argument is where the hashes go. `parent` is moved on, for the next part of the same prompt.
Napi::Value BlockHashes(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const Request request = RequestOf(info);
    const auto blocks = static_cast<int64_t>(request.tokens.count / request.block_size);
    const Borrowed<int64_t> out = OutputElements<int64_t>(info[4], "out", blocks);
    uint8_t parent[kDigestBytes];
    std::copy(request.parent.data, request.parent.data + kDigestBytes, parent);
    HashBlocks(RequireSha256(), request.tokens, request.block_size, parent, out.data, request.first_index);
    std::copy(parent, parent + kDigestBytes, request.parent.data);
    return info.Env().Undefined();
  });
}

struct HashJob {
  HashJob() { ++Counters().hash_jobs; }
  ~HashJob() { --Counters().hash_jobs; }

  std::vector<uint8_t> tokens;
  TokenList list;
  size_t block_size;
  size_t first_index;
  uint8_t parent[kDigestBytes];
  std::vector<int64_t> hashes;
  std::optional<NativeError> failure;
  napi_deferred deferred = nullptr;
  napi_async_work work = nullptr;
};

// On a thread of the pool.
void Execute(napi_env, void* data) {
  auto* job = static_cast<HashJob*>(data);
  try {
    HashBlocks(RequireSha256(), job->list, job->block_size, job->parent, job->hashes.data(), job->first_index);
  } catch (const NativeError& error) {
    job->failure = error;
  }
}

// On the environment's own thread, also while it ends: then no call into JavaScript succeeds, and none may throw.
void Complete(napi_env env, napi_status status, void* data) {
  const std::unique_ptr<HashJob> job(static_cast<HashJob*>(data));
  napi_delete_async_work(env, job->work);
  if (status == napi_cancelled) {
    job->failure.emplace(ErrorCode::kCLOSED, "hashing was cancelled because its environment ends");
  }
  napi_value result = nullptr;
  if (!job->failure.has_value()) {
    napi_value buffer;
    void* bytes = nullptr;
    const size_t count = job->hashes.size();
    if (napi_create_arraybuffer(env, count * sizeof(int64_t), &bytes, &buffer) != napi_ok) return;
    if (count > 0) std::memcpy(bytes, job->hashes.data(), count * sizeof(int64_t));
    if (napi_create_typedarray(env, napi_bigint64_array, count, buffer, 0, &result) != napi_ok) return;
    napi_resolve_deferred(env, job->deferred, result);
    return;
  }
  napi_value code;
  napi_value message;
  const char* text = job->failure->what();
  if (napi_create_string_utf8(env, ErrorCodeName(job->failure->code()), NAPI_AUTO_LENGTH, &code) != napi_ok) return;
  if (napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &message) != napi_ok) return;
  if (napi_create_error(env, code, message, &result) != napi_ok) return;
  napi_reject_deferred(env, job->deferred, result);
}

Napi::Value BlockHashesAsync(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const Napi::Env env = info.Env();
    const Request request = RequestOf(info);
    RequireSha256();
    auto job = std::make_unique<HashJob>();
    const auto* bytes = static_cast<const uint8_t*>(request.tokens.data);
    job->tokens.assign(bytes, bytes + BytesOf(request.tokens));
    job->list = {request.tokens.kind, job->tokens.data(), request.tokens.count};
    job->block_size = request.block_size;
    job->first_index = request.first_index;
    std::copy(request.parent.data, request.parent.data + kDigestBytes, job->parent);
    job->hashes.resize(request.tokens.count / request.block_size);
    napi_value promise;
    napi_value name;
    const auto require = [&](napi_status status) {
      if (status != napi_ok) throw NativeError(ErrorCode::kNATIVE_SYSTEM, "hashing failed because no work can start");
    };
    require(napi_create_string_utf8(env, "state-handoff:block-hashes", NAPI_AUTO_LENGTH, &name));
    require(napi_create_async_work(env, nullptr, name, Execute, Complete, job.get(), &job->work));
    require(napi_create_promise(env, &job->deferred, &promise));
    require(napi_queue_async_work(env, job->work));
    job.release();  // Complete owns it now
    return Napi::Value(env, promise);
  });
}

// Arguments: messages, messageBytes.
Napi::Value BlockHashMessages(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const Borrowed<uint8_t> messages = BorrowElements<uint8_t>(info[0], "messages");
    const auto message_bytes = static_cast<size_t>(WholeNumber(info[1], "messageBytes", kDigestBytes, kSafeInteger));
    HashMessages(RequireSha256(), messages.data, messages.count, message_bytes);
    return info.Env().Undefined();
  });
}

}  // namespace

void InitBlockHash(Napi::Env env, Napi::Object exports) {
  exports.Set("blockHashBackend", Napi::Function::New<BlockHashBackend>(env, "blockHashBackend"));
  exports.Set("blockHashes", Napi::Function::New<BlockHashes>(env, "blockHashes"));
  exports.Set("blockHashesAsync", Napi::Function::New<BlockHashesAsync>(env, "blockHashesAsync"));
  exports.Set("blockHashMessages", Napi::Function::New<BlockHashMessages>(env, "blockHashMessages"));
}

}  // namespace state_handoff
