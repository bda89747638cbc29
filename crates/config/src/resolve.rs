//! Converts a valid configuration to the settings of a gateway.

use wornpath_routing::{PodFacts, Role, Topology};

use crate::config::Config;
use crate::sections::pods::{Events, PodConfig};
use crate::settings::{EventSource, ModelSettings, PodSettings, Settings};
use crate::tokenizers::{TokenizerConfigError, Tokenizers};

impl Config {
    /// The settings, with the tokenizers of all models loaded.
    ///
    /// # Errors
    /// If a tokenizer cannot be loaded.
    pub fn settings(&self, tokenizers: &mut Tokenizers) -> Result<Settings, TokenizerConfigError> {
        let mut settings = self.settings.clone();
        for model in &self.models {
            settings.models.push(ModelSettings {
                name: model.name.clone(),
                block_size: model.block_size.into(),
                tokenizer: tokenizers.get(&model.tokenizer)?,
                aliases: model.aliases.clone(),
            });
        }
        settings.pods = self.pods.iter().flat_map(PodConfig::settings).collect();
        Ok(settings)
    }
}

impl PodConfig {
    /// The pods behind this address: one, or one per rank.
    #[must_use]
    pub fn settings(&self) -> Vec<PodSettings> {
        if self.ranks == 1 {
            return vec![self.rank(None)];
        }
        (0..self.ranks).map(|rank| self.rank(Some(rank))).collect()
    }

    fn rank(&self, rank: Option<u32>) -> PodSettings {
        let [host, rack, zone, region] = self.topology.clone().map(|name| name.map(Into::into));
        let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        let name = rank.map_or_else(|| self.name.clone(), |rank| format!("{}/{rank}", self.name));
        let plain = PodSettings::at(&self.url);
        let facts = PodFacts {
            name: name.into(),
            endpoint: self.url.as_str().into(),
            rank,
            roles: self.roles.iter().map(|role| Role::named(role.as_str())).collect(),
            models: names(&self.models),
            loras: names(&self.loras),
            context_tokens: self.context_tokens,
            kv_tokens: self.kv_tokens,
            engine: self.speed.as_deref().map(Into::into),
            labels: self
                .labels
                .iter()
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect(),
            topology: Topology { host, rack, zone, region },
        };
        let bootstrap_port = self.bootstrap_port.unwrap_or(plain.bootstrap_port);
        let events = self.source(rank);
        let key_file = self.key_file.clone();
        let metrics = self.metrics.clone();
        let named = |events: &Events| match events {
            Events::Source(name) => Some(name.clone()),
            Events::Zmq(_) | Events::ReportedByEngine => None,
        };
        let event_sources = self.events.iter().filter_map(named).collect();
        PodSettings { facts, events, event_sources, metrics, bootstrap_port, key_file, ..plain }
    }

    fn source(&self, rank: Option<u32>) -> Option<EventSource> {
        let rank = u16::try_from(rank.unwrap_or(0)).unwrap_or(0);
        let zmq = self.events.iter().find_map(|events| match events {
            // The check of the configuration ensured that the last rank has a valid port.
            Events::Zmq(address) => address.of_rank(rank).ok(),
            Events::ReportedByEngine | Events::Source(_) => None,
        });
        match zmq {
            Some(address) => Some(EventSource::ZeroMq(address)),
            None if self.events.contains(&Events::ReportedByEngine) => {
                Some(EventSource::ReportedByEngine)
            }
            None => (!self.events.is_empty()).then_some(EventSource::External),
        }
    }
}
