//! What engines get from isolated tenants: the router's walk over the bytes of a body against a full
//! parse of what it sends.

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use wornpath_blocks::HashKey;
use wornpath_execution::transfer_fields;
use wornpath_gateway::fuzzing;

const TENANT: &str = "tenant";

/// Paths, and the fields in which engines look for media there.
const PATHS: [(&str, &[&str]); 5] = [
    ("/v1/chat/completions", &["messages", "mm_processor_kwargs"]),
    ("/v1/completions", &["mm_processor_kwargs"]),
    ("/v1/responses", &["input", "mm_processor_kwargs"]),
    ("/v1/embeddings", &["input", "messages", "mm_processor_kwargs"]),
    ("/rerank", &["query", "documents", "mm_processor_kwargs"]),
];

/// Further fields that no engine may get.
const REFUSED: [&str; 9] = [
    "previous_response_id",
    "conversation",
    "session_params",
    "extra_key",
    "nvext",
    "prompt_embeds",
    "custom_logit_processor",
    "kv_hints",
    "data_parallel_rank",
];

/// Fields whose value names something that engines keep.
const IDS: [&str; 3] = ["session_id", "request_id", "rid"];

/// The first byte chooses the path. A body that is accepted arrives with the tenant's salt, and with
/// nothing that an engine would take for the name of another tenant's state.
pub fn isolated_body(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let (path, media) = PATHS[usize::from(*choice) % PATHS.len()];
    let body = Bytes::copy_from_slice(body);
    let Some(sent) = fuzzing::isolated_body(path, &body, TENANT) else { return };
    let given: Tree = serde_json::from_slice(&body).expect("only JSON is accepted");
    let sent: Tree = serde_json::from_slice(&sent).expect("JSON stays JSON");
    let mut texts = HashSet::new();
    given.texts(&mut texts);
    let scoped = |kind: &str| -> HashSet<String> {
        texts.iter().map(|text| HashKey::DEFAULT.tenant_scoped(TENANT, kind, text)).collect()
    };
    let top = sent.members();
    check_unique(top);
    let salt = Tree::Text(HashKey::DEFAULT.cache_salt(TENANT));
    assert_eq!(sent.member("cache_salt"), Some(&salt));
    check_fields(top, &scoped);
    if let Some(Tree::Object(arguments)) = sent.member("vllm_xargs") {
        check_unique(arguments);
        check_fields(arguments, &scoped);
    }
    let ids = scoped("uuid");
    for (name, value) in top {
        if media.contains(&name.as_str()) {
            value.check_media(&ids);
        } else if !IDS.contains(&name.as_str()) && !["cache_salt", "vllm_xargs"].contains(&&**name)
        {
            assert_eq!(given.member(name), Some(value), "{name}");
        }
    }
    for (name, _) in given.members() {
        assert!(sent.member(name).is_some() || name == "kv_cache_report_mode", "{name} is lost");
    }
}

fn check_unique(members: &[(String, Tree)]) {
    let names: HashSet<_> = members.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), members.len());
}

fn check_fields(members: &[(String, Tree)], scoped: &dyn Fn(&str) -> HashSet<String>) {
    for (name, value) in members.iter().filter(|(_, value)| *value != Tree::Null) {
        let name = name.as_str();
        assert!(!transfer_fields().contains(&name) && !REFUSED.contains(&name), "{name}");
        assert_ne!(name, "kv_cache_report_mode");
        if IDS.contains(&name) {
            let Tree::Text(id) = value else { panic!("{name} is no text") };
            assert!(scoped(name).contains(id), "{name}");
        }
    }
}

/// A JSON value in which objects keep repeated names.
#[derive(Clone, PartialEq, Debug)]
enum Tree {
    Null,
    Text(String),
    /// A number or a truth value.
    Plain(String),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn members(&self) -> &[(String, Tree)] {
        match self {
            Self::Object(members) => members,
            _ => &[],
        }
    }

    /// Of a repeated name the last value, as Python's `json` and `orjson` have it.
    fn member(&self, name: &str) -> Option<&Self> {
        self.members().iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn texts<'a>(&'a self, texts: &mut HashSet<&'a str>) {
        match self {
            Self::Text(text) => drop(texts.insert(text)),
            Self::List(items) => items.iter().for_each(|item| item.texts(texts)),
            Self::Object(members) => members.iter().for_each(|(_, value)| value.texts(texts)),
            Self::Null | Self::Plain(_) => {}
        }
    }

    /// Every `uuid` is an id of the tenant, except in calls of tools.
    fn check_media(&self, ids: &HashSet<String>) {
        if let Self::List(items) = self {
            items.iter().for_each(|item| item.check_media(ids));
        }
        for (name, value) in self.members() {
            match (name.as_str(), value) {
                ("uuid", Self::Null) | ("tool_calls" | "function_call", _) => {}
                ("uuid", Self::Text(id)) => assert!(ids.contains(id), "{id}"),
                ("uuid", _) => panic!("a uuid that is no text"),
                _ => value.check_media(ids),
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Plain(format!("{value:?}")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(Tree::Object(object))
    }
}
