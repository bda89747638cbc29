//! The block size of each model in the index, and what its engines report.
//!
//! Predictions are exact if the index cuts prompts as the engine does. Where no size is configured, an engine is asked for its
//! own before it gets requests, and the index takes the greatest size that divides those of all engines. A size that is
//! configured counts, and an engine that reports another is warned of:
//!
//! - If the index's blocks are parts of the engine's, a prompt that ends or departs within an engine's block is predicted to
//!   hit the parts before that, which the engine computes all the same. Engines of different sizes have it no better.
//! - If they are not, the engine's blocks cannot be cut into the index's, and its events are refused.
//!
//! The limit: of a hybrid model, a vLLM that does not report `effective_attention_block_size` reports the smallest block of
//! all its cache groups, or its default. Its events carry the right one.

use crate::fleet::PodEntry;
use crate::routing::Routing;
use crate::scrape;
use crate::settings::{BlockSize, ModelSettings, Settings};
use crate::state::{Gateway, lock};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};
use wornpath_blocks::Scope;
use wornpath_events::checkpoint::PodCheckpoint;
use wornpath_routing::Name;

/// An engine whose blocks are not the configured ones, so that predictions for it are off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    pub(crate) configured: NonZeroUsize,
    pub(crate) engine: NonZeroUsize,
    model: String,
    /// The size to configure, by all engines of the model that have reported.
    cure: NonZeroUsize,
    has_events: bool,
}

/// What it does and what to do.
impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { configured, engine, model, cure, has_events } = self;
        let is_part = engine.get().is_multiple_of(configured.get());
        if *has_events && !is_part {
            write!(f, "its cache events cannot be cut into the index's blocks and are refused")?;
        } else {
            let most = engine.max(configured);
            write!(f, "predictions for this pod are off by less than {most} tokens")?;
        }
        write!(f, "; set `block_size` of model `{model}` to {cure}, or --block-size {cure}")?;
        if is_part {
            write!(f, ", unless other engines of the model have smaller blocks")?;
        }
        Ok(())
    }
}

/// Whether predictions for a pod are off because of what is configured.
pub(crate) fn mismatch(seat: &PodEntry, all: &[PodEntry], settings: &Settings) -> Option<Mismatch> {
    let model = model_of(seat, settings)?;
    model.tokenizer.as_ref()?;
    let (BlockSize::Configured(configured), Some(engine)) = (model.block_size, seat.block_size)
    else {
        return None;
    };
    if engine == configured {
        return None;
    }
    let cure = common_size(&model.name, all, settings).unwrap_or(engine);
    // Where other engines of the model need it, there is no better size.
    (cure != configured).then(|| Mismatch {
        configured,
        engine,
        model: model.name.clone(),
        cure,
        has_events: seat.settings.events.is_some(),
    })
}

/// The listed model that a pod serves.
pub(crate) fn model_of<'s>(seat: &PodEntry, settings: &'s Settings) -> Option<&'s ModelSettings> {
    let named = |name: &Name| settings.models.iter().find(|model| *name == *model.name.as_str());
    seat.pod.facts().models.iter().find_map(named)
}

/// What a checkpoint was written by is what engines reported before the start: under another size it is worth nothing.
pub(crate) fn recall(settings: &mut Settings, records: &[PodCheckpoint]) {
    for model in &mut settings.models {
        let root = settings.key.root(&Scope::model(&model.name));
        let record = records.iter().find(|record| record.identity.root == root);
        let size = record.and_then(|record| NonZeroUsize::new(record.identity.block_size as usize));
        if let (BlockSize::Unasked(_), Some(size)) = (model.block_size, size) {
            model.block_size = BlockSize::Unasked(size);
        }
    }
}

/// What engines reported goes on to count under a new configuration, unless it says a size itself.
pub(crate) fn carry_over(before: &Settings, settings: &mut Settings, seats: &[PodEntry]) {
    for model in &mut settings.models {
        let known = before.models.iter().find(|known| known.name == model.name);
        if let (BlockSize::Unasked(_), Some(known)) = (model.block_size, known) {
            model.block_size = known.block_size;
        }
    }
    cut(settings, seats);
}

impl Gateway {
    /// Takes in what the engine at `url` reports of its block size on its page of metrics; none if there is no page.
    pub(crate) fn note_block_size(&self, url: &str, page: Option<&str>) {
        let reported = page.and_then(scrape::block_size);
        if self.has_noted(url, reported) {
            return;
        }
        let _changing = lock(&self.changing);
        let before = self.settings();
        let (mut settings, mut seats) = (Settings::clone(&before), self.roster().seats().to_vec());
        let mut news: Vec<Name> = Vec::new();
        for seat in seats.iter_mut().filter(|seat| seat.settings.url == url) {
            if reported.is_some() && seat.block_size != reported {
                seat.block_size = reported;
                news.push(seat.pod.facts().name.clone());
            }
        }
        cut(&mut settings, &seats);
        for seat in seats.iter().filter(|seat| seat.settings.url == url) {
            assume(&mut settings, seat);
        }
        self.go_by(&before, settings, &seats);
        if news.is_empty() {
            return;
        }
        self.seat(seats);
        let (roster, settings) = (self.roster(), self.settings());
        for seat in news.iter().filter_map(|name| roster.named(name.as_str())) {
            let Some(mismatch) = mismatch(seat, roster.seats(), &settings) else { continue };
            let Mismatch { configured, engine, .. } = mismatch;
            tracing::warn!(pod = %seat.pod.facts().name, configured, engine, "block size mismatch: {mismatch}");
        }
    }

    /// Whether nothing is new if the engine at `url` reports this, or nothing.
    fn has_noted(&self, url: &str, reported: Option<NonZeroUsize>) -> bool {
        let (roster, settings) = (self.roster(), self.settings());
        let is_unasked = |model: &ModelSettings| matches!(model.block_size, BlockSize::Unasked(_));
        let mut there = roster.seats().iter().filter(|seat| seat.settings.url == url);
        there.all(|seat| {
            let is_known = reported.is_none() || seat.block_size == reported;
            is_known && !model_of(seat, &settings).is_some_and(is_unasked)
        })
    }

    /// Goes by the block sizes of `settings`, which are otherwise as before.
    fn go_by(&self, before: &Settings, settings: Settings, seats: &[PodEntry]) {
        let changed = before.models.iter().zip(&settings.models);
        let changed: Vec<_> = changed
            .filter(|(before, now)| before.block_size != now.block_size)
            .map(|(before, now)| (before.block_size.tokens(), now.clone()))
            .collect();
        if changed.is_empty() {
            return;
        }
        let is_cut_anew =
            |(before, now): &(NonZeroUsize, ModelSettings)| *before != now.block_size.tokens();
        if changed.iter().any(is_cut_anew) {
            match Routing::check(&settings) {
                Ok(routing) => {
                    let routing = Arc::new(routing);
                    *self.routing.write().unwrap_or_else(PoisonError::into_inner) = routing;
                }
                Err(error) => {
                    tracing::error!("block size as reported by engines cannot be used: {error}");
                    return;
                }
            }
        }
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        seats.iter().for_each(|seat| self.bind(seat));
        for (_, model) in changed {
            if let BlockSize::Reported(tokens) = model.block_size {
                tracing::info!(
                    model = model.name,
                    block_size = tokens,
                    "block size as its engines report"
                );
            }
        }
    }
}

/// Sets the size of every model that has none configured, by what its engines have reported. It never grows: an engine with
/// smaller blocks that went may come back.
fn cut(settings: &mut Settings, seats: &[PodEntry]) {
    for at in 0..settings.models.len() {
        let model = &settings.models[at];
        let Some(size) = common_size(&model.name, seats, settings) else { continue };
        let size = match model.block_size {
            BlockSize::Configured(_) => continue,
            BlockSize::Reported(known) => divisor(known, size),
            BlockSize::Assumed(_) | BlockSize::Unasked(_) => size,
        };
        settings.models[at].block_size = BlockSize::Reported(size);
    }
}

/// A pod was asked. If nobody has reported a size of its model, that is told once.
fn assume(settings: &mut Settings, seat: &PodEntry) {
    let Some(name) = model_of(seat, settings).map(|model| model.name.clone()) else { return };
    for model in settings.models.iter_mut().filter(|model| model.name == name) {
        let BlockSize::Unasked(tokens) = model.block_size else { continue };
        model.block_size = BlockSize::Assumed(tokens);
        if model.tokenizer.is_some() {
            let pod = &seat.pod.facts().name;
            tracing::warn!(%pod, model = name, block_size = tokens, "engine does not report its block size, so {tokens} tokens are assumed; \
                set `block_size` of the model, or --block-size");
        }
    }
}

/// The greatest size that divides those of all engines of a model that have reported one.
fn common_size(model: &str, seats: &[PodEntry], settings: &Settings) -> Option<NonZeroUsize> {
    let is_its =
        |seat: &&PodEntry| model_of(seat, settings).is_some_and(|known| known.name == model);
    seats.iter().filter(is_its).filter_map(|seat| seat.block_size).reduce(divisor)
}

/// The greatest common divisor.
fn divisor(one: NonZeroUsize, other: NonZeroUsize) -> NonZeroUsize {
    match NonZeroUsize::new(one.get() % other.get()) {
        None => other,
        Some(rest) => divisor(other, rest),
    }
}

#[cfg(test)]
mod tests;
