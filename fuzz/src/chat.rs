//! Model files: chat templates and the settings that hold them.

use serde_json::json;
use wornpath_blocks::chat::{ChatTemplate, Conversation, TokenizerConfig};

/// A `tokenizer_config.json`: parsed or refused, and its template renders or returns an error.
pub fn tokenizer_config(bytes: &[u8]) {
    let Ok(config) = TokenizerConfig::from_json("fuzzed", bytes) else { return };
    if let Ok(template) = ChatTemplate::from_config(&config) {
        render(&template);
    }
}

/// The source of a chat template.
pub fn chat_template(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes);
    let config = TokenizerConfig::empty();
    let read = || ChatTemplate::from_jinja("fuzzed", &source, &config);
    let Ok(template) = read() else { return };
    render(&template);
    // A template with a cached skeleton renders as one without, also for texts of the template
    // itself.
    for text in source.split(['\'', '"']).take(6) {
        let [question, answer] = [text.to_owned(), format!("{text}a")];
        let messages = [
            json!({"role": "user", "content": question}),
            json!({"role": "assistant", "content": answer}),
        ];
        let conversation = Conversation::new(&messages);
        let alone = read().map(|template| template.render(&conversation));
        assert_eq!(Ok(template.render(&conversation)), alone);
    }
}

/// A conversation with every kind of message that templates distinguish.
fn render(template: &ChatTemplate) {
    // The template library panics on some templates, which is caught and reported. libFuzzer would
    // stop at the panic itself; without its hook it stops only at uncaught panics.
    #[cfg(fuzzing)]
    drop(std::panic::take_hook());
    let messages = [
        json!({"role": "system", "content": "s"}),
        json!({"role": "user", "content": [{"type": "text", "text": "u"}]}),
        json!({"role": "assistant", "content": "a", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"x\": 1}"}}
        ]}),
        json!({"role": "tool", "content": "t"}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let _ = template.render(&Conversation::new(&messages));
    let _ = template.render(&Conversation { tools: Some(&tools), ..Conversation::new(&messages) });
}
