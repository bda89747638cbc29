//! OpenAI's `/v1/completions`: one prompt or a list of prompts, each of text or token ids.

use super::Dialect;
use serde_json::{Map, Value};
use wornpath_routing::{Prompt, PromptReading};

/// OpenAI's completions API.
pub(super) struct Completions;

impl Dialect for Completions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/completions"]
    }

    fn generates(&self) -> bool {
        true
    }

    fn reports_usage_on_request(&self) -> bool {
        true
    }

    fn prompt(&self, fields: &mut Map<String, Value>, _: &mut PromptReading) -> Prompt {
        parse_prompt(fields.remove("prompt"))
    }
}

fn parse_prompt(prompt: Option<Value>) -> Prompt {
    match prompt {
        Some(Value::String(text)) => Prompt::Text(text),
        Some(Value::Array(items)) => {
            let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
            match items.iter().map(id).collect::<Option<Vec<u32>>>() {
                Some(tokens) => Prompt::Tokens(tokens),
                // A list of prompts is routed by its first one.
                None => parse_prompt(items.into_iter().next()),
            }
        }
        _ => Prompt::default(),
    }
}
