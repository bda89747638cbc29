//! Orphans: stored blocks whose prefix is not known yet.
//!
//! A block's hash depends on its parent's, so a stored event with an unknown parent cannot be
//! inserted. It must not be lost either: the parent may arrive later (events out of order, an
//! offload tier that reports first). The block is kept here, up to a limit, and no query reports it
//! meanwhile. A name without content is kept likewise, until an event tells its content.
//!
//! An orphan that is removed again may be the parent of other orphans; it then stays, held by no
//! tier, until they are removed.

use std::collections::HashMap;

use wornpath_blocks::ContentHash;

use crate::event::{EngineHash, Location, Tier};

/// A block whose prefix is unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphan {
    /// Its parent and its contents; `None` for a bare name.
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
    blocks: HashMap<EngineHash, Orphan>,
    children: HashMap<EngineHash, Vec<EngineHash>>,
}

impl Orphans {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn contains(&self, engine: EngineHash) -> bool {
        self.blocks.contains_key(&engine)
    }

    /// The orphan of this name, created if absent.
    pub(crate) fn entry(&mut self, engine: EngineHash) -> &mut Orphan {
        self.blocks.entry(engine).or_default()
    }

    /// Sets the parent and the contents of an orphan, unless they are known.
    pub(crate) fn link(
        &mut self,
        engine: EngineHash,
        parent: EngineHash,
        contents: &[ContentHash],
    ) {
        let orphan = self.blocks.entry(engine).or_default();
        if orphan.link.is_none() && parent != engine {
            orphan.link = Some((parent, contents.into()));
            self.children.entry(parent).or_default().push(engine);
        }
    }

    /// Removes a block that has become known.
    pub(crate) fn take(&mut self, engine: EngineHash) -> Option<Orphan> {
        let orphan = self.blocks.remove(&engine)?;
        if let Some((parent, _)) = &orphan.link {
            self.unlink(*parent, engine);
        }
        Some(orphan)
    }

    /// Removes the orphans whose parent is `parent`.
    pub(crate) fn take_children(&mut self, parent: EngineHash) -> Vec<(EngineHash, Orphan)> {
        let children = self.children.remove(&parent).unwrap_or_default();
        let orphan = |child| self.blocks.remove(&child).map(|orphan| (child, orphan));
        children.into_iter().filter_map(orphan).collect()
    }

    /// Removes copies of an orphan: one, or all if the source does not count copies. `false` if
    /// there was none.
    pub(crate) fn remove(&mut self, engine: EngineHash, tier: Tier, all: bool) -> bool {
        let Some(orphan) = self.blocks.get_mut(&engine) else { return false };
        let count = &mut orphan.copies[tier as usize];
        if *count == 0 {
            return false;
        }
        *count = if all { 0 } else { *count - 1 };
        self.drop_unused(engine);
        true
    }

    /// Each iteration removes an orphan, so names that form a cycle end the loop too.
    fn drop_unused(&mut self, mut engine: EngineHash) {
        while let Some(orphan) = self.blocks.get(&engine)
            && !orphan.is_held()
            && !self.children.contains_key(&engine)
        {
            let Some(Orphan { link: Some((parent, _)), .. }) = self.blocks.remove(&engine) else {
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
