// One language model in an app. A model is used by one call at a time, on any thread. Strings are null-terminated UTF-8.

#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// A loaded model and its conversation.
typedef struct LanguageModel LanguageModel;

/// Receives a piece of a reply: whole characters, `length` bytes, not null-terminated. Returns false to stop the reply.
typedef bool (*LanguageModelText)(void *user_data, const char *text, size_t length);

/// Loads the model whose files are in `directory`. `context` is the context length in tokens; 0 is the default. `experts` is NULL
/// (in memory), or "stream" or "stream:2G" (on disk, with a cache of that size; only for mixture-of-experts models).
/// Returns NULL on an error. `error` may be NULL; else it receives a message, which language_model_free_error frees.
LanguageModel *language_model_open(const char *directory, uint32_t context, const char *experts, char **error);

/// Adds a user message to the conversation, and generates the reply: up to `max_tokens` tokens, sampled with `seed`. Blocks until
/// the reply ends. `on_text` is called on the same thread. On an error returns false, and the message is removed.
bool language_model_reply(LanguageModel *model, const char *message, size_t max_tokens, uint64_t seed,
                          LanguageModelText on_text, void *user_data, char **error);

/// Forgets the conversation. The model stays loaded.
void language_model_clear(LanguageModel *model);

/// Frees a model. NULL is allowed.
void language_model_free(LanguageModel *model);

/// Frees a message of `error`. NULL is allowed.
void language_model_free_error(char *message);
