//! The model of a batch: the one that its first line names, since a batch has one model.
//!
//! It determines the block size and the pods of the plan. Lines that name another model are sent as
//! well; the pipeline then chooses their pod.

use crate::file_reader::{StoredBytes, store_error};
use std::io::{self, BufRead, BufReader, Read};
use wornpath_config::{ModelSettings, Settings};
use wornpath_execution::field;
use wornpath_gateway::fleet::snapshot::FleetSnapshot;
use wornpath_jobs::{Store, StoreError};
use wornpath_routing::{FleetPod, Health, Role};

/// The model name in the first line of a batch; empty if it has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BatchModel(String);

impl BatchModel {
    /// Reads the first line of an input whose lines have at most `most_bytes`.
    pub(crate) fn read(
        store: &dyn Store,
        file: &str,
        most_bytes: usize,
    ) -> Result<Self, StoreError> {
        let reader = StoredBytes::open(store, file)?;
        Self::of(BufReader::new(reader).take(most_bytes as u64)).map_err(store_error)
    }

    fn of(mut input: impl BufRead) -> io::Result<Self> {
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line)? > 0 {
            let text = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line).trim_ascii();
            if !text.is_empty() {
                return Ok(Self(named(text).unwrap_or_default()));
            }
            line.clear();
        }
        Ok(Self(String::new()))
    }

    /// Its settings. A configured name is used without looking at the pods, because gateways that
    /// share a batch must plan the same order, whatever pods each of them has. A batch without a
    /// model name uses the first model.
    pub(crate) fn settings<'a>(
        &self,
        snapshot: &FleetSnapshot,
        settings: &'a Settings,
    ) -> Option<&'a ModelSettings> {
        let models = &settings.models;
        let name = &self.0;
        let known = models.iter().find(|model| model.name == *name || model.aliases.contains(name));
        known
            .or_else(|| {
                let base = snapshot.model(name).base;
                models.iter().find(|model| base == *model.name.as_str())
            })
            .or(models.first())
    }

    /// The pods that it can be planned for now. If no pod serves it, and every pod has reported its
    /// models, these are all pods: the lines then fail as online requests would.
    pub(crate) fn ready<'a>(&self, snapshot: &'a FleetSnapshot) -> Vec<&'a FleetPod> {
        let wanted = snapshot.model(&self.0);
        let serves = |pod: &FleetPod| {
            let facts = pod.facts();
            facts.models.contains(&wanted.base)
                && wanted.lora.as_ref().is_none_or(|lora| facts.loras.contains(lora))
        };
        let may_serve = |pod: &&FleetPod| serves(pod) || pod.facts().models.is_empty();
        let pods = snapshot.fleet().pods();
        let is_unknown = !pods.iter().filter(|pod| is_serving(pod)).any(|pod| may_serve(&pod));
        pods.iter().filter(|pod| is_ready(pod) && (is_unknown || serves(pod))).collect()
    }
}

/// Whether it has the role that batch requests need.
pub(crate) fn is_serving(pod: &FleetPod) -> bool {
    pod.facts().roles.contains(&Role::named(Role::SERVE))
}

/// Whether requests can be planned for it now.
pub(crate) fn is_ready(pod: &FleetPod) -> bool {
    pod.state().health() == Health::Up && is_serving(pod)
}

fn named(line: &[u8]) -> Option<String> {
    let body = field(line, "body").ok()??;
    serde_json::from_slice(field(body, "model").ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_the_first_non_blank_line() {
        let model = |input: &str| BatchModel::of(input.as_bytes()).unwrap().0;
        let line =
            |model: &str| format!("{{\"body\": {{\"model\": \"{model}\", \"prompt\": \"p\"}}}}\n");
        assert_eq!(model(&format!("\u{feff}\n \r\n{}{}", line("a"), line("b"))), "a");
        for silent in ["", "\n", "no object", "{\"body\": {\"prompt\": \"p\"}}", "{\"body\": 1}"] {
            assert_eq!(model(silent), "", "{silent}");
        }
    }
}
