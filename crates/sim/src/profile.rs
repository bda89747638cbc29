//! Engine profiles: a model on a piece of hardware, as data.
//!
//! A profile is a JSON file; those in `engines/` are built in. It is checked when it is read, and all that
//! is wrong with it is said at once.

use crate::cost::StepCost;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const BUILT_IN: [(&str, &str); 5] = [
    ("8b-h200", include_str!("../engines/8b-h200.json")),
    ("32b-h100x2", include_str!("../engines/32b-h100x2.json")),
    ("70b-h100x4", include_str!("../engines/70b-h100x4.json")),
    ("8b-h200-measured", include_str!("../engines/8b-h200-measured.json")),
    ("32b-h200-measured", include_str!("../engines/32b-h200-measured.json")),
];

/// How fast an engine is and how much it holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProfile {
    /// Its name.
    name: String,
    /// Where the numbers come from.
    source: String,
    /// Tokens whose key/value vectors fit into device memory.
    kv_tokens: usize,
    /// Bytes of one token's key/value vectors.
    kv_bytes_per_token: u64,
    /// Milliseconds a request takes beside its steps.
    request_ms: f64,
    /// Tokens that one step computes at most.
    #[serde(default = "usual_step_tokens")]
    max_step_tokens: usize,
    /// Sequences that run at once at most.
    #[serde(default = "usual_sequences")]
    max_sequences: usize,
    /// Gigabytes per second from host memory to the device.
    host_gigabytes_per_second: f64,
    /// Gigabytes per second from another engine.
    network_gigabytes_per_second: f64,
    /// Milliseconds of a step.
    step_ms: StepCost,
}

/// The most milliseconds that anything takes, the fewest gigabytes a second, the most tokens, and the most bytes of
/// one. Nothing real is near them, and all that is made of them is a time that can be told.
const LONGEST: f64 = 1e6;
const SLOWEST: f64 = 1e-6;
const MOST_TOKENS: usize = 1 << 34;
const MOST_BYTES: u64 = 1 << 30;

const fn usual_step_tokens() -> usize {
    8_192
}

const fn usual_sequences() -> usize {
    256
}

/// A profile that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineProfileError {
    /// Not JSON, or fields that a profile does not have.
    #[error("{file}: not an engine profile: {cause}")]
    Unreadable {
        /// As the caller named it.
        file: String,
        /// With line and column.
        cause: String,
    },
    /// Numbers that no engine has.
    #[error("{file}: {}", problems.join("; "))]
    Impossible {
        /// As the caller named it.
        file: String,
        /// Each with its cure.
        problems: Vec<String>,
    },
    /// No such built-in profile.
    #[error("unknown engine profile `{name}`; built in are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
}

impl EngineProfile {
    /// The names of the built-in profiles.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A profile that comes with this crate.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn built_in(name: &str) -> Result<Self, EngineProfileError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, json)) => Self::from_json(name, json.as_bytes()),
            None => Err(EngineProfileError::Unknown {
                name: name.to_owned(),
                known: Self::built_in_names().collect(),
            }),
        }
    }

    /// Reads the JSON of a profile, which errors call `file`.
    ///
    /// # Errors
    /// If it is not a profile or describes an engine that cannot be.
    pub fn from_json(file: &str, json: &[u8]) -> Result<Self, EngineProfileError> {
        let profile: Self = serde_json::from_slice(json).map_err(|error| {
            EngineProfileError::Unreadable { file: file.to_owned(), cause: error.to_string() }
        })?;
        let problems = profile.problems();
        if problems.is_empty() {
            return Ok(profile);
        }
        Err(EngineProfileError::Impossible { file: file.to_owned(), problems })
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let counts = [
            ("kv_tokens", self.kv_tokens),
            ("max_step_tokens", self.max_step_tokens),
            ("max_sequences", self.max_sequences),
        ];
        for (field, value) in counts {
            if value == 0 {
                problems.push(format!("`{field}` is 0; it must be at least 1"));
            }
            if value > MOST_TOKENS {
                problems.push(format!("`{field}` is {value}; it must be at most {MOST_TOKENS}"));
            }
        }
        let bytes = self.kv_bytes_per_token;
        if bytes > MOST_BYTES {
            problems
                .push(format!("`kv_bytes_per_token` is {bytes}; it must be at most {MOST_BYTES}"));
        }
        let rates = [
            ("host_gigabytes_per_second", self.host_gigabytes_per_second),
            ("network_gigabytes_per_second", self.network_gigabytes_per_second),
        ];
        for (field, value) in rates {
            if value < SLOWEST {
                problems.push(format!("`{field}` is {value}; it must be at least {SLOWEST}"));
            }
        }
        let cascade = self.step_ms.cascade;
        let times = [
            ("request_ms", self.request_ms),
            ("step_ms.prefill", self.step_ms.prefill),
            ("step_ms.per_prefill_token", self.step_ms.per_prefill_token),
            ("step_ms.free_prefill_tokens", self.step_ms.free_prefill_tokens),
            ("step_ms.per_pair", self.step_ms.per_pair),
            ("step_ms.per_past_token", self.step_ms.per_past_token),
            ("step_ms.per_sequence", self.step_ms.per_sequence),
            ("step_ms.per_context_token", self.step_ms.per_context_token),
            ("step_ms.per_longest_token", self.step_ms.per_longest_token),
            ("step_ms.cascade.base", cascade.map_or(0.0, |cascade| cascade.base)),
            ("step_ms.cascade.per_shared_token", cascade.map_or(0.0, |c| c.per_shared_token)),
        ];
        for (field, value) in times {
            if !(0.0..=LONGEST).contains(&value) {
                problems.push(format!("`{field}` is {value}; it must be from zero to {LONGEST}"));
            }
        }
        // A step of no time would never let virtual time go on.
        let base = self.step_ms.base;
        if base < 0.001 {
            problems.push(format!("`step_ms.base` is {base}; a step takes at least 0.001 ms"));
        }
        if base > LONGEST {
            problems.push(format!("`step_ms.base` is {base}; a step takes at most {LONGEST} ms"));
        }
        problems
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its numbers come from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Tokens whose key/value vectors fit into device memory.
    #[must_use]
    pub fn kv_tokens(&self) -> usize {
        self.kv_tokens
    }

    /// Tokens that one step computes at most.
    #[must_use]
    pub fn max_step_tokens(&self) -> usize {
        self.max_step_tokens
    }

    /// Sequences that run at once at most.
    #[must_use]
    pub fn max_sequences(&self) -> usize {
        self.max_sequences
    }

    /// What steps cost.
    #[must_use]
    pub fn step_cost(&self) -> &StepCost {
        &self.step_ms
    }

    /// What a request takes beside its steps.
    #[must_use]
    pub fn request_time(&self) -> Duration {
        Duration::from_secs_f64(self.request_ms / 1e3)
    }

    /// How long `tokens` take from host memory to the device.
    #[must_use]
    pub fn host_time(&self, tokens: usize) -> Duration {
        self.copy_time(tokens, self.host_gigabytes_per_second)
    }

    /// How long `tokens` take from another engine.
    #[must_use]
    pub fn network_time(&self, tokens: usize) -> Duration {
        self.copy_time(tokens, self.network_gigabytes_per_second)
    }

    fn copy_time(&self, tokens: usize, gigabytes_per_second: f64) -> Duration {
        let bytes = tokens as f64 * self.kv_bytes_per_token as f64;
        Duration::from_secs_f64(bytes / (gigabytes_per_second * 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_valid_and_says_where_it_comes_from() {
        for name in EngineProfile::built_in_names() {
            let profile = EngineProfile::built_in(name).unwrap();
            assert_eq!(profile.name(), name);
            assert!(profile.source().len() > 20, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = EngineProfile::built_in("9b").unwrap_err().to_string();
        assert!(error.contains("`9b`") && error.contains("8b-h200, 32b-h100x2"), "{error}");
    }

    #[test]
    fn all_problems_of_a_profile_are_said_at_once() {
        let json = BUILT_IN[0].1.replace("945029", "0").replace("4.4", "-1");
        let error = EngineProfile::from_json("mine.json", json.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error,
            "mine.json: `kv_tokens` is 0; it must be at least 1; \
             `step_ms.base` is -1; a step takes at least 0.001 ms"
        );
        let json = BUILT_IN[0].1.replace("4.4", "1e300");
        let error = EngineProfile::from_json("mine.json", json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("a step takes at most 1000000 ms"), "{error}");
        let json = BUILT_IN[0].1.replace("kv_tokens", "kv_token");
        let error = EngineProfile::from_json("mine.json", json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("unknown field `kv_token`"), "{error}");
    }
}
