#!/usr/bin/env python3
"""Tests third-party clients with a server: clients.py http://127.0.0.1:8080/v1 [key]

Uses those of openai, litellm and langchain-openai that are installed, and reports the others as skipped. The server's
model needs a chat template. All clients must receive the same text.
"""
import importlib.util
import json
import os
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
request = urllib.request.Request(URL + "/models", headers={"Authorization": "Bearer " + KEY})
MODEL = json.load(urllib.request.urlopen(request))["data"][0]["id"]
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox and a lantern"}]
PET = {"type": "object", "properties": {"kind": {"enum": ["fox", "bear"]}, "age": {"type": "integer", "minimum": 0, "maximum": 20}},
       "required": ["kind", "age"], "additionalProperties": False}


def is_pet(pet):
    return pet["kind"] in ("fox", "bear") and 0 <= pet["age"] <= 20


def openai():
    import openai

    client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
    model = MODEL
    assert client.models.list().data[0].id == client.models.retrieve(model).id == model
    options = dict(model=model, messages=MESSAGES, max_tokens=20, temperature=0)
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 20 and len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    form = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": PET}}
    pet = client.chat.completions.create(model=model, messages=MESSAGES, response_format=form)
    assert is_pet(json.loads(pet.choices[0].message.content))
    several = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=1.5)
    assert len(several.choices) == 2
    plain = client.completions.create(model=model, prompt=["Once there was", "One day"], max_tokens=8, temperature=0, logprobs=1)
    assert len(plain.choices) == 2 and plain.choices[0].text
    tools = [{"type": "function", "function": {"name": "adopt", "parameters": PET}}]
    try:
        wanted = dict(model=model, messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False)
        call = client.chat.completions.create(**wanted).choices[0].message.tool_calls[0]
        assert call.function.name == "adopt" and is_pet(json.loads(call.function.arguments))
        with client.chat.completions.stream(**wanted) as stream:
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert call.function.name == "adopt" and is_pet(json.loads(call.function.arguments))
    except openai.BadRequestError as error:
        assert "knows no tools" in error.message, error
        print("openai: functions skipped, the model's chat template knows none")
    response = client.responses.create(model=model, input=MESSAGES[0]["content"], max_output_tokens=20, temperature=0)
    assert response.output_text == text, (response.output_text, text)
    with client.responses.stream(model=model, input="x", temperature=0,
                                 text={"format": {"type": "json_schema", "name": "pet", "schema": PET, "strict": True}}) as stream:
        assert is_pet(json.loads(stream.get_final_response().output_text))
    for expected, request in (
        (openai.NotFoundError, lambda: client.chat.completions.create(**{**options, "model": "another"})),
        (openai.NotFoundError, lambda: client.embeddings.create(model=model, input="x")),
        (openai.BadRequestError, lambda: client.chat.completions.create(**{**options, "messages": [{"role": "user", "content": "x " * 200000}]})),
    ):
        try:
            request()
            raise AssertionError("that should have been rejected")
        except expected as error:
            assert error.message
    return text


def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    options = dict(model="openai/" + MODEL, api_base=URL, api_key=KEY, messages=MESSAGES, max_tokens=20, temperature=0)
    text = litellm.completion(**options).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, stream=True)) == text
    return text


def langchain_openai():
    from langchain_openai import ChatOpenAI

    def chat(**more):
        return ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, temperature=0, **more)

    model = chat(max_tokens=20)
    text = model.invoke(MESSAGES[0]["content"]).content
    assert "".join(chunk.content for chunk in model.stream(MESSAGES[0]["content"])) == text
    assert len(model.batch(["a fox", "a bear"])) == 2
    assert is_pet(chat().with_structured_output({"title": "pet", **PET}, method="json_schema").invoke("a fox"))
    return text


texts = {}
for name, use in (("openai", openai), ("litellm", litellm), ("langchain_openai", langchain_openai)):
    if importlib.util.find_spec(name) is None:
        print(f"{name}: skipped, it is not installed (pip install {name.replace('_', '-')})")
        continue
    texts[name] = use()
    print(f"{name}: {texts[name]!r}")
if len(set(texts.values())) > 1:
    sys.exit("clients received different texts")
