//! The events of an operation, with their lists.

use wornpath_blocks::ContentHash;
use wornpath_index::{
    CacheEvent, Content, EngineHash, Location, Parent, PodId, StoredBlocks, Tier,
};

use super::model::{CacheOp, NODES, Name, Node, ROOT, block, content, parent};

/// An event that owns its lists.
pub(super) struct OwnedEvent {
    form: Form,
    tier: Tier,
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    locations: Vec<Location>,
}

enum Form {
    Chained(Parent),
    Named,
    Native,
    Removed,
    Cleared,
}

impl OwnedEvent {
    pub(super) fn of(op: &CacheOp, pod: PodId) -> Self {
        let names = |name, nodes: &[Node]| nodes.iter().map(|n| engine(pod, *n, name)).collect();
        let (form, tier, names, nodes) = match op {
            CacheOp::Store { tier, name: Name::Native, nodes } => {
                (Form::Native, *tier, names(Name::Native, nodes), &[][..])
            }
            CacheOp::Store { tier, name, nodes } => {
                let before = nodes.first().and_then(|node| parent(*node));
                let parent = before
                    .map_or(Parent::Root(ROOT), |node| Parent::Block(engine(pod, node, *name)));
                (Form::Chained(parent), *tier, names(*name, nodes), &nodes[..])
            }
            CacheOp::StoreNamed { tier, nodes } => {
                (Form::Named, *tier, names(Name::First, nodes), &[][..])
            }
            CacheOp::Remove { tier, name, nodes } => {
                (Form::Removed, *tier, names(*name, nodes), &[][..])
            }
            CacheOp::Clear => (Form::Cleared, Tier::Gpu, vec![], &[][..]),
            CacheOp::Arbitrary(bytes) => return Self::arbitrary(bytes, pod),
        };
        let contents = nodes.iter().map(|node| content(*node)).collect();
        Self { form, tier, names, contents, locations: vec![] }
    }

    /// Names of nodes or of nothing, parents and contents of any node, several contents to a name,
    /// lists of lengths that do not match.
    fn arbitrary(bytes: &[u8], pod: PodId) -> Self {
        let at = |position: usize| usize::from(bytes[position]);
        let name = |value: usize| match value % 4 {
            0 => EngineHash(value as u64 % 16),
            1 => engine(pod, value % NODES, Name::Second),
            _ => engine(pod, value % NODES, Name::First),
        };
        let form = match at(0) % 6 {
            0 => Form::Named,
            1 => Form::Native,
            2 => Form::Removed,
            3 => Form::Chained(Parent::Root(ROOT)),
            _ => Form::Chained(Parent::Block(name(at(1)))),
        };
        let length = 1 + at(2) % 4;
        let names: Vec<_> = (0..length).map(|more| name(at(3) + more * at(4))).collect();
        let matching = length * (1 + at(5) % 3);
        let contents = if at(6).is_multiple_of(8) { matching + 1 } else { matching };
        let contents = (0..contents).map(|more| content((at(7) + more) % NODES)).collect();
        let located = [0, 0, length, 1][at(8) % 4];
        let location = |offset| Location { offset, length: 1, device: 0 };
        let locations = (0..located as u64).map(location).collect();
        Self { form, tier: Tier::ALL[at(9) % 4], names, contents, locations }
    }

    pub(super) fn event(&self) -> CacheEvent<'_> {
        match self.form {
            Form::Removed => CacheEvent::Removed { tier: self.tier, blocks: &self.names },
            Form::Cleared => CacheEvent::Cleared,
            Form::Chained(parent) => {
                self.storing(Content::Chained { parent, contents: &self.contents })
            }
            Form::Named => self.storing(Content::KnownAliases),
            Form::Native => self.storing(Content::IndexHashes),
        }
    }

    /// The stored blocks, if the event stores.
    pub(super) fn stored(&self) -> Option<StoredBlocks<'_>> {
        match self.event() {
            CacheEvent::Stored(stored) => Some(stored),
            CacheEvent::Removed { .. } | CacheEvent::Cleared => None,
        }
    }

    fn storing<'a>(&'a self, content: Content<'a>) -> CacheEvent<'a> {
        CacheEvent::Stored(StoredBlocks {
            tier: self.tier,
            blocks: &self.names,
            content,
            locations: &self.locations,
        })
    }
}

/// The engine's name for a node.
fn engine(pod: PodId, node: Node, name: Name) -> EngineHash {
    let slot = (pod.slot().position() as u64 + 1) << 32;
    match name {
        Name::First => EngineHash(slot | node as u64),
        Name::Second => EngineHash(slot | 1 << 24 | node as u64),
        Name::Native => EngineHash(block(node).0),
    }
}
