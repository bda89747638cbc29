//! What clients send: bodies of requests, and multipart forms with files.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::iter::once;
use wornpath_execution::{Edit, field, splice};
use wornpath_gateway::{Api, fuzzing};
use wornpath_routing::Prompt;

/// Fields that become the prompt, in any API.
const PROMPT_FIELDS: [&str; 7] =
    ["messages", "prompt", "tools", "chat_template_kwargs", "system", "instructions", "input"];

/// The first byte chooses the API and the edits of the body. A body is accepted exactly if
/// `serde_json` parses an object whose `model` is a string or absent; the request that routing gets
/// and the body that an engine gets hold what `serde_json` finds in it.
pub fn client_body(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let api = Api::all().nth(usize::from(choice % 8)).expect("there are eight");
    let body = Bytes::copy_from_slice(body);
    let tree: Option<Map<String, Value>> = serde_json::from_slice(&body).ok();
    let accepted = fuzzing::client_body(api, &body);
    let edits = edits(choice / 8, tree.as_ref());
    let Some(tree) = tree else {
        assert!(
            accepted.is_none() || api == Api::OTHER,
            "{api:?} accepts a body that is no object"
        );
        let _ = (splice(&body, &edits), field(&body, "model"));
        return;
    };
    let is_named = tree.get("model").is_none_or(|model| model.is_string() || model.is_null());
    assert_eq!(accepted.is_some(), is_named || api == Api::OTHER, "{api:?}");
    if let Some((model, request)) = accepted {
        assert_eq!(model, tree.get("model").and_then(Value::as_str).unwrap_or_default());
        for (name, value) in &request.fields {
            assert_eq!(tree.get(name), Some(value), "{name}");
        }
        for name in tree.keys().filter(|name| !request.fields.contains_key(*name)) {
            assert!(PROMPT_FIELDS.contains(&name.as_str()), "{name} is lost");
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

/// Splicing the bytes equals editing the tree, and the bytes of every field parse to its value.
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

/// The first byte chooses how the form is split: its parts equal those of the form in one piece.
pub fn form_data(bytes: &[u8]) {
    let Some((cuts, form)) = bytes.split_first() else { return };
    let whole = fuzzing::form("b0", once(form));
    assert_eq!(fuzzing::form("b0", pieces(form, *cuts)), whole);
}

/// Splits `bytes` as a connection may deliver them: in pieces of two alternating lengths from 1 to
/// 16, chosen by `cuts`.
pub(crate) fn pieces(mut bytes: &[u8], cuts: u8) -> impl Iterator<Item = &[u8]> {
    let mut lengths = [usize::from(cuts % 16) + 1, usize::from(cuts / 16) + 1].into_iter().cycle();
    std::iter::from_fn(move || {
        let length = lengths.next()?.min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        bytes = rest;
        (length > 0).then_some(piece)
    })
}
