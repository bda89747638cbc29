//! The tools of OpenAI's responses as tools of a chat.

use serde_json::{Map, Value, json};

/// Kinds of tools that the model is not told of.
const NOT_SHOWN: [&str; 8] = [
    "code_interpreter",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "web_search",
    "web_search_preview",
];

/// The tools that vLLM shows to the model; none if one is of a kind whose conversion is unknown.
pub(super) fn chat_tools(tools: &[Value]) -> Option<Vec<Value>> {
    let mut shown = Vec::new();
    for tool in tools {
        let tool = tool.as_object()?;
        match tool.get("type")?.as_str()? {
            "function" => shown.push(function(tool, None)?),
            "namespace" => {
                let namespace = tool.get("name")?.as_str()?;
                for inner in tool.get("tools")?.as_array()? {
                    let inner = inner.as_object()?;
                    if inner.get("type")? != "function" {
                        return None;
                    }
                    shown.push(function(inner, Some(namespace))?);
                }
            }
            // A tool that takes text is shown as a function with one argument.
            "custom" => {
                let parameters = json!({
                    "type": "object",
                    "properties": {"input": {
                        "type": "string",
                        "description": "The freeform text payload for this tool.",
                    }},
                    "required": ["input"],
                    "additionalProperties": false,
                });
                shown.push(json!({"type": "function", "function": {
                    "name": tool.get("name")?, "description": tool.get("description"), "parameters": parameters,
                }}));
            }
            kind if NOT_SHOWN.contains(&kind) => {}
            _ => return None,
        }
    }
    Some(shown)
}

fn function(tool: &Map<String, Value>, namespace: Option<&str>) -> Option<Value> {
    let name = tool.get("name")?.as_str()?;
    let mut function: Map<_, _> = tool
        .iter()
        .filter(|(name, _)| *name != "type")
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    if let Some(namespace) = namespace {
        function.insert("name".to_owned(), json!(format!("{namespace}__{name}")));
    }
    Some(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_shown_and_tools_of_the_engine_are_not() {
        let tools = json!([
            {"type": "web_search"},
            {"type": "function", "name": "f", "parameters": {}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        ]);
        assert_eq!(
            chat_tools(tools.as_array().unwrap()).map(Value::from),
            Some(json!([
                {"type": "function", "function": {"name": "f", "parameters": {}}},
                {"type": "function", "function": {"name": "n__g"}},
            ]))
        );
        for unknown in [json!({"type": "shell", "name": "c"}), json!({"name": "f"}), json!(1)] {
            assert_eq!(chat_tools(&[unknown]), None);
        }
    }
}
