// Calls the library of examples/apple-app as an app does, with the model in the directory of the first argument.

#include "language_model.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char text[4096];
    int pieces;
    int limit;
} Reply;

static bool on_text(void *user_data, const char *text, size_t length) {
    Reply *reply = user_data;
    strncat(reply->text, text, length);
    reply->pieces++;
    return reply->pieces < reply->limit;
}

static bool reply(LanguageModel *model, const char *message, Reply *reply, char **error) {
    return language_model_reply(model, message, 40, 7, on_text, reply, error);
}

// Frees a message that has to contain a text.
static void check_error(char *error, const char *expected) {
    assert(error != NULL);
    if (strstr(error, expected) == NULL) printf("%s, expected: %s\n", error, expected);
    assert(strstr(error, expected) != NULL);
    language_model_free_error(error);
}

int main(int count, char **arguments) {
    assert(count == 2);
    const char *directory = arguments[1], *question = "Tell me a story about a goat";
    char *error = NULL;
    assert(language_model_open("nowhere", 0, NULL, NULL) == NULL);
    assert(language_model_open(NULL, 0, NULL, &error) == NULL);
    check_error(error, "directory is null");
    assert(language_model_open("nowhere", 0, NULL, &error) == NULL);
    check_error(error, "nowhere");
    assert(language_model_open(directory, 0, "stream", &error) == NULL);
    check_error(error, "not a mixture-of-experts model");
    assert(language_model_open(directory, 0, "some", &error) == NULL);
    check_error(error, "expected `resident`");

    LanguageModel *model = language_model_open(directory, 512, NULL, &error);
    assert(model != NULL);
    Reply first = {.limit = 1000}, again = {.limit = 1000}, stopped = {.limit = 3};
    assert(!reply(NULL, question, &first, &error));
    check_error(error, "model is null");
    assert(!reply(model, NULL, &first, &error));
    check_error(error, "message is null");
    assert(!reply(model, "caf\xe9", &first, &error));
    check_error(error, "message is not UTF-8");
    assert(!language_model_reply(model, question, 40, 7, NULL, NULL, &error));
    check_error(error, "on_text is null");
    assert(reply(model, question, &first, NULL) && first.pieces > 20);
    assert(reply(model, "What did the goat want?", &again, NULL) && again.pieces > 0);
    language_model_clear(model);
    // The same seed gives the same text.
    assert(reply(model, question, &stopped, NULL) && stopped.pieces == 3);
    assert(strncmp(first.text, stopped.text, strlen(stopped.text)) == 0);
    language_model_free(model);
    language_model_free(NULL);
    language_model_clear(NULL);
    language_model_free_error(NULL);
    printf("%s\n%s\n", first.text, again.text);
    return 0;
}
