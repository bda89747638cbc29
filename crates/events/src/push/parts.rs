//! Snapshots that are posted in parts, until their last part arrives.
//!
//! A cache of 200,000 blocks is 40 MB of JSON: more than a post may have, and a sidecar that wrote
//! it at once would stop its engine. The parts of one snapshot are posted in order. A pod has at
//! most one unfinished snapshot; its items count against the queue's, and one whose sidecar is gone
//! is dropped after a minute.

use crate::message::{BatchId, SourceMessage};
use crate::transport::PodName;
use crate::wire::WireBatch;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// After so long without another part, a snapshot is dropped.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// One part.
#[derive(Clone, Debug)]
pub(super) struct SnapshotPart {
    /// Which snapshot it belongs to.
    pub(super) id: BatchId,
    /// Its number, from zero.
    pub(super) part: u32,
    /// How many there are.
    pub(super) parts: u32,
    /// Its stores.
    pub(super) batch: Box<WireBatch>,
}

/// A part does not continue the snapshot that its pod has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutOfOrder;

/// The unfinished snapshots, by pod.
#[derive(Default)]
pub(super) struct SnapshotParts(Mutex<BTreeMap<PodName, UnfinishedSnapshot>>);

/// The parts that have arrived, as one batch.
#[derive(Debug)]
pub(super) struct UnfinishedSnapshot {
    id: BatchId,
    next: u32,
    parts: u32,
    batch: Box<WireBatch>,
    items: OwnedSemaphorePermit,
    last_part: Instant,
}

impl SnapshotParts {
    /// Adds a part, which holds `items` of the queue's room. Returns the snapshot if it is whole.
    pub(super) fn add(
        &self,
        pod: &PodName,
        part: SnapshotPart,
        items: OwnedSemaphorePermit,
        now: Instant,
    ) -> Result<Option<UnfinishedSnapshot>, OutOfOrder> {
        let SnapshotPart { id, part, parts, batch } = part;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, one| now.duration_since(one.last_part) < ABANDONED_AFTER);
        let begun = all.remove(pod);
        let snapshot = match begun {
            _ if part == 0 => {
                UnfinishedSnapshot { id, next: 1, parts, batch, items, last_part: now }
            }
            Some(mut begun) if (begun.id, begun.next, begun.parts) == (id, part, parts) => {
                batch.events().for_each(|event| begun.batch.push(event));
                begun.items.merge(items);
                UnfinishedSnapshot { next: part + 1, last_part: now, ..begun }
            }
            _ => return Err(OutOfOrder),
        };
        if snapshot.next == snapshot.parts {
            return Ok(Some(snapshot));
        }
        all.insert(Arc::clone(pod), snapshot);
        Ok(None)
    }
}

impl UnfinishedSnapshot {
    /// The whole snapshot, and the room that it holds.
    pub(super) fn into_message(self) -> (SourceMessage, OwnedSemaphorePermit) {
        (SourceMessage::Snapshot { id: self.id, batch: self.batch }, self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::request::named;
    use crate::wire::WireEvent;
    use tokio::sync::Semaphore;
    use wornpath_index::{EngineHash, Tier};

    fn part(sequence: u64, part: u32, parts: u32) -> SnapshotPart {
        let mut batch = Box::<WireBatch>::default();
        let block = EngineHash(u64::from(part));
        batch.push(WireEvent::Stored(named(&[block], Tier::Gpu)));
        let id = BatchId { sequence: Some(sequence), ..BatchId::default() };
        SnapshotPart { id, part, parts, batch }
    }

    #[test]
    fn parts_become_a_snapshot_with_the_last_of_them_and_start_over_with_a_first() {
        let room = Arc::new(Semaphore::new(100));
        let parts = SnapshotParts::default();
        let pod = PodName::from("a");
        let start = Instant::now();
        let add = |one: SnapshotPart, seconds| {
            let items = Arc::clone(&room).try_acquire_many_owned(10).unwrap();
            parts.add(&pod, one, items, start + Duration::from_secs(seconds))
        };
        let is_kept = |added: Result<Option<_>, _>| matches!(added, Ok(None));
        assert!(is_kept(add(part(7, 0, 3), 0)) && is_kept(add(part(7, 1, 3), 0)));
        assert_eq!(add(part(8, 2, 3), 0).unwrap_err(), OutOfOrder, "of another snapshot");
        assert_eq!(add(part(7, 2, 3), 0).unwrap_err(), OutOfOrder, "what it continued is dropped");
        assert_eq!(room.available_permits(), 100);
        assert!(is_kept(add(part(8, 0, 3), 0)) && is_kept(add(part(9, 0, 3), 0)));
        assert!(is_kept(add(part(9, 1, 3), 59)));
        assert_eq!(room.available_permits(), 80);
        let (message, room_held) = add(part(9, 2, 3), 118).unwrap().unwrap().into_message();
        let SourceMessage::Snapshot { id, batch } = message else { panic!("{message:?}") };
        let blocks: Vec<_> = batch.events().collect();
        let expected = [0, 1, 2].map(EngineHash);
        assert_eq!(id.sequence, Some(9));
        assert!(blocks.iter().zip(&expected).all(|(event, block)| {
            *event == WireEvent::Stored(named(std::slice::from_ref(block), Tier::Gpu))
        }));
        assert_eq!((blocks.len(), room_held.num_permits()), (3, 30));
        drop(room_held);
        assert!(is_kept(add(part(3, 0, 2), 200)));
        assert_eq!(add(part(3, 1, 2), 260).unwrap_err(), OutOfOrder, "abandoned");
        assert_eq!(room.available_permits(), 100);
    }
}
