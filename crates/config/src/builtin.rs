//! The built-in profiles, for `--policy NAME` and routes.

use crate::settings::NamedProfile;

/// Names and texts, sorted by name.
#[rustfmt::skip]
pub const BUILTIN_PROFILES: &[(&str, &str)] = &[
    ("cache-affinity", include_str!("../profiles/cache-affinity.yaml")),
    ("cache-aware", include_str!("../profiles/cache-aware.yaml")),
    ("cache-aware-sticky", include_str!("../profiles/cache-aware-sticky.yaml")),
    ("consistent-hash", include_str!("../profiles/consistent-hash.yaml")),
    ("dynamo", include_str!("../profiles/dynamo.yaml")),
    ("geo", include_str!("../profiles/geo.yaml")),
    ("least-load", include_str!("../profiles/least-load.yaml")),
    ("llm-d", include_str!("../profiles/llm-d.yaml")),
    ("llm-d-sticky", include_str!("../profiles/llm-d-sticky.yaml")),
    ("lmetric", include_str!("../profiles/lmetric.yaml")),
    ("lora", include_str!("../profiles/lora.yaml")),
    ("min-ttft", include_str!("../profiles/min-ttft.yaml")),
    ("prefill-decode", include_str!("../profiles/prefill-decode.yaml")),
    ("preprocess-prefill-decode", include_str!("../profiles/preprocess-prefill-decode.yaml")),
    ("round-robin", include_str!("../profiles/round-robin.yaml")),
    ("sglang", include_str!("../profiles/sglang.yaml")),
    ("sticky-least-loaded", include_str!("../profiles/sticky-least-loaded.yaml")),
    (TEXT_PROFILE, BY_TEXT),
];

/// Without events, a prompt is assumed to stay in the cache of its pod for ten minutes.
const BY_TEXT: &str = "\
description: As cache-aware, by the prompts' text, for models whose tokenizer is not at hand
prepare: [text_blocks]
filter: [healthy, model, steady]
score:
  - predicted_ttft
pick: max_score
hold:
  unless:
    - backlog: {at_most_ms: 0, at_most_steps: 1, waiting: 4}
  patience: 1
  fair_for: 1s
  deadline: 10m
speculate: 600s
without_events: approximate
";

/// The profile of requests without a route or option.
pub const DEFAULT_PROFILE: &str = "cache-aware";

/// The default profile for models without a tokenizer.
pub const TEXT_PROFILE: &str = "cache-aware-text";

/// The text of a built-in profile.
#[must_use]
pub fn builtin_profile(name: &str) -> Option<&'static str> {
    BUILTIN_PROFILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The profile that compares prompts by their text.
#[must_use]
pub fn text_profile() -> NamedProfile {
    let file = format!("built-in profile `{TEXT_PROFILE}`");
    NamedProfile { name: TEXT_PROFILE.to_owned(), file, text: BY_TEXT.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_routing::{Profile, ProfileEnv};

    #[test]
    fn every_file_of_the_folder_is_a_valid_built_in_profile() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
        let files = std::fs::read_dir(folder).unwrap().filter(|file| {
            file.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "yaml")
        });
        assert_eq!(files.count() + 1, BUILTIN_PROFILES.len(), "and one without a file");
        for (name, text) in BUILTIN_PROFILES {
            Profile::check(name, text, &ProfileEnv::default()).unwrap();
        }
        assert!(builtin_profile(DEFAULT_PROFILE).is_some());
    }
}
