//! The events of a workload in memory, in the order in which they happen.

/// Blocks in one event at most.
pub(crate) const MOST_BLOCKS: usize = 16;

/// What happened to the blocks of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They are on the pod now; the first one comes after `parent`, or starts a chain.
    Stored { parent: Option<u64> },
    /// They have gone from the pod.
    Removed,
}

/// One event of one pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) pod: u32,
    /// 0 is the GPU; only the exactness suite uses others.
    pub(crate) tier: u8,
    pub(crate) kind: Kind,
    start: u32,
    end: u32,
}

impl Event {
    /// Where the event's blocks lie in the log's lists.
    pub(crate) fn blocks(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Events with their blocks: the engine's hashes, and the contents beside them (0 in removals).
#[derive(Default)]
pub(crate) struct EventLog {
    pub(crate) events: Vec<Event>,
    pub(crate) seqs: Vec<u64>,
    pub(crate) locals: Vec<u64>,
}

impl EventLog {
    /// Appends a store on the GPU tier.
    pub(crate) fn store(&mut self, pod: u32, parent: Option<u64>, seqs: &[u64], locals: &[u64]) {
        self.locals.extend_from_slice(locals);
        self.push(pod, Kind::Stored { parent }, seqs);
    }

    /// Appends a removal from the GPU tier.
    pub(crate) fn remove(&mut self, pod: u32, seqs: &[u64]) {
        self.locals.resize(self.locals.len() + seqs.len(), 0);
        self.push(pod, Kind::Removed, seqs);
    }

    /// Moves the last event to another tier.
    pub(crate) fn on_tier(&mut self, tier: u8) {
        if let Some(event) = self.events.last_mut() {
            event.tier = tier;
        }
    }

    /// Blocks in a range of events: stored and removed.
    pub(crate) fn blocks_in(&self, events: std::ops::Range<usize>) -> usize {
        self.events[events].iter().map(|event| event.blocks().len()).sum()
    }

    fn push(&mut self, pod: u32, kind: Kind, seqs: &[u64]) {
        let start = self.seqs.len() as u32;
        self.seqs.extend_from_slice(seqs);
        self.events.push(Event { pod, tier: 0, kind, start, end: self.seqs.len() as u32 });
    }
}
