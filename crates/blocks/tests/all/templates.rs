//! Conversations render byte for byte as with Hugging Face; invalid templates are rejected with a
//! cause.

use serde_json::{Value, json};
use wornpath_blocks::chat::{
    ChatTemplate, ContentForm, Conversation, Extent, PromptEnding, TokenizerConfig, WallTime,
};

fn template(model: &str) -> ChatTemplate {
    let file = format!("{model}/tokenizer_config.json");
    let path = format!("{}/tests/models/{file}", env!("CARGO_MANIFEST_DIR"));
    let config = TokenizerConfig::from_json(&file, &std::fs::read(path).unwrap()).unwrap();
    ChatTemplate::from_config(&config).unwrap()
}

fn jinja(source: &str) -> ChatTemplate {
    ChatTemplate::from_jinja("chat_template.jinja", source, &TokenizerConfig::empty()).unwrap()
}

fn ending(name: Option<&str>) -> PromptEnding {
    match name {
        None => PromptEnding::GenerationPrompt,
        Some("last_message") => PromptEnding::LastMessage,
        Some("inside_last_message") => PromptEnding::InsideLastMessage,
        Some(other) => panic!("no ending: {other}"),
    }
}

#[test]
fn every_conversation_renders_as_hugging_face_renders_it() {
    let golden: Value = serde_json::from_str(include_str!("../golden/golden.json")).unwrap();
    let mut compared = 0;
    for (model, expected) in golden["models"].as_object().unwrap() {
        let template = template(model);
        for (name, case) in golden["conversations"].as_object().unwrap() {
            let conversation = Conversation {
                tools: case["tools"].as_array().map(Vec::as_slice),
                ending: ending(case["ending"].as_str()),
                kwargs: case["kwargs"].as_object(),
                ..Conversation::new(case["messages"].as_array().unwrap())
            };
            let rendered = template.render(&conversation).unwrap();
            assert_eq!(rendered.extent, Extent::Whole, "{model}: {name}");
            assert_eq!(
                rendered.text,
                expected["prompts"][name]["text"].as_str().unwrap(),
                "{model}: {name}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 44);
}

#[test]
fn an_image_ends_the_known_text_where_the_engine_inserts_it() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:x"}});
    let messages = [
        json!({"role": "system", "content": "S"}),
        json!({"role": "user", "content": [{"type": "text", "text": "before"}, image, {"type": "text", "text": "after"}]}),
        json!({"role": "assistant", "content": "more"}),
    ];
    let rendered = template("qwen3").render(&Conversation::new(&messages)).unwrap();
    assert_eq!(rendered.extent, Extent::BeforePart);
    assert_eq!(rendered.text, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n");

    let walking = jinja(
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<img>{% endif %}{% endfor %}{% endfor %}",
    );
    assert_eq!(walking.form(), ContentForm::Parts);
    let rendered = walking.render(&Conversation::new(&messages)).unwrap();
    assert_eq!(rendered.extent, Extent::BeforePart);
    assert_eq!(rendered.text, "[system]S[user]before");
}

#[test]
fn a_template_that_drops_the_image_leaves_nothing_known() {
    let image = [json!({"role": "user", "content": [{"type": "image_url"}]})];
    let rendered = jinja("fixed").render(&Conversation::new(&image)).unwrap();
    assert_eq!((rendered.text.as_str(), rendered.extent), ("", Extent::BeforePart));
}

/// Expectations printed by `transformers` 5.22 with Jinja2 3.1.6.
#[test]
fn single_rules_of_jinja_are_those_of_hugging_face() {
    let messages = [json!({"role": "user", "content": "x"})];
    for (source, expected) in [
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        (
            "{{ none }} {{ true }} {{ 1.0 }} {{ [1, 'a', none] }} {{ {'k': 'v'} }}",
            "None True 1.0 [1, 'a', None] {'k': 'v'}",
        ),
        (
            "{{ {'b': 1, 'a': ['é', '<&>\"\\n']} | tojson }}",
            "{\"b\": 1, \"a\": [\"é\", \"<&>\\\"\\n\"]}",
        ),
        (
            "{{ {'b': 1, 'a': [2, {}]} | tojson(indent=2) }}",
            "{\n  \"b\": 1,\n  \"a\": [\n    2,\n    {}\n  ]\n}",
        ),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}",
            "{\"a\":\"\\u00e9\",\"b\":1}",
        ),
        ("{{ ' a b '.strip().split(' ') }}", "['a', 'b']"),
        (
            "{{ 'a-b-c'.rsplit('-', 1)[0] }} {{ 'abc'.removeprefix('a') }} {{ 'k=v'.partition('=')[2] }}",
            "a-b bc v",
        ),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 1970"),
        ("{{ messages[0].missing is defined }} {{ messages[0].get('missing', 'd') }}", "False d"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}", "<a>"),
        ("{{ 'a' ~ 1 ~ none }}{{ 'ab'[::-1] }}{{ 'ab'[-1] }}", "a1Nonebab"),
        ("{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ -7 % 3 }}", "3 3.5 8 2"),
    ] {
        let rendered = jinja(source).render(&Conversation::new(&messages)).unwrap();
        assert_eq!(rendered.text, expected, "{source}");
    }
}

#[test]
fn the_time_is_the_callers() {
    let conversation = Conversation { now: WallTime(1_800_000_000), ..Conversation::new(&[]) };
    let text = jinja("{{ strftime_now('%Y-%m-%d') }}").render(&conversation).unwrap().text;
    assert_eq!(text, "2027-01-15");
}

#[test]
fn tools_choose_the_template_made_for_them() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain{{ bos_token }}"},
        {"name": "tool_use", "template": "tools"},
    ], "bos_token": {"content": "<s>"}});
    let config = TokenizerConfig::from_json("c.json", config.to_string().as_bytes()).unwrap();
    let template = ChatTemplate::from_config(&config).unwrap();
    assert_eq!(template.render(&Conversation::new(&[])).unwrap().text, "plain<s>");
    let tools = [json!({})];
    let conversation = Conversation { tools: Some(&tools), ..Conversation::new(&[]) };
    assert_eq!(template.render(&conversation).unwrap().text, "tools");
}

#[test]
fn a_developer_becomes_the_system_where_the_template_knows_none() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let messages = [
        json!({"role": "system", "content": "a"}),
        json!({"role": "user", "content": "u"}),
        json!({"role": "developer", "content": "b"}),
    ];
    let text = jinja(source).render(&Conversation::new(&messages)).unwrap().text;
    assert_eq!(text, "system:a\n\nb;user:u;");
    let knows = format!("{{# 'developer' #}}{source}");
    let text = jinja(&knows).render(&Conversation::new(&messages)).unwrap().text;
    assert_eq!(text, "system:a;user:u;developer:b;");
}

#[test]
fn errors_name_the_file_and_the_cause() {
    let config =
        |json: &str| TokenizerConfig::from_json("m/tokenizer_config.json", json.as_bytes());
    for (json, expected) in [
        ("{", "m/tokenizer_config.json: not JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "m/tokenizer_config.json: the file must be an object"),
        (
            "{\"chat_template\": 3}",
            "m/tokenizer_config.json: `chat_template` must be a string, a list or null",
        ),
        (
            "{\"chat_template\": [{}]}",
            "m/tokenizer_config.json: `chat_template` must be a list of objects with `name` and `template`",
        ),
        (
            "{\"bos_token\": 1}",
            "m/tokenizer_config.json: `bos_token` must be a string, an object or null",
        ),
        ("{\"bos_token\": {}}", "m/tokenizer_config.json: `bos_token.content` must be a string"),
    ] {
        assert_eq!(config(json).unwrap_err().to_string(), expected);
    }
    let template = |source: &str| {
        let config = json!({"chat_template": source}).to_string();
        let config =
            TokenizerConfig::from_json("m/tokenizer_config.json", config.as_bytes()).unwrap();
        ChatTemplate::from_config(&config)
    };
    assert_eq!(
        ChatTemplate::from_config(&config("{}").unwrap()).unwrap_err().to_string(),
        "m/tokenizer_config.json: no `chat_template`; add one, or put a `chat_template.jinja` beside the file"
    );
    assert_eq!(
        template("a\n{% for %}").unwrap_err().to_string(),
        "m/tokenizer_config.json: invalid chat template: line 2: unexpected end of block, expected in"
    );
    let error = |source: &str, ending| {
        let conversation = Conversation { ending, ..Conversation::new(&[]) };
        template(source).unwrap().render(&conversation).unwrap_err().to_string()
    };
    assert_eq!(
        error("\n{{ raise_exception('roles must alternate') }}", PromptEnding::LastMessage),
        "m/tokenizer_config.json: chat template rejected the conversation: line 2: roles must alternate"
    );
    assert_eq!(
        error("{{ messages[0].content.nothing() }}", PromptEnding::LastMessage),
        "m/tokenizer_config.json: chat template rejected the conversation: line 1: `messages[0]` is undefined"
    );
    assert_eq!(
        error(
            "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
            PromptEnding::LastMessage
        ),
        "m/tokenizer_config.json: chat template rejected the conversation: line 1: engine ran out of fuel"
    );
    assert_eq!(
        error("x", PromptEnding::InsideLastMessage),
        "m/tokenizer_config.json: chat template rejected the conversation: the last message has no text to continue"
    );
}
