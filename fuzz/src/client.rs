//! What clients send: bodies of requests, and forms that bring files.

use crate::pieces::pieces;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::iter::once;
use wornpath_execution::{Edit, field, splice};
use wornpath_gateway::{Api, fuzzing};
use wornpath_routing::Prompt;

/// Fields that become the prompt, whichever interface they belong to.
const OF_PROMPTS: [&str; 7] =
    ["messages", "prompt", "tools", "chat_template_kwargs", "system", "instructions", "input"];

/// The first byte says which interface the body is for, and what is spliced into it. A body is taken exactly if
/// `serde_json` reads an object whose `model` is a name; what routing is told and what an engine is sent are
/// what `serde_json` finds in it.
pub fn client_body(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let api = Api::all().nth(usize::from(choice % 8)).expect("there are eight");
    let body = Bytes::copy_from_slice(body);
    let tree: Option<Map<String, Value>> = serde_json::from_slice(&body).ok();
    let taken = fuzzing::client_body(api, &body);
    let edits = edits(choice / 8, tree.as_ref());
    let Some(tree) = tree else {
        assert!(taken.is_none() || api == Api::OTHER, "{api:?} takes what is no object");
        let _ = (splice(&body, &edits), field(&body, "model"));
        return;
    };
    let is_named = tree.get("model").is_none_or(|model| model.is_string() || model.is_null());
    assert_eq!(taken.is_some(), is_named || api == Api::OTHER, "{api:?}");
    if let Some((model, request)) = taken {
        assert_eq!(model, tree.get("model").and_then(Value::as_str).unwrap_or_default());
        for (name, value) in &request.fields {
            assert_eq!(tree.get(name), Some(value), "{name}");
        }
        for name in tree.keys().filter(|name| !request.fields.contains_key(*name)) {
            assert!(OF_PROMPTS.contains(&name.as_str()), "{name} is lost");
        }
        let _ = request.estimated_tokens();
        if let (true, Prompt::Chat { messages, .. }) = (api == Api::CHAT, &request.prompt) {
            let list = tree.get("messages").and_then(Value::as_array);
            assert_eq!(&messages[..], list.map_or(&[][..], Vec::as_slice));
        }
    }
    check_splice(&body, tree, &edits);
}

fn edits(choice: u8, tree: Option<&Map<String, Value>>) -> Vec<Edit> {
    let first = tree.and_then(|tree| tree.keys().next()).map_or("none", String::as_str);
    let salt = Edit::set("cache_salt", &json!("ours"));
    match choice % 6 {
        0 => vec![salt],
        1 => vec![Edit::remove("stream"), Edit::remove("stream_options")],
        2 => vec![Edit::set(first, &json!({"x": [1, "}\""]}))],
        3 => vec![Edit::remove(first), salt],
        4 => {
            vec![Edit::set("kv_transfer_params", &Value::Null), Edit::remove("kv_transfer_params")]
        }
        _ => vec![],
    }
}

/// Editing bytes is editing the tree, and every field's own bytes are its value.
fn check_splice(body: &Bytes, mut tree: Map<String, Value>, edits: &[Edit]) {
    for (name, value) in &tree {
        let bytes = field(body, name).expect("an object has fields").expect("it is there");
        assert_eq!(serde_json::from_slice::<Value>(bytes).ok().as_ref(), Some(value), "{name}");
    }
    let spliced = splice(body, edits).expect("an object can be edited");
    for edit in edits {
        tree.shift_remove(&edit.field);
        if let Some(value) = &edit.value {
            tree.insert(edit.field.clone(), serde_json::from_str(value).expect("values are JSON"));
        }
    }
    let found: Map<String, Value> = serde_json::from_slice(&spliced).expect("it stays an object");
    assert_eq!(found, tree);
}

/// The first byte says how the form is cut: its parts are the same as those of the form in one piece.
pub fn form_data(bytes: &[u8]) {
    let Some((cuts, form)) = bytes.split_first() else { return };
    let whole = fuzzing::form("b0", once(form));
    assert_eq!(fuzzing::form("b0", pieces(form, *cuts)), whole);
}
