//! Fault injection, switchable while an engine runs.
//!
//! Real engines fail in ways that simple mocks never show, and clients tested only with such mocks
//! fail with them. Each field is one such failure; the default is a healthy engine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The faults of one engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Every request, including health checks, is accepted and never answered.
    pub hang: bool,
    /// Inference requests are answered with this status, and 429 and 503 with `Retry-After`.
    pub refuse: Option<u16>,
    /// Factor on the time of every step.
    pub slow: f64,
    /// A response stops after this many tokens; its connection stays open.
    pub stall_after_tokens: Option<usize>,
    /// The connection of a response is closed after this many tokens.
    pub cut_after_tokens: Option<usize>,
    /// Every n-th event batch is not published. Replay has it.
    pub drop_events_every: Option<u64>,
    /// Event batches are published twice.
    pub duplicate_events: bool,
    /// Event batches are published in pairs, the later first.
    pub reorder_events: bool,
    /// Event batches are numbered but no longer published: the tail of the stream is lost. Replay
    /// has them.
    pub lose_tail: bool,
    /// Replay requests are not answered.
    pub no_replay: bool,
    /// It says neither where it publishes nor how it tokenizes, as engines of older versions.
    pub no_discovery: bool,
    /// The cached tokens that `usage` reports.
    pub cached_tokens: CachedTokens,
    /// Decode engines cannot load the blocks that it computed for them. All else works.
    pub no_kv_transfer: bool,
    /// It crashes after this many prefill-only requests, and decode engines can load none of their
    /// blocks.
    pub crash_after_prefills: Option<u64>,
    /// The reaction to blocks that it cannot load from a prefill engine.
    pub kv_load_failure: KvLoadFailure,
}

/// The reaction of a decode engine to blocks that it cannot load from a prefill engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvLoadFailure {
    /// It fails the request: vLLM's default.
    #[default]
    Fail,
    /// It computes the prompt, as vLLM does with `"kv_load_failure_policy": "recompute"`.
    Recompute,
    /// It never answers, as vLLM has done in the middle of a transfer.
    Hang,
}

/// The cached tokens that `usage` reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachedTokens {
    /// The true number.
    #[default]
    True,
    /// Always zero.
    Zero,
    /// Always the whole prompt.
    All,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            hang: false,
            refuse: None,
            slow: 1.0,
            stall_after_tokens: None,
            cut_after_tokens: None,
            drop_events_every: None,
            duplicate_events: false,
            reorder_events: false,
            lose_tail: false,
            no_replay: false,
            no_discovery: false,
            cached_tokens: CachedTokens::True,
            no_kv_transfer: false,
            crash_after_prefills: None,
            kv_load_failure: KvLoadFailure::Fail,
        }
    }
}

/// An invalid fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultError {
    /// An unknown name, or a value of the wrong type.
    #[error("fault `{0}`: {1}")]
    Unreadable(String, String),
    /// A value out of range.
    #[error("fault `{name}` is {value}; {rule}")]
    OutOfRange {
        /// The fault.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        rule: &'static str,
    },
}

impl Faults {
    /// Parses arguments of the form `name` or `name=value`; a later one overrides an earlier one.
    ///
    /// # Errors
    /// If a fault is unknown or its value is invalid.
    pub fn from_arguments(arguments: &[String]) -> Result<Self, FaultError> {
        let mut fields = Map::new();
        let mut faults = Self::default();
        for argument in arguments {
            let (name, value) = argument.split_once('=').unwrap_or((argument, "true"));
            let text = || Value::String(value.to_owned());
            // The `true` of `cached-tokens=true` is a variant's name, not a boolean.
            let is_word = name == "cached-tokens";
            let value = if is_word { text() } else { value.parse().unwrap_or_else(|_| text()) };
            fields.insert(name.replace('-', "_"), value);
            let fields = Value::Object(fields.clone());
            faults = serde_json::from_value(fields)
                .map_err(|error| FaultError::Unreadable(argument.clone(), error.to_string()))?;
        }
        faults.check()
    }

    /// Parses a JSON object, as the control port receives it; omitted faults are off.
    ///
    /// # Errors
    /// If it is not JSON, or a fault is unknown or its value is invalid.
    pub fn from_json(json: &[u8]) -> Result<Self, FaultError> {
        let faults: Self = serde_json::from_slice(json)
            .map_err(|error| FaultError::Unreadable("body".to_owned(), error.to_string()))?;
        faults.check()
    }

    fn check(self) -> Result<Self, FaultError> {
        let out_of_range =
            |name, value: String, rule| Err(FaultError::OutOfRange { name, value, rule });
        if !(self.slow.is_finite() && self.slow > 0.0) {
            return out_of_range("slow", self.slow.to_string(), "it must be above zero");
        }
        if let Some(status) = self.refuse.filter(|status| !(400..600).contains(status)) {
            return out_of_range("refuse", status.to_string(), "it must be a status of 400 to 599");
        }
        for (name, count) in [
            ("drop_events_every", self.drop_events_every),
            ("crash_after_prefills", self.crash_after_prefills),
        ] {
            if count == Some(0) {
                return out_of_range(name, "0".to_owned(), "it must be at least 1");
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Faults, FaultError> {
        Faults::from_arguments(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_and_json_give_the_same_faults() {
        let arguments = read(&["hang", "refuse=503", "slow=2.5", "cached-tokens=zero"]).unwrap();
        let json = br#"{"hang": true, "refuse": 503, "slow": 2.5, "cached_tokens": "zero"}"#;
        assert_eq!(arguments, Faults::from_json(json).unwrap());
        let arguments = read(&["kv-load-failure=hang", "crash-after-prefills=8"]).unwrap();
        let json = br#"{"kv_load_failure": "hang", "crash_after_prefills": 8}"#;
        assert_eq!(arguments, Faults::from_json(json).unwrap());
        assert_eq!(read(&["cached-tokens=true"]).unwrap(), Faults::default());
    }

    #[test]
    fn an_unknown_fault_is_refused_with_the_known_ones() {
        let error = read(&["explode"]).unwrap_err().to_string();
        assert!(error.starts_with("fault `explode`: unknown field"), "{error}");
        assert!(error.contains("stall_after_tokens"), "{error}");
        let error = read(&["refuse=200"]).unwrap_err().to_string();
        assert_eq!(error, "fault `refuse` is 200; it must be a status of 400 to 599");
        assert!(read(&["slow=0"]).is_err());
        assert!(read(&["drop-events-every=0"]).is_err());
        assert!(read(&["crash-after-prefills=0"]).is_err());
    }
}
