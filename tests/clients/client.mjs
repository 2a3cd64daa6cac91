// Tests OpenAI's JavaScript client with a server: node client.mjs http://127.0.0.1:8080/v1 [key]
//
// Needs `npm install openai` in the current directory. The last line that it prints is the model's answer.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The package is looked for where the command is run, not where this file lies.
const wanted = createRequire(pathToFileURL(process.cwd() + "/")).resolve("openai");
const { default: OpenAI, BadRequestError, NotFoundError } = await import(pathToFileURL(wanted));

const baseURL = process.argv[2] ?? "http://127.0.0.1:8080/v1";
const client = new OpenAI({ baseURL, apiKey: process.argv[3] ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story about a fox and a lantern" }];
const options = { model, messages, max_tokens: 20, temperature: 0 };

const whole = await client.chat.completions.create({ ...options, logprobs: true, top_logprobs: 2 });
const text = whole.choices[0].message.content;
assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);

let streamed = "", usage;
const stream = await client.chat.completions.create({ ...options, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
const runner = client.chat.completions.stream(options);
assert.equal(await runner.finalContent(), text);

// Somebody who goes away in the middle, and comes again.
const abandoned = await client.chat.completions.create({ ...options, max_tokens: 200, stream: true });
for await (const _ of abandoned) break;
assert.equal((await client.chat.completions.create(options)).choices[0].message.content, text);

const schema = {
  type: "object",
  properties: { kind: { enum: ["fox", "bear"] }, age: { type: "integer", minimum: 0, maximum: 20 } },
  required: ["kind", "age"],
  additionalProperties: false,
};
const isPet = (pet) => assert(["fox", "bear"].includes(pet.kind) && pet.age >= 0 && pet.age <= 20);
const format = { type: "json_schema", json_schema: { name: "pet", strict: true, schema } };
isPet(JSON.parse((await client.chat.completions.create({ model, messages, response_format: format })).choices[0].message.content));

try {
  const tools = [{ type: "function", function: { name: "adopt", parameters: schema } }];
  const wanted = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false };
  const [call] = (await client.chat.completions.create(wanted)).choices[0].message.tool_calls;
  assert.equal(call.function.name, "adopt");
  isPet(JSON.parse(call.function.arguments));
} catch (refusal) {
  if (!(refusal instanceof BadRequestError && refusal.message.includes("knows no tools"))) throw refusal;
  console.log("openai (JavaScript): functions skipped, the model's chat template knows none");
}

const response = await client.responses.create({ model, input: messages[0].content, max_output_tokens: 20, temperature: 0 });
assert.equal(response.output_text, text);
await assert.rejects(client.chat.completions.create({ ...options, model: "another" }), NotFoundError);
await assert.rejects(client.embeddings.create({ model, input: "x" }), NotFoundError);
const long = [{ role: "user", content: "x ".repeat(200000) }];
await assert.rejects(client.chat.completions.create({ ...options, messages: long }), BadRequestError);
console.log(JSON.stringify(text));
