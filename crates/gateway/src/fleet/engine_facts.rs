//! What an engine says of itself, so that it need not be configured: how its model was loaded, its
//! cache, its data-parallel ranks, where it publishes cache events.
//!
//! Every engine says other things in other places, and older versions say less. All places are
//! asked at once, and what an engine does not answer is unknown: nothing here fails. What is missing
//! is named, with its cure, where a pod is shown to be approximate (`learning.rs`).
//!
//! | place | engine | what |
//! |---|---|---|
//! | `/v1/models` | all | model, adapters, context length; vLLM: path or repository as `root` |
//! | `/metrics` | vLLM, SGLang, TensorRT-LLM | block size; vLLM: size of the cache, hash algorithm |
//! | `/version` | vLLM | version |
//! | `/kv_event_sources` | vLLM | publisher and replay of each rank |
//! | `/get_server_info` | SGLang | version, model, cache, ranks, publisher |
//! | `/tokenizer_info` | vLLM with `--enable-tokenizer-info-endpoint` | class, chat template |

use crate::fleet::scrape;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wornpath_config::EventSource;
use wornpath_events::ZmqAddress;

/// The class that an engine whose tokens are the bytes of its text has at `/tokenizer_info`.
const BYTE_TOKENIZER: &str = "ByteTokenizer";
/// Limits on what is kept of an engine's answers, in bytes.
const MAX_NAME: usize = 512;
const MAX_TEMPLATE: usize = 128 << 10;
const MAX_PUBLISHERS: usize = 256 << 10;
/// Limit on ranks, as in the configuration.
const MAX_RANKS: u64 = 1024;

/// What an engine has said of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EngineFacts {
    /// Its software and version, such as `SGLang 0.5.3`.
    pub software: Option<String>,
    /// Tokens that the cache of one rank holds.
    pub kv_tokens: Option<u64>,
    /// Its hash algorithm. Predictions do not depend on it, as events carry tokens.
    pub hash: Option<String>,
    /// Its data-parallel ranks.
    pub ranks: Option<u32>,
    /// How it loaded its model.
    pub model: ModelOrigin,
    publishers: Publishers,
}

/// How an engine loaded its model, as far as prompts depend on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelOrigin {
    /// The folder or the repository.
    pub root: Option<String>,
    /// The branch, tag or commit of the repository; none for the default branch.
    pub revision: Option<String>,
    /// Whether its tokens are the bytes of the text, as in simulated engines.
    pub has_byte_tokens: bool,
    /// The chat template in force, which need not be that of the files.
    pub template: Option<String>,
}

impl ModelOrigin {
    /// By an engine's model cards, its `/get_server_info` and its `/tokenizer_info`; null if it has
    /// none of these.
    #[must_use]
    pub fn said(cards: &[Value], server_info: &Value, tokenizer_info: &Value) -> Self {
        let path = name(&server_info["tokenizer_path"]);
        let path = path.or_else(|| name(&server_info["model_path"]));
        let template = tokenizer_info["chat_template"].as_str();
        let template = template.filter(|template| template.len() <= MAX_TEMPLATE);
        Self {
            root: path.or_else(|| name(&base(cards)?["root"])),
            revision: name(&server_info["revision"]),
            has_byte_tokens: tokenizer_info["tokenizer_class"] == BYTE_TOKENIZER,
            template: template.map(str::to_owned),
        }
    }
}

/// The card of the base model.
fn base(cards: &[Value]) -> Option<&Value> {
    cards.iter().find(|card| !card["parent"].is_string())
}

/// A name or a path; none if it is too long or of several lines. It is shown in logs and pages.
fn name(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (text.len() <= MAX_NAME && !text.contains(char::is_control)).then(|| text.to_owned())
}

/// Where an engine publishes its cache events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Publishers {
    /// It does not say.
    #[default]
    Unknown,
    /// It lists them by rank, also after they move.
    Listed(BTreeMap<u32, ZmqAddress>),
    /// They are those of its configuration.
    Configured(BTreeMap<u32, ZmqAddress>),
}

impl EngineFacts {
    /// Where a rank publishes, or the whole engine if it has no ranks; none if that is not known.
    pub(crate) fn event_source(&self, rank: Option<u32>) -> Option<EventSource> {
        let (Publishers::Listed(all) | Publishers::Configured(all)) = &self.publishers else {
            return None;
        };
        if rank.is_none() && (all.len() > 1 || self.ranks.is_some_and(|ranks| ranks > 1)) {
            return None;
        }
        let address = all.get(&rank.unwrap_or(0))?;
        Some(match self.publishers {
            Publishers::Listed(_) => EventSource::ReportedByEngine,
            _ => EventSource::Zmq(address.clone()),
        })
    }

    /// Why no event source of a pod is known, and the cure.
    pub(crate) fn why_no_events(&self, rank: Option<u32>) -> String {
        let ranks = match &self.publishers {
            Publishers::Listed(all) | Publishers::Configured(all) => all.len(),
            Publishers::Unknown => 0,
        };
        let ranks = ranks.max(self.ranks.unwrap_or(1) as usize);
        match (&self.publishers, rank) {
            (_, None) if ranks > 1 => format!(
                "the engine has {ranks} data-parallel ranks, each with a cache of its own; give --pod URL,ranks={ranks} or `ranks` of the pod"
            ),
            (Publishers::Listed(all), _) if all.is_empty() => {
                "the engine publishes no cache events; start it with --kv-events-config".to_owned()
            }
            _ => "the engine does not say where it publishes cache events; start it with --kv-events-config, and \
                  give --pod URL,events=zmq://HOST:PORT?replay=PORT or `events` of the pod"
                .to_owned(),
        }
    }
}

/// The answers of an engine; those that it does not give are empty.
pub(crate) struct EngineAnswers<'a> {
    /// The host by which it is reached.
    pub(crate) host: &'a str,
    /// Its model cards.
    pub(crate) cards: &'a [Value],
    /// Its metrics page.
    pub(crate) page: &'a str,
    pub(crate) version: Value,
    pub(crate) event_sources: Option<Bytes>,
    pub(crate) server_info: Value,
    pub(crate) tokenizer_info: Value,
}

impl EngineAnswers<'_> {
    pub(crate) fn facts(&self) -> EngineFacts {
        let server = &self.server_info;
        let owner = base(self.cards).and_then(|card| name(&card["owned_by"]));
        let version = name(&self.version["version"]).or_else(|| name(&server["version"]));
        EngineFacts {
            software: version.map(|version| {
                let software = match owner.as_deref() {
                    Some("vllm") => "vLLM",
                    Some("sglang") => "SGLang",
                    other => other.unwrap_or_default(),
                };
                format!("{software} {version}").trim().to_owned()
            }),
            kv_tokens: scrape::kv_tokens(self.page)
                .or_else(|| server["max_total_num_tokens"].as_u64()),
            hash: scrape::hash_algorithm(self.page).filter(|hash| hash.len() <= MAX_NAME),
            ranks: self.ranks(),
            model: ModelOrigin::said(self.cards, server, &self.tokenizer_info),
            publishers: self.publishers(),
        }
    }

    fn ranks(&self) -> Option<u32> {
        let ranks = self.server_info["dp_size"].as_u64();
        ranks.filter(|ranks| (1..=MAX_RANKS).contains(ranks))?.try_into().ok()
    }

    fn publishers(&self) -> Publishers {
        if let Some(listed) = &self.event_sources
            && listed.len() <= MAX_PUBLISHERS
            && let Ok(listed) = ZmqAddress::listed(listed, self.host)
        {
            return Publishers::Listed(listed);
        }
        // SGLang repeats the option, a text of JSON.
        let option = self.server_info["kv_events_config"].as_str();
        let Some(option) = option.filter(|option| option.len() <= MAX_NAME) else {
            return Publishers::Unknown;
        };
        let Ok(option) = serde_json::from_str::<Value>(option) else { return Publishers::Unknown };
        let first = ZmqAddress::listed(json!({ "0": option }).to_string().as_bytes(), self.host);
        let Some(first) = first.ok().and_then(|mut listed| listed.remove(&0)) else {
            return Publishers::Unknown;
        };
        let ranks = self.ranks().and_then(|ranks| u16::try_from(ranks).ok()).unwrap_or(1);
        let address = |rank: u16| Some((u32::from(rank), first.of_rank(rank).ok()?));
        Publishers::Configured((0..ranks).filter_map(address).collect())
    }
}

#[cfg(test)]
mod tests;
