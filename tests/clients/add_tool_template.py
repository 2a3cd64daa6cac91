#!/usr/bin/env python3
"""Copies a crate's files with a chat template that supports tools: add_tool_template.py CRATE OUT

The example model was not trained to call functions. With this template the server accepts tools, and its grammar forces
valid calls, so clients can be tested with them.
"""
import json
import os
import pathlib
import shutil
import sys

crate, out = map(pathlib.Path, sys.argv[1:3])
TEMPLATE = """{{ bos_token }}
{%- if tools %}{{ '<|user|>' ~ (tools | tojson) ~ '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|assistant|>' ~ (message.content or '') }}
{%- for call in message.tool_calls or [] %}{% set call = call.function %}
{{- '<tool_call>{"name": "' ~ call.name ~ '", "arguments": ' ~ (call.arguments | tojson) ~ '}</tool_call>' }}
{%- endfor %}{{ '<|end|>' }}
{%- else %}{{ '<|user|>' ~ (message.content | trim) ~ '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)
for file in crate.resolve().iterdir():
    if file.is_file() and file.name != "tokenizer_config.json":
        os.symlink(file, out / file.name)
config = json.loads((crate / "tokenizer_config.json").read_text())
config["chat_template"] = TEMPLATE
(out / "tokenizer_config.json").write_text(json.dumps(config))
