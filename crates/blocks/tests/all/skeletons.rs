//! A conversation renders the same with and without a cached skeleton, for any template.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use wornpath_blocks::chat::{ChatTemplate, Conversation, PromptEnding, TokenizerConfig};

fn jinja(source: &str) -> Option<ChatTemplate> {
    ChatTemplate::from_jinja("t", source, &TokenizerConfig::empty()).ok()
}

fn qwen3() -> String {
    let config: Value =
        serde_json::from_str(include_str!("../models/qwen3/tokenizer_config.json")).unwrap();
    config["chat_template"].as_str().unwrap().to_owned()
}

/// Template snippets that use a message `m`, its content `c` and a namespace `n`.
const SNIPPETS: [&str; 44] = [
    "{{ c }}",
    "{{ m.role + ':' + m.content + '\n' }}",
    "{{ '<' ~ c ~ '>' }}",
    "{{ c.strip() }}",
    "{{ c | trim }}",
    "{{ c.lstrip('a') }}|{{ c.rstrip('ab') }}",
    "{{ (c + 'a').strip('a') }}",
    "{% if c.startswith('a') %}A{% endif %}",
    "{% if not c.endswith('b') %}B{% endif %}",
    "{% if ('b' + c).startswith('ba') %}A{% endif %}",
    "{% if 'ab' in c %}{{ c.split('ab')[-1].lstrip('\n') }}{% else %}{{ c }}{% endif %}",
    "{{ c.split('b')[0] }}",
    "{{ c.split('b')[1] }}",
    "{% for x in c.split('a') %}<{{ x }}>{% endfor %}",
    "{{ c.split('a') | last }}",
    "{% if 'bb' in '<' ~ c %}A{% endif %}",
    "{{ c.replace('a', 'x') }}",
    "{{ c | replace('ba', '') }}",
    "{{ c.removeprefix('a') }}{{ c.removesuffix('b') }}",
    "{% if c == 'ab' %}A{% elif c != 'b' %}B{% endif %}",
    "{% if c in ['a', 'abba'] %}A{% endif %}",
    "{% if c in 'abab' %}A{% endif %}",
    "{% if c %}C{% endif %}",
    "{% if c < 'b' %}C{% endif %}",
    "{% if c == messages[0].content %}A{% endif %}",
    "{{ messages[-1]['content'] if m.role == 'user' else c }}",
    "{% set x = c %}",
    "{{ x }}{{ x is string }}{{ x is defined }}",
    "{{ x | length }}",
    "{% if x == 'a' %}A{% endif %}",
    "{% set x %}[{{ c }}]{% endset %}",
    "{% set n.y = n.y ~ c %}",
    "{{ n.y }}",
    "{% if n.y == 'abab' %}A{% endif %}",
    "{{ n.y | length }}",
    "{{ m.get('content', 'z') | default('q') }}{{ m.get('name') }}",
    "{% if m.content is string %}{{ c }}{% else %}{{ c[0] }}{% endif %}",
    "{% if loop.last and loop.nextitem is not defined %}{{ c | upper }}{% endif %}",
    "{{ c[:1] }}",
    "{{ c * 2 }}",
    "{{ loop.previtem.content if loop.previtem }}",
    "{{ raise_exception('a') if c == 'aa' else 'ok' }}",
    "{{ (messages | selectattr('role', 'equalto', 'user') | list | first).content }}",
    "{% if enable_thinking is defined and enable_thinking %}T{{ c }}{% endif %}",
];

/// Conversations of few kinds, with contents from `content`.
fn conversations(content: BoxedStrategy<String>) -> impl Strategy<Value = Vec<Vec<Value>>> {
    let message = (select(vec!["user", "assistant", "system"]), content);
    let message = message.prop_map(|(role, content)| json!({"role": role, "content": content}));
    prop::collection::vec(prop::collection::vec(message, 0..3), 12)
}

fn render(template: &ChatTemplate, messages: &[Value], thinks: Option<bool>) -> Option<String> {
    let kwargs = thinks.map(|thinks| json!({"enable_thinking": thinks}));
    let conversation = Conversation {
        kwargs: kwargs.as_ref().and_then(Value::as_object),
        ending: if messages.len() == 1 {
            PromptEnding::LastMessage
        } else {
            PromptEnding::GenerationPrompt
        },
        ..Conversation::new(messages)
    };
    template.render(&conversation).ok().map(|rendered| rendered.text)
}

/// Renders all conversations with one template, and each with a new one.
fn compare(source: &str, conversations: &[Vec<Value>], thinks: Option<bool>) {
    let Some(template) = jinja(source) else { return };
    for messages in conversations {
        let uncached = render(&jinja(source).unwrap(), messages, thinks);
        assert_eq!(render(&template, messages, thinks), uncached, "{source}\n{messages:?}");
    }
}

proptest! {
    #[test]
    fn any_template_renders_the_same_with_cached_skeletons(
        snippets in prop::collection::vec(select(SNIPPETS.to_vec()), 1..5),
        conversations in conversations("[ab \n]{0,4}".boxed()),
        thinks in any::<Option<bool>>(),
    ) {
        let body = snippets.concat();
        let source = format!(
            "{{% set n = namespace(y='') %}}{{% for m in messages %}}{{% set c = m.content %}}{body}{{% endfor %}}{{{{ n.y }}}}"
        );
        compare(&source, &conversations, thinks);
    }
}

proptest! {
    // Each takes as long as ten of the others.
    #![proptest_config(ProptestConfig { cases: (ProptestConfig::default().cases / 10).max(50), ..ProptestConfig::default() })]

    #[test]
    fn the_template_of_a_model_renders_the_same_with_cached_skeletons(
        conversations in conversations(select(vec![
            "a", "", "\n", "a\n", "\na", "<think>a</think>b", "</think>", "<tool_response>", "<tool_response>a</tool_response>",
            "a</tool_response>", "\u{f8ff}\u{f0000}", "<|im_end|>", " a ",
        ]).prop_map(str::to_owned).boxed()),
        thinks in any::<Option<bool>>(),
    ) {
        compare(&qwen3(), &conversations, thinks);
    }
}
