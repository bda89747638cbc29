//! Engine profiles: a model on a piece of hardware, as data.
//!
//! A profile is a JSON file; those in `engines/` are built in. It is checked when it is read, and
//! the error lists every problem.

use crate::cost::StepCost;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use wornpath_routing::nearest;

const BUILT_IN: [(&str, &str); 5] = [
    ("8b-h200", include_str!("../engines/8b-h200.json")),
    ("32b-h100x2", include_str!("../engines/32b-h100x2.json")),
    ("70b-h100x4", include_str!("../engines/70b-h100x4.json")),
    ("8b-h200-measured", include_str!("../engines/8b-h200-measured.json")),
    ("32b-h200-measured", include_str!("../engines/32b-h200-measured.json")),
];

/// The speed and the capacity of an engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProfile {
    name: String,
    source: String,
    kv_tokens: usize,
    kv_bytes_per_token: u64,
    /// Milliseconds that a request takes outside of its steps.
    request_ms: f64,
    #[serde(default = "default_step_tokens")]
    max_step_tokens: usize,
    #[serde(default = "default_sequences")]
    max_sequences: usize,
    host_gigabytes_per_second: f64,
    #[serde(default = "default_disk_rate")]
    disk_gigabytes_per_second: f64,
    network_gigabytes_per_second: f64,
    step_ms: StepCost,
}

// Limits far beyond any real engine, so that every time computed from them fits a `Duration`.
const MAX_MILLISECONDS: f64 = 1e6;
const MIN_GIGABYTES_PER_SECOND: f64 = 1e-6;
const MAX_TOKENS: usize = 1 << 34;
const MAX_BYTES_PER_TOKEN: u64 = 1 << 30;

const fn default_step_tokens() -> usize {
    8_192
}

const fn default_sequences() -> usize {
    256
}

/// Sequential reads of one NVMe drive on PCIe 4, as in data sheets.
const fn default_disk_rate() -> f64 {
    7.0
}

/// A profile that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineProfileError {
    /// Not JSON, or fields that a profile does not have.
    #[error("{file}: not an engine profile: {cause}")]
    Unreadable {
        /// The name that the caller passed.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// Numbers that no engine can have.
    #[error("{file}: {}", problems.join("; "))]
    Invalid {
        /// The name that the caller passed.
        file: String,
        /// Every problem, each with its cure.
        problems: Vec<String>,
    },
    /// No such built-in profile.
    #[error("unknown engine profile `{name}`; {}available: {}", suggestion(name, known), known.join(", "))]
    Unknown {
        /// The unknown name.
        name: String,
        /// The names of the built-in profiles.
        known: Vec<&'static str>,
    },
}

/// The known name that was probably meant, as a question.
fn suggestion(name: &str, known: &[&'static str]) -> String {
    nearest(name, known.iter().copied())
        .map_or_else(String::new, |near| format!("did you mean `{near}`? "))
}

impl EngineProfile {
    /// The names of the built-in profiles.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A built-in profile by name.
    ///
    /// # Errors
    /// If no built-in profile has that name.
    pub fn built_in(name: &str) -> Result<Self, EngineProfileError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, json)) => Self::from_json(name, json.as_bytes()),
            None => Err(EngineProfileError::Unknown {
                name: name.to_owned(),
                known: Self::built_in_names().collect(),
            }),
        }
    }

    /// Parses the JSON of a profile; errors name `file`.
    ///
    /// # Errors
    /// If it is not a profile or a number is out of range.
    pub fn from_json(file: &str, json: &[u8]) -> Result<Self, EngineProfileError> {
        let profile: Self = serde_json::from_slice(json).map_err(|error| {
            EngineProfileError::Unreadable { file: file.to_owned(), cause: error.to_string() }
        })?;
        let problems = profile.problems();
        if problems.is_empty() {
            return Ok(profile);
        }
        Err(EngineProfileError::Invalid { file: file.to_owned(), problems })
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
            if value > MAX_TOKENS {
                problems.push(format!("`{field}` is {value}; it must be at most {MAX_TOKENS}"));
            }
        }
        let bytes = self.kv_bytes_per_token;
        if bytes > MAX_BYTES_PER_TOKEN {
            problems.push(format!(
                "`kv_bytes_per_token` is {bytes}; it must be at most {MAX_BYTES_PER_TOKEN}"
            ));
        }
        let rates = [
            ("host_gigabytes_per_second", self.host_gigabytes_per_second),
            ("disk_gigabytes_per_second", self.disk_gigabytes_per_second),
            ("network_gigabytes_per_second", self.network_gigabytes_per_second),
        ];
        for (field, value) in rates {
            if value < MIN_GIGABYTES_PER_SECOND {
                problems.push(format!(
                    "`{field}` is {value}; it must be at least {MIN_GIGABYTES_PER_SECOND}"
                ));
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
            if !(0.0..=MAX_MILLISECONDS).contains(&value) {
                problems.push(format!(
                    "`{field}` is {value}; it must be from zero to {MAX_MILLISECONDS}"
                ));
            }
        }
        // With steps of zero length virtual time would never advance.
        let base = self.step_ms.base;
        if base < 0.001 {
            problems.push(format!("`step_ms.base` is {base}; a step takes at least 0.001 ms"));
        }
        if base > MAX_MILLISECONDS {
            problems.push(format!(
                "`step_ms.base` is {base}; a step takes at most {MAX_MILLISECONDS} ms"
            ));
        }
        problems
    }

    /// The profile's name, such as `8b-h200`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The origin of its numbers: a measurement or a publication.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Tokens whose key/value vectors fit into device memory.
    #[must_use]
    pub fn kv_tokens(&self) -> usize {
        self.kv_tokens
    }

    /// Bytes of the key/value vectors of a token.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv_bytes_per_token
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

    /// The cost model of a step.
    #[must_use]
    pub fn step_cost(&self) -> &StepCost {
        &self.step_ms
    }

    /// The same engine with cascade attention switched off.
    #[must_use]
    pub fn without_cascade(&self) -> Self {
        let step_ms = StepCost { cascade: None, ..self.step_ms };
        Self { step_ms, ..self.clone() }
    }

    /// The time that a request takes outside of its steps.
    #[must_use]
    pub fn request_time(&self) -> Duration {
        Duration::from_secs_f64(self.request_ms / 1e3)
    }

    /// The time to copy `tokens` from host memory to the device.
    #[must_use]
    pub fn host_time(&self, tokens: usize) -> Duration {
        self.copy_time(tokens, self.host_gigabytes_per_second)
    }

    /// The time to copy `tokens` from disk to the device.
    #[must_use]
    pub fn disk_time(&self, tokens: usize) -> Duration {
        self.copy_time(tokens, self.disk_gigabytes_per_second)
    }

    /// The time to transfer `tokens` from another engine.
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
    fn an_unknown_name_is_refused_with_the_available_ones() {
        let error = EngineProfile::built_in("9b").unwrap_err().to_string();
        assert!(error.contains("`9b`") && error.contains("8b-h200, 32b-h100x2"), "{error}");
    }

    #[test]
    fn an_invalid_profile_is_refused_with_all_its_problems() {
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
