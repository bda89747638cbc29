//! KV transfer protocols: how a prefill engine and a decode engine agree on the KV cache of one
//! prompt.
//!
//! A protocol is data: the body fields of the prefill request, the parts of its response that the
//! decode request needs, and the body fields of the decode request. Values are templates. The
//! built-in protocols are files beside this one, and a profile may define its own under
//! `transfers`.

use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;
use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, SettingEntry, SettingValues, Span, Takes, Yaml, nearest,
    parse,
};

use crate::template::{is_pointer, is_template_name, template_names};

/// What the router knows of the prefill pod of steps that start together, and of the request.
const RENDEZVOUS: [&str; 5] = ["host", "url_host", "port", "room", "engine"];

/// When a step starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// When the step before has ended.
    #[default]
    After,
    /// Together with the step before.
    Together,
}

/// The parameters of a protocol.
pub(crate) const TRANSFER: &[Parameter] = &[
    Parameter::with_default(
        "start",
        Takes::OneOf(&["after", "together"]),
        "after",
        "Whether the decode step starts when the prefill step has ended, or together with it.",
    ),
    Parameter::with_default(
        "prefill_only",
        Takes::Flag,
        "true",
        "Whether `prefill_decode` tells the prefill engine to stop after one token.",
    ),
    Parameter::with_default(
        "failed_load",
        Takes::OneOf(&["unknown", "vllm"]),
        "unknown",
        "`vllm`: the decode engine loads from the prefill pod, and reports a failed load as vLLM does; the router then blames the prefill pod.",
    ),
    Parameter::optional(
        "prefill",
        Takes::Trees,
        "Body fields of the prefill request, as templates.",
    ),
    Parameter::optional(
        "brings",
        Takes::Trees,
        "Parts of the prefill response: a name for each, and a JSON pointer or a list of them, of which the first that finds something counts.",
    ),
    Parameter::optional(
        "decode",
        Takes::Trees,
        "Body fields of the decode request, as templates with the parts. With `start: together` both requests also know `<host>`, `<url_host>` and `<port>` of the \
         prefill pod's bootstrap server, `<room>`, a number that no other request has, and the decode request `<engine>`, the prefill engine's id.",
    ),
];

const BUILT_IN: [(&str, &str); 5] = [
    ("nixl", include_str!("transfer/nixl.yaml")),
    ("bootstrap", include_str!("transfer/bootstrap.yaml")),
    ("shared_storage", include_str!("transfer/shared_storage.yaml")),
    ("mooncake", include_str!("transfer/mooncake.yaml")),
    ("tensorrt", include_str!("transfer/tensorrt.yaml")),
];

/// A protocol that transfers KV from one engine to another. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer(Arc<Protocol>);

#[derive(PartialEq, Debug)]
struct Protocol {
    word: String,
    start: Start,
    cuts_prefill_short: bool,
    is_loaded_by_vllm: bool,
    prefill: Vec<(String, Json)>,
    brings: Vec<TransferredPart>,
    decode: Vec<(String, Json)>,
    /// As the profile has it, for a profile's own protocol.
    printed: String,
}

/// A part of a prefill response that the decode request needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransferredPart {
    /// Its name in templates.
    pub name: String,
    /// Where it may be in the response, as JSON pointers.
    pub pointers: Vec<String>,
}

impl Transfer {
    /// The built-in protocols.
    ///
    /// # Panics
    /// Never: a test reads them.
    #[must_use]
    pub fn built_in() -> &'static [Self] {
        static ALL: LazyLock<Vec<Transfer>> = LazyLock::new(|| {
            let read = |(name, text): &(&str, &str)| {
                let mut problems = Vec::new();
                let node =
                    parse(text).expect("the file is part of the program, and a test reads it");
                let entry = SettingEntry { name, span: node.span, settings: entries(&node) };
                let transfer = read_one(&entry, &mut problems);
                assert!(problems.is_empty(), "{name}: {:?}", problems.iter().map(Problem::message));
                transfer
            };
            BUILT_IN.iter().map(read).collect()
        });
        &ALL
    }

    /// The built-in protocol of this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::built_in().iter().find(|transfer| transfer.word() == word).cloned()
    }

    /// Its word in YAML.
    #[must_use]
    pub fn word(&self) -> &str {
        &self.0.word
    }

    /// When the receiving step starts.
    #[must_use]
    pub fn start(&self) -> Start {
        self.0.start
    }

    /// Whether the sending step must be told to stop after one token.
    #[must_use]
    pub fn cuts_prefill_short(&self) -> bool {
        self.0.cuts_prefill_short
    }

    /// Whether the decode engine loads from the prefill pod and is vLLM, whose error for a failed
    /// load is known.
    #[must_use]
    pub fn is_loaded_by_vllm(&self) -> bool {
        self.0.is_loaded_by_vllm
    }

    /// The body fields of the prefill request, as templates.
    #[must_use]
    pub fn prefill(&self) -> &[(String, Json)] {
        &self.0.prefill
    }

    /// The parts of the prefill response that the decode request needs.
    #[must_use]
    pub fn brings(&self) -> &[TransferredPart] {
        &self.0.brings
    }

    /// The body fields of the decode request, as templates.
    #[must_use]
    pub fn decode(&self) -> &[(String, Json)] {
        &self.0.decode
    }

    /// Whether the decode request needs the prefill engine's id, which must be queried first.
    #[must_use]
    pub fn needs_engine_id(&self) -> bool {
        self.0.decode.iter().any(|(_, template)| template_names(template).contains(&"engine"))
    }
}

/// The protocols that a profile may name: the built-in ones and its own.
#[derive(Default)]
pub(crate) struct Transfers {
    own: Vec<Transfer>,
}

impl Transfers {
    /// Reads `transfers`.
    pub(crate) fn read(node: Option<&Node>, problems: &mut Vec<Problem>) -> Self {
        let mut own: Vec<Transfer> = Vec::new();
        let Some(node) = node else { return Self { own } };
        if !matches!(node.value, Yaml::Map(_)) {
            let message = format!("`transfers` is {}, not a map", node.kind());
            let problem = Problem::new(ProblemKind::Syntax, node.span, message);
            problems.push(problem.cure("write `name: {prefill: {…}, decode: {…}}`"));
        }
        for (key, value) in entries(node) {
            match SettingEntry::named(key, value) {
                Err(problem) => problems.push(problem),
                Ok(entry) if Transfer::named(entry.name).is_some() => {
                    let message = format!("`{}` is a built-in transfer protocol", entry.name);
                    let problem = Problem::new(ProblemKind::BadParameter, key.span, message);
                    problems.push(problem.cure("give it another name"));
                }
                Ok(entry) => own.push(read_one(&entry, problems)),
            }
        }
        Self { own }
    }

    /// The protocol that a parameter names, if it does.
    pub(crate) fn find(
        &self,
        settings: &SettingValues,
        parameter: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Transfer> {
        let word: String = settings.maybe(parameter)?;
        let known = || Transfer::built_in().iter().chain(&self.own);
        let found = known().find(|transfer| transfer.word() == word);
        if found.is_none() {
            let span = settings.find(parameter).map_or(Span::default(), |setting| setting.span);
            let message = format!("`{parameter}: {word}` names no transfer protocol");
            let words: Vec<_> = known().map(Transfer::word).collect();
            let cure = match nearest(&word, words.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use one of {}, or define it under `transfers`", words.join(", ")),
            };
            problems.push(Problem::new(ProblemKind::BadParameter, span, message).cure(cure));
        }
        found.cloned()
    }

    /// As YAML, with the key; empty if the profile has none of its own.
    pub(crate) fn printed(&self) -> String {
        let lines = self.own.iter().map(|own| format!("  {}\n", own.0.printed));
        let lines: String = lines.collect();
        if lines.is_empty() { lines } else { format!("transfers:\n{lines}") }
    }
}

fn entries(node: &Node) -> &[(Node, Node)] {
    match &node.value {
        Yaml::Map(entries) => entries,
        _ => &[],
    }
}

fn read_one(entry: &SettingEntry<'_>, problems: &mut Vec<Problem>) -> Transfer {
    let settings = SettingValues::read(entry, TRANSFER, &[], problems);
    let fields = |name| settings.maybe::<Vec<(String, Json)>>(name).unwrap_or_default();
    let is_together = settings.or("start", "after") == "together";
    let name = entry.name;
    let span_of = |of| settings.find(of).map_or(entry.span, |setting| setting.span);
    let mut refuse = |of, message: String, cure: &str| {
        problems.push(Problem::new(ProblemKind::BadParameter, span_of(of), message).cure(cure));
    };
    let brings = fields("brings").into_iter().map(|(part, value)| {
        let texts = match &value {
            Json::Array(items) => items.iter().map(Json::as_str).collect(),
            value => Some(value.as_str()).into_iter().collect(),
        };
        let pointers: Option<Vec<_>> = Vec::into_iter(texts).collect();
        let pointers = pointers.unwrap_or_default();
        if pointers.is_empty() || !pointers.iter().all(|pointer| is_pointer(pointer)) {
            let message =
                format!("`brings` of `{name}`: `{part}` is at {value}, which is no JSON pointer");
            refuse(
                "brings",
                message,
                "write keys and positions after slashes, such as `/choices/0/text`",
            );
        }
        if !is_template_name(&part) || RENDEZVOUS.contains(&part.as_str()) {
            let message = format!("`brings` of `{name}`: `{part}` cannot be the name of a part");
            refuse(
                "brings",
                message,
                "use letters, digits, `_` and `-`, and none of the router's own names",
            );
        }
        let pointers = pointers.into_iter().map(str::to_owned).collect();
        TransferredPart { name: part, pointers }
    });
    let brings: Vec<_> = brings.collect();
    if is_together && !brings.is_empty() {
        let message = format!(
            "`brings` of `{name}` has no effect: the decode step starts before there is a response"
        );
        refuse("brings", message, "remove it, or write `start: after`");
    }
    let [prefill, decode] = ["prefill", "decode"].map(fields);
    for (of, fields) in [("prefill", &prefill), ("decode", &decode)] {
        for needed in fields.iter().flat_map(|(_, template)| template_names(template)) {
            let is_brought = of == "decode" && brings.iter().any(|part| part.name == needed);
            let is_told = of == "decode" || needed != "engine";
            let is_agreed = is_together && is_told && RENDEZVOUS.contains(&needed);
            if !is_brought && !is_agreed {
                let message = format!("`{of}` of `{name}` needs `{needed}`, which nothing brings");
                refuse(
                    of,
                    message,
                    "add it to `brings`; `<host>`, `<url_host>`, `<port>`, `<room>` and `<engine>` need `start: together`",
                );
            }
        }
    }
    let needed: Vec<_> = decode.iter().flat_map(|(_, template)| template_names(template)).collect();
    for part in brings.iter().filter(|part| !needed.contains(&part.name.as_str())) {
        let message = format!("`{name}` brings `{}`, which its `decode` does not need", part.name);
        refuse("brings", message, "remove it, or write it into `decode`");
    }
    Transfer(Arc::new(Protocol {
        word: name.to_owned(),
        start: if is_together { Start::Together } else { Start::After },
        cuts_prefill_short: settings.or("prefill_only", true),
        is_loaded_by_vllm: settings.or("failed_load", "unknown") == "vllm",
        prefill,
        brings,
        decode,
        printed: settings.line(name, &[]),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_protocol_can_be_read() {
        let words: Vec<_> = Transfer::built_in().iter().map(Transfer::word).collect();
        assert_eq!(words, ["nixl", "bootstrap", "shared_storage", "mooncake", "tensorrt"]);
        let together = Transfer::built_in().iter().filter(|it| it.start() == Start::Together);
        assert_eq!(together.map(Transfer::word).collect::<Vec<_>>(), ["bootstrap", "mooncake"]);
        assert!(Transfer::named("mooncake").unwrap().needs_engine_id());
    }
}
