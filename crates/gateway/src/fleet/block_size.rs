//! The block size of each model in the index, and the sizes that its engines report.
//!
//! Predictions are exact if the index and the engine use the same block size. If none is
//! configured, an engine's own size is read before it gets requests, and the index uses the
//! greatest common divisor of all engines. A configured size has priority, and an engine that
//! reports another causes a warning:
//!
//! - If the engine's size is a multiple of the index's, a prompt that ends or diverges within an
//!   engine's block is predicted to hit the index blocks before that point, which the engine
//!   computes again. Fleets of engines with different sizes have the same error.
//! - Otherwise the engine's blocks do not align with the index's, and its events are refused.
//!
//! Limit: for a hybrid model, a vLLM that does not report `effective_attention_block_size` reports
//! the smallest block of all its cache groups, or its default. Its events carry the right one.

use crate::fleet::registry::{PodRegistry, lock};
use crate::fleet::scrape;
use crate::fleet::snapshot::PodEntry;
use crate::routes::RouteTable;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};
use wornpath_blocks::Scope;
use wornpath_config::{BlockSize, ModelSettings, Settings};
use wornpath_events::checkpoint::PodCheckpoint;
use wornpath_routing::Name;

/// An engine whose block size differs from the configured one, so that predictions for it are
/// inexact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Tokens per block in the index, as configured.
    pub configured: NonZeroUsize,
    /// Tokens per block of the engine's cache, as reported.
    pub engine: NonZeroUsize,
    model: String,
    /// The size to configure: the common divisor of the engines that have reported.
    recommended: NonZeroUsize,
    has_events: bool,
}

/// The effect and the cure.
impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { configured, engine, model, recommended, has_events } = self;
        let is_multiple = engine.get().is_multiple_of(configured.get());
        if *has_events && !is_multiple {
            write!(f, "its cache events do not align with the index's blocks and are refused")?;
        } else {
            let most = engine.max(configured);
            write!(f, "predictions for this pod are off by less than {most} tokens")?;
        }
        write!(
            f,
            "; set `block_size` of model `{model}` to {recommended}, or --block-size {recommended}"
        )?;
        if is_multiple {
            write!(f, ", unless other engines of the model have smaller blocks")?;
        }
        Ok(())
    }
}

/// The mismatch between the configured block size and that of a pod, if there is one.
pub fn mismatch(entry: &PodEntry, all: &[PodEntry], settings: &Settings) -> Option<Mismatch> {
    let model = model_of(entry, settings)?;
    model.tokenizer.as_ref()?;
    let (BlockSize::Configured(configured), Some(engine)) = (model.block_size, entry.block_size)
    else {
        return None;
    };
    if engine == configured {
        return None;
    }
    let recommended = common_size(&model.name, all, settings).unwrap_or(engine);
    // No better size exists if other engines of the model need the configured one.
    (recommended != configured).then(|| Mismatch {
        configured,
        engine,
        model: model.name.clone(),
        recommended,
        has_events: entry.has_events(),
    })
}

/// The listed model that a pod serves.
pub fn model_of<'s>(entry: &PodEntry, settings: &'s Settings) -> Option<&'s ModelSettings> {
    let named = |name: &Name| settings.models.iter().find(|model| *name == *model.name.as_str());
    entry.pod.facts().models.iter().find_map(named)
}

/// Restores the block sizes that engines reported before the restart from the checkpoint, whose
/// blocks are useless under another size.
pub(crate) fn restore(settings: &mut Settings, records: &[PodCheckpoint]) {
    for model in &mut settings.models {
        let root = settings.key.root(&Scope::model(&model.name));
        let record = records.iter().find(|record| record.identity.root == root);
        let size = record.and_then(|record| NonZeroUsize::new(record.identity.block_size as usize));
        if let (BlockSize::Unknown(_), Some(size)) = (model.block_size, size) {
            model.block_size = BlockSize::Unknown(size);
        }
    }
}

/// Keeps the reported sizes under a new configuration, unless that configures a size.
pub(crate) fn carry_over(before: &Settings, settings: &mut Settings, entries: &[PodEntry]) {
    for model in &mut settings.models {
        let known = before.models.iter().find(|known| known.name == model.name);
        if let (BlockSize::Unknown(_), Some(known)) = (model.block_size, known) {
            model.block_size = known.block_size;
        }
    }
    set_reported(settings, entries);
}

impl PodRegistry {
    /// Records the block size on the metrics page of the engine at `url`. `page` is none if it
    /// could not be read.
    pub(crate) fn record_block_size(&self, url: &str, page: Option<&str>) {
        let reported = page.and_then(scrape::block_size);
        if self.is_recorded(url, reported) {
            return;
        }
        let _changing = lock(&self.changing);
        let before = self.settings();
        let mut settings = Settings::clone(&before);
        let mut entries = self.snapshot().entries().to_vec();
        let mut changed: Vec<Name> = Vec::new();
        for entry in entries.iter_mut().filter(|entry| entry.config.url() == url) {
            if reported.is_some() && entry.block_size != reported {
                entry.block_size = reported;
                changed.push(entry.pod.facts().name.clone());
            }
        }
        set_reported(&mut settings, &entries);
        for entry in entries.iter().filter(|entry| entry.config.url() == url) {
            assume_default(&mut settings, entry);
        }
        self.apply_block_sizes(&before, settings, &entries);
        if changed.is_empty() {
            return;
        }
        self.publish(entries);
        let snapshot = self.snapshot();
        let settings = self.settings();
        for entry in changed.iter().filter_map(|name| snapshot.named(name.as_str())) {
            let Some(mismatch) = mismatch(entry, snapshot.entries(), &settings) else { continue };
            let Mismatch { configured, engine, .. } = mismatch;
            tracing::warn!(pod = %entry.pod.facts().name, configured, engine, "block size mismatch: {mismatch}");
        }
    }

    /// Whether a report changes nothing. A first report without a size does: the default is then
    /// assumed.
    fn is_recorded(&self, url: &str, reported: Option<NonZeroUsize>) -> bool {
        let snapshot = self.snapshot();
        let settings = self.settings();
        let is_unasked = |model: &ModelSettings| matches!(model.block_size, BlockSize::Unknown(_));
        let mut ranks = snapshot.entries().iter().filter(|entry| entry.config.url() == url);
        ranks.all(|entry| {
            let is_known = reported.is_none() || entry.block_size == reported;
            is_known && !model_of(entry, &settings).is_some_and(is_unasked)
        })
    }

    /// Applies the block sizes of `settings`, which otherwise equal `before`.
    fn apply_block_sizes(&self, before: &Settings, settings: Settings, entries: &[PodEntry]) {
        let changed = before.models.iter().zip(&settings.models);
        let changed: Vec<_> = changed
            .filter(|(before, now)| before.block_size != now.block_size)
            .map(|(before, now)| (before.block_size.tokens(), now.clone()))
            .collect();
        if changed.is_empty() {
            return;
        }
        let is_resized =
            |(before, now): &(NonZeroUsize, ModelSettings)| *before != now.block_size.tokens();
        if changed.iter().any(is_resized) {
            match RouteTable::check(&settings) {
                Ok(routing) => {
                    let routing = Arc::new(routing);
                    *self.routes.write().unwrap_or_else(PoisonError::into_inner) = routing;
                }
                Err(error) => {
                    tracing::error!(%error, "reported block size refused");
                    return;
                }
            }
        }
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        entries.iter().for_each(|entry| self.bind_model(entry));
        for (_, model) in changed {
            if let BlockSize::Reported(tokens) = model.block_size {
                tracing::info!(
                    model = model.name,
                    block_size = tokens,
                    "block size reported by engines"
                );
            }
        }
    }
}

/// Sets the size of every model without a configured one to the common divisor of the reported
/// sizes. It never grows: an engine with smaller blocks that was removed may come back.
pub(crate) fn set_reported(settings: &mut Settings, entries: &[PodEntry]) {
    for at in 0..settings.models.len() {
        let model = &settings.models[at];
        let Some(size) = common_size(&model.name, entries, settings) else { continue };
        let size = match model.block_size {
            BlockSize::Configured(_) => continue,
            BlockSize::Reported(known) => gcd(known, size),
            BlockSize::Assumed(_) | BlockSize::Unknown(_) => size,
        };
        settings.models[at].block_size = BlockSize::Reported(size);
    }
}

/// Assumes the default size for the model of a pod that was queried, if no engine has reported one,
/// and warns once.
pub(crate) fn assume_default(settings: &mut Settings, entry: &PodEntry) {
    let Some(name) = model_of(entry, settings).map(|model| model.name.clone()) else { return };
    for model in settings.models.iter_mut().filter(|model| model.name == name) {
        let BlockSize::Unknown(tokens) = model.block_size else { continue };
        model.block_size = BlockSize::Assumed(tokens);
        if model.tokenizer.is_some() {
            let pod = &entry.pod.facts().name;
            tracing::warn!(%pod, model = name, block_size = tokens, "engine does not report its block size; assuming {tokens} tokens; \
                set `block_size` of the model, or --block-size");
        }
    }
}

/// The greatest common divisor of the sizes that the engines of a model have reported.
fn common_size(model: &str, entries: &[PodEntry], settings: &Settings) -> Option<NonZeroUsize> {
    let serves =
        |entry: &&PodEntry| model_of(entry, settings).is_some_and(|known| known.name == model);
    entries.iter().filter(serves).filter_map(|entry| entry.block_size).reduce(gcd)
}

fn gcd(one: NonZeroUsize, other: NonZeroUsize) -> NonZeroUsize {
    match NonZeroUsize::new(one.get() % other.get()) {
        None => other,
        Some(rest) => gcd(other, rest),
    }
}

#[cfg(test)]
mod tests;
