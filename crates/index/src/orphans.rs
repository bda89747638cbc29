//! Stored blocks whose prefix is not known yet.
//!
//! A block's own hash needs its parent's, so a store that names an unknown parent cannot be entered.
//! It must not be lost either: the parent may come later (events out of order, an offload tier that
//! speaks first). It waits here, bounded, and credits nobody meanwhile. A name without any content
//! waits likewise, for the event that says what it names.
//!
//! A waiting block that was removed again may be what its waiting children hang from; it then stays,
//! held by no tier, until they go.

use std::collections::HashMap;

use wornpath_blocks::ContentHash;

use crate::event::{EngineHash, Location, Tier};

/// A block that waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphan {
    /// Its parent and its contents; nothing for a bare name.
    pub(crate) link: Option<(EngineHash, Box<[ContentHash]>)>,
    /// Copies per tier.
    pub(crate) copies: [u32; 4],
    pub(crate) locations: [Option<Location>; 4],
}

impl Orphan {
    fn is_held(&self) -> bool {
        self.copies.iter().any(|count| *count > 0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    waiters: HashMap<EngineHash, Orphan>,
    children: HashMap<EngineHash, Vec<EngineHash>>,
}

impl Orphans {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn contains(&self, engine: EngineHash) -> bool {
        self.waiters.contains_key(&engine)
    }

    /// The block itself, made if it does not wait yet.
    pub(crate) fn enter(&mut self, engine: EngineHash) -> &mut Orphan {
        self.waiters.entry(engine).or_default()
    }

    /// Says what a waiting block hangs from, unless that is known.
    pub(crate) fn link(
        &mut self,
        engine: EngineHash,
        parent: EngineHash,
        contents: &[ContentHash],
    ) {
        let waiter = self.waiters.entry(engine).or_default();
        if waiter.link.is_none() && parent != engine {
            waiter.link = Some((parent, contents.into()));
            self.children.entry(parent).or_default().push(engine);
        }
    }

    /// Takes out a block that has become known.
    pub(crate) fn take(&mut self, engine: EngineHash) -> Option<Orphan> {
        let waiter = self.waiters.remove(&engine)?;
        if let Some((parent, _)) = &waiter.link {
            self.unlink(*parent, engine);
        }
        Some(waiter)
    }

    /// Takes out the blocks that wait for `parent`.
    pub(crate) fn take_children(&mut self, parent: EngineHash) -> Vec<(EngineHash, Orphan)> {
        let children = self.children.remove(&parent).unwrap_or_default();
        let waiter = |child| self.waiters.remove(&child).map(|waiter| (child, waiter));
        children.into_iter().filter_map(waiter).collect()
    }

    /// Takes copies from a waiting block: one, or all where the source does not count. Whether there
    /// was one.
    pub(crate) fn remove(&mut self, engine: EngineHash, tier: Tier, all: bool) -> bool {
        let Some(waiter) = self.waiters.get_mut(&engine) else { return false };
        let count = &mut waiter.copies[tier as usize];
        if *count == 0 {
            return false;
        }
        *count = if all { 0 } else { *count - 1 };
        self.drop_useless(engine);
        true
    }

    /// Each turn takes a waiter out, so that engines' names in a circle end it too.
    fn drop_useless(&mut self, mut engine: EngineHash) {
        while let Some(waiter) = self.waiters.get(&engine)
            && !waiter.is_held()
            && !self.children.contains_key(&engine)
        {
            let Some(Orphan { link: Some((parent, _)), .. }) = self.waiters.remove(&engine) else {
                return;
            };
            self.unlink(parent, engine);
            engine = parent;
        }
    }

    fn unlink(&mut self, parent: EngineHash, child: EngineHash) {
        if let Some(children) = self.children.get_mut(&parent) {
            children.retain(|other| *other != child);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }
}
