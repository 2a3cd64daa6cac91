//! Chat templates: rendering as in transformers, for every test model.

use forge_runtime::text::chat_template::{Conversation, Message, Template};
use forge_runtime::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    let mut models: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.sort();
    models
}

fn render(source: &str, messages: &Value, tools: &[Value], variables: &Value) -> Result<String, String> {
    let specials = json!({ "bos_token": "<s>", "eos_token": "</s>" });
    let template =
        Template::new(source, None, specials.as_object().unwrap().clone()).map_err(|f| f.to_string())?;
    let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
    let variables = variables.as_object().cloned().unwrap_or_default();
    let conversation =
        Conversation { messages: &messages, tools, variables: &variables, add_generation_prompt: true };
    template.render(&conversation).map_err(|failure| failure.to_string())
}

#[test]
fn chat_templates_match_hugging_face() {
    let mut chats = 0;
    for model in models() {
        let golden = std::fs::read(model.join("tokenizer_golden.json")).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        let template = Template::read(&model).unwrap().unwrap();
        let text = Tokenizer::read(&model.join("tokenizer.json")).unwrap();
        for chat in golden["chats"].as_array().unwrap() {
            let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap();
            let answer = chat["add_generation_prompt"].as_bool().unwrap();
            let conversation = Conversation {
                messages: &messages,
                tools: &[],
                variables: &Map::new(),
                add_generation_prompt: answer,
            };
            let rendered = template.render(&conversation).unwrap();
            assert_eq!(rendered, chat["rendered"].as_str().unwrap(), "{}", model.display());
            let ids: Vec<u32> = serde_json::from_value(chat["ids"].clone()).unwrap();
            assert_eq!(text.encode(&rendered, false).unwrap(), ids, "{}", model.display());
            chats += 1;
        }
    }
    assert!(chats >= 6 * 9, "{chats} chats");
}

#[test]
fn templates_match_jinja2() {
    let messages = json!([{ "role": "user", "content": " Hi, caf\u{e9} <b> \"x\"\n" }]);
    let tools = [
        json!({ "type": "function", "function": { "name": "f", "parameters": { "z": 1, "a": [1.5, null, true, {}] } } }),
    ];
    for (source, expected) in [
        // Methods of strings and dictionaries.
        ("{{ messages[0].content.strip().split(',')[0] }}", "Hi"),
        ("{% for k, v in messages[0].items() %}{{ k }};{% endfor %}", "role;content;"),
        ("{{ messages[0].get('name', 'none') }}", "none"),
        ("{{ messages[0]['content'].startswith(' Hi') }}", "True"),
        // Block tags leave no empty lines.
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% generation %}\na{% endgeneration %}\nb", "ab"),
        // JSON.
        ("{{ messages[0].content | tojson }}", "\" Hi, caf\u{e9} <b> \\\"x\\\"\\n\""),
        (
            "{{ tools[0].function | tojson }}",
            r#"{"name": "f", "parameters": {"z": 1, "a": [1.5, null, true, {}]}}"#,
        ),
        ("{{ tools[0].function.parameters.a[:2] | tojson(indent=2) }}", "[\n  1.5,\n  null\n]"),
        // Undefined values.
        ("{{ bos_token }}{{ nothing }}{{ tools is none }}{{ documents is none }}", "<s>FalseTrue"),
        ("{{ 'on' if enable_thinking is defined and enable_thinking else 'off' }}", "on"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ messages[::-1] | length }}{{ 'x' * 3 if false else '' }}{{ messages | length }}", "11"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ messages[0].content is string }}{{ tools is mapping }}{{ tools is iterable }}", "TrueFalseTrue"),
    ] {
        let rendered = render(source, &messages, &tools, &json!({ "enable_thinking": true }));
        assert_eq!(rendered.as_deref(), Ok(expected), "{source}");
    }
}

/// The output of transformers 5.24 with jinja2 3.1.6 for the same input.
#[test]
fn values_have_python_semantics() {
    let variables = json!({
        "nil": null, "text": "a\u{e9}<\"'&", "items": [1, 1.5, null, true, "it's", {"z": 1, "a": "\u{2014}"}],
        "numbers": [1e20, 1e16, 1e15, 1e-5, 0.0001, 0.1], "nested": {"b": [1, 2.0], "a": {"x": "\u{1f600}"}}, "empty": {},
    });
    for (source, expected) in [
        // Type tests.
        (
            "{{ nil is iterable }}{{ nothing is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}",
            "FalseTrueTrueFalse",
        ),
        (
            "{{ nil is sequence }}{{ 'a' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}",
            "FalseTrueTrueFalse",
        ),
        (
            "{{ items[:2] is sequence }}{{ items[:2] }}{{ numbers[:1] }}{{ items[:2]|tojson }}",
            "True[1, 1.5][1e+20][1, 1.5]",
        ),
        // Conversion of values to strings.
        ("{{ nil }}{{ nil ~ nil|string }}{{ true }}{{ nothing }}", "NoneNoneNoneTrue"),
        ("{% macro show(x) %}{{ x }}{% endmacro %}{{ show(nil) }}", "None"),
        ("{{ items }}", "[1, 1.5, None, True, \"it's\", {'z': 1, 'a': '\u{2014}'}]"),
        ("{{ ('a',) }}{{ ['both \\' \"', 'line\\n'] }}", "('a',)['both \\' \"', 'line\\n']"),
        ("{{ numbers }}{{ numbers[0] }}", "[1e+20, 1e+16, 1000000000000000.0, 1e-05, 0.0001, 0.1]1e+20"),
        ("{{ items|join(',') }}", "1,1.5,None,True,it's,{'z': 1, 'a': '\u{2014}'}"),
        ("{{ [{'a': 1}, {'a': none}]|join('-', attribute='a') }}", "1-None"),
        // JSON.
        ("{{ nested|tojson(separators=(',', ':')) }}", "{\"b\":[1,2.0],\"a\":{\"x\":\"\u{1f600}\"}}"),
        (
            "{{ nested|tojson(separators=[',', ':'], sort_keys=true) }}",
            "{\"a\":{\"x\":\"\u{1f600}\"},\"b\":[1,2.0]}",
        ),
        ("{{ nested.a|tojson(ensure_ascii=true) }}", r#"{"x": "\ud83d\ude00"}"#),
        ("{{ nested.a|tojson(false, 1) }}", "{\n \"x\": \"\u{1f600}\"\n}"),
        ("{{ nested.b|tojson(indent='-', separators=(';', '=')) }}", "[\n-1;\n-2.0\n]"),
        (
            "{{ numbers|tojson }}{{ empty|tojson(indent=2) }}{{ nil|tojson }}",
            "[1e+20, 1e+16, 1000000000000000.0, 1e-05, 0.0001, 0.1]{}null",
        ),
        ("{{ {'a': 1, 2: 3, none: 4, true: 5}|tojson }}", r#"{"a": 1, "2": 3, "null": 4, "true": 5}"#),
        ("{{ [1, 2]|map('string')|list|tojson }}", r#"["1", "2"]"#),
        // Escapes.
        ("{{ text|e }}{{ '<'|safe|e }}{{ '<'|safe|forceescape }}", "a\u{e9}&lt;&#34;&#39;&amp;<&lt;"),
        ("{{ ['<']|tojson|e }}", "[&#34;&lt;&#34;]"),
        // Loops.
        ("{% for c in 'ab' %}{{ c }}{{ loop.last }}{{ loop.length }}{% endfor %}", "aFalse2bTrue2"),
        (
            "{% for k, v in nothing|items if k %}{% endfor %}{% for x in nothing %}{% else %}-{% endfor %}",
            "-",
        ),
        (
            "{% for k, v in empty.get('x', {'a': 1})|items %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}",
            "a1True",
        ),
        ("{{ nothing|length }}{{ empty|length }}{{ text|count }}", "006"),
        // A generator is true even when it is empty, and is iterated over once.
        ("{% set x = []|select %}{{ 'true' if x }}{{ [1]|select|list }}", "true[1]"),
        ("{% set x = [1]|map('abs') %}{{ x|list }}{{ x|list }}", "[1][]"),
        // Numbers.
        ("{{ '12'|int }}{{ 'x'|int }}{{ '3.9'|int }}{{ 'x'|int(7) }}{{ nil|int }}", "120370"),
        ("{{ '1.5'|float }}{{ 'x'|float }}{{ 2|float }}", "1.50.02.0"),
        // Methods.
        (
            "{{ 'abca'.index('c') }}{{ 'abca'.rindex('a') }}{{ 'a-b-c'.partition('-') }}",
            "23('a', '-', 'b-c')",
        ),
        ("{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}", "('a-b', '-', 'c')('abc', '', '')"),
        ("{{ 'a-b-c'.rsplit('-', 1) }}{{ ' a  b c '.rsplit(none, 1) }}", "['a-b', 'c'][' a  b', 'c']"),
        ("{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ '-7'.zfill(4) }}", "bcab-007"),
        ("{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'a'.center(4) }}|", "a  |..a| a  |"),
        ("{{ [5, 6].index(6) }}{{ {'a': 1}.copy() }}", "1{'a': 1}"),
    ] {
        let rendered = render(source, &json!([]), &[], &variables);
        assert_eq!(rendered.as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn rejects_what_jinja2_rejects() {
    for (source, expected) in [
        ("{% for x in nil %}{% endfor %}", "none is not iterable"),
        ("{% for x in nil if x %}{% endfor %}", "none is not iterable"),
        ("{{ nil|join(',') }}", "none is not iterable"),
        ("{% for k, v in nil|items %}{% endfor %}", "items needs a mapping, not none"),
        ("{{ [1]|map('string')|tojson }}", "iterator cannot be serialized as JSON"),
        ("{{ [1]|select|length }}", "cannot calculate length"),
        ("{{ nothing|tojson }}", "undefined cannot be serialized as JSON"),
        ("{{ 1|tojson(separators=[',']) }}", "tojson needs two separators, not 1"),
        ("{{ 1|tojson(escape=true) }}", "unknown keyword argument 'escape'"),
        ("{{ 'abc'.index('x') }}", "substring not found"),
    ] {
        let message = render(source, &json!([]), &[], &json!({ "nil": null })).unwrap_err();
        assert!(message.contains(expected), "{source}: {message}");
    }
}

#[test]
fn errors_of_a_template_are_reported() {
    let messages = json!([{ "role": "system", "content": "x" }]);
    for (source, expected) in [
        (
            "{{ raise_exception('no system messages') }}",
            "rejected by the model's chat template: no system messages",
        ),
        ("{{ nothing.at.all }}", "the chat template cannot be rendered"),
        ("{% if %}", "invalid chat template"),
    ] {
        let message = render(source, &messages, &[], &Value::Null).unwrap_err();
        assert!(message.contains(expected), "{source}: {message}");
    }
}

#[test]
fn finds_chat_templates_in_all_checkpoint_files() {
    let hello = [Message::user("hello")];
    let tool = [json!({})];
    let named = json!([{ "name": "default", "template": "D" }, { "name": "tool_use", "template": "T" }]);
    let config =
        |template: &Value| json!({ "bos_token": { "content": "B" }, "chat_template": template }).to_string();
    let named = ("tokenizer_config.json", config(&named));
    let plain = ("tokenizer_config.json", config(&json!("{{ bos_token }}")));
    let older = ("chat_template.json", json!({ "chat_template": "J" }).to_string());
    let file = ("chat_template.jinja", "F".to_owned());
    for (files, tools, expected) in [
        (vec![], &[][..], None),
        (vec![&plain], &[], Some("B")),
        (vec![&named], &[], Some("D")),
        (vec![&named], &tool, Some("T")),
        (vec![&older], &[], Some("J")),
        (vec![&file, &plain], &[], Some("F")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in &files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let conversation =
            Conversation { messages: &hello, tools, variables: &Map::new(), add_generation_prompt: true };
        let rendered =
            Template::read(folder.path()).unwrap().map(|template| template.render(&conversation).unwrap());
        assert_eq!(rendered.as_deref(), expected, "{files:?}");
    }
}
