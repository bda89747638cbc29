//! The stop strings of a request.

use serde_json::{Map, Value};

/// The stop strings of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct StopStrings {
    pub(super) all: Vec<String>,
    /// Whether the text ends with the one that was found, so that nothing is held back.
    pub(super) are_included: bool,
}

impl StopStrings {
    /// Those of a body.
    pub(super) fn of(fields: &Map<String, Value>) -> Self {
        let all = match fields.get("stop").or_else(|| fields.get("stop_sequences")) {
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => {
                stops.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let are_included =
            fields.get("include_stop_str_in_output").and_then(Value::as_bool).unwrap_or(false);
        Self { all, are_included }
    }

    /// The characters that an engine holds back, because they may begin a stop string.
    pub(super) fn held_back(&self) -> usize {
        let longest = self.all.iter().map(|stop| stop.chars().count()).max().unwrap_or(0);
        if self.are_included { 0 } else { longest.saturating_sub(1) }
    }

    /// The bytes at the end of a text that may begin a stop string.
    pub(super) fn begun(&self, text: &str) -> usize {
        let begun = |stop: &String| {
            let all = stop.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
            all.rev().find(|at| text.ends_with(&stop[..*at])).unwrap_or(0)
        };
        self.all.iter().map(begun).max().unwrap_or(0)
    }
}
