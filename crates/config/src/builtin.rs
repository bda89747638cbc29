//! The profiles that come with wornpath, so that `--policy NAME` and routes can name them.

/// Names and texts, by name.
#[rustfmt::skip]
pub const SHIPPED: &[(&str, &str)] = &[
    ("cache-affinity", include_str!("../../../profiles/cache-affinity.yaml")),
    ("cache-aware", include_str!("../../../profiles/cache-aware.yaml")),
    ("cache-aware-sticky", include_str!("../../../profiles/cache-aware-sticky.yaml")),
    ("consistent-hash", include_str!("../../../profiles/consistent-hash.yaml")),
    ("dynamo", include_str!("../../../profiles/dynamo.yaml")),
    ("geo", include_str!("../../../profiles/geo.yaml")),
    ("least-load", include_str!("../../../profiles/least-load.yaml")),
    ("llm-d", include_str!("../../../profiles/llm-d.yaml")),
    ("llm-d-sticky", include_str!("../../../profiles/llm-d-sticky.yaml")),
    ("lmetric", include_str!("../../../profiles/lmetric.yaml")),
    ("lora", include_str!("../../../profiles/lora.yaml")),
    ("min-ttft", include_str!("../../../profiles/min-ttft.yaml")),
    ("prefill-decode", include_str!("../../../profiles/prefill-decode.yaml")),
    ("preprocess-prefill-decode", include_str!("../../../profiles/preprocess-prefill-decode.yaml")),
    ("round-robin", include_str!("../../../profiles/round-robin.yaml")),
    ("sglang", include_str!("../../../profiles/sglang.yaml")),
    ("sticky-least-loaded", include_str!("../../../profiles/sticky-least-loaded.yaml")),
    (TEXT_PROFILE, BY_TEXT),
];

/// What a pod was sent is expected to stay for ten minutes, because nobody tells.
const BY_TEXT: &str = "\
description: As cache-aware, by the prompts' text, for models whose tokenizer is not at hand
prepare: [text_blocks]
filter: [healthy, model]
score:
  - predicted_ttft: {miss: 1}
pick: max_score
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 4}
  patience: 1
  deadline: 5m
speculate: 600s
without_events: approximate
";

/// The profile for requests that no route or option chose one for.
pub const DEFAULT_PROFILE: &str = "cache-aware";

/// The same where no model has a tokenizer.
pub const TEXT_PROFILE: &str = "cache-aware-text";

/// The text of a shipped profile.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_routing::{Profile, ProfileEnv};

    #[test]
    fn every_file_of_the_folder_is_shipped_and_good() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
        let files = std::fs::read_dir(folder).unwrap().filter(|file| {
            file.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "yaml")
        });
        assert_eq!(files.count() + 1, SHIPPED.len(), "and one that is no file");
        for (name, text) in SHIPPED {
            Profile::check(name, text, &ProfileEnv::default()).unwrap();
        }
        assert!(shipped(DEFAULT_PROFILE).is_some());
    }
}
