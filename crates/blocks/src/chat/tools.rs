//! Tools as engines pass them to the template.
//!
//! Engines parse the tools of a request and serialize them again: fields that they do not know are
//! lost, and the known ones have an order. Templates print tools as JSON, so all of that is in the
//! prompt.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::engine_rules::EngineRules;

/// The tools for the template.
pub(super) fn prepare(tools: &[Value], engine: EngineRules) -> Vec<Value> {
    tools.iter().map(|tool| prepare_one(tool, engine)).collect()
}

/// The functions alone, which SGLang tries if a template fails on the tools.
pub(super) fn functions(tools: &[Value]) -> Vec<Value> {
    tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone()).collect()
}

fn prepare_one(tool: &Value, engine: EngineRules) -> Value {
    let (Value::Object(tool), Some(function)) = (tool, tool["function"].as_object()) else {
        return tool.clone();
    };
    let set = |name: &str| tool.get(name).filter(|value| !value.is_null());
    let mut function = Cow::Borrowed(function);
    if let (Some(deferred), true) =
        (set("defer_loading"), function.get("defer_loading").is_none_or(Value::is_null))
    {
        let function = function.to_mut();
        function.shift_remove("defer_loading");
        function.insert("defer_loading".to_owned(), deferred.clone());
    }
    let function = match engine {
        EngineRules::Vllm => vllm_function(&function),
        EngineRules::Sglang => sglang_function(&function),
    };
    let mut out = Map::new();
    out.insert("type".to_owned(), tool.get("type").cloned().unwrap_or_else(|| json!("function")));
    out.insert("function".to_owned(), Value::Object(function));
    match (set("defer_loading"), engine) {
        (Some(deferred), _) => drop(out.insert("defer_loading".to_owned(), deferred.clone())),
        (None, EngineRules::Sglang) => drop(out.insert("defer_loading".to_owned(), Value::Null)),
        (None, EngineRules::Vllm) => {}
    }
    Value::Object(out)
}

/// All fields that vLLM knows, in its order; some only where they are set.
fn vllm_function(function: &Map<String, Value>) -> Map<String, Value> {
    let always = ["name", "description", "parameters"].map(|name| (name, true));
    let if_set = ["strict", "defer_loading"].map(|name| (name, false));
    let mut known = Map::new();
    for (name, is_always) in always.into_iter().chain(if_set) {
        let value = function.get(name).cloned().unwrap_or(Value::Null);
        if is_always || !value.is_null() {
            known.insert(name.to_owned(), value);
        }
    }
    known
}

/// The fields in the client's order, then those that SGLang knows and the client left out.
fn sglang_function(function: &Map<String, Value>) -> Map<String, Value> {
    const ALWAYS: [&str; 3] = ["description", "name", "parameters"];
    const IF_SET: [&str; 2] = ["strict", "defer_loading"];
    let is_kept = |name: &str, value: &Value| {
        ALWAYS.contains(&name) || IF_SET.contains(&name) && !value.is_null()
    };
    let mut known: Map<_, _> = function
        .iter()
        .filter(|(name, value)| is_kept(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    for name in ALWAYS {
        known.entry(name).or_insert(Value::Null);
    }
    known
}
