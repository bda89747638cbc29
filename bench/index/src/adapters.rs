//! The interface that the benchmark needs of an index, and its implementations.
//!
//! An adapter splits an index into the part that readers share and the part that the one writer
//! owns, because that is how each of them is meant to be used: lane maps in `kv-index`, a worker
//! thread with its lookup table in Dynamo. Each converts the events and queries to its own types
//! beforehand.

use std::ops::Range;

use crate::clock::CpuClock;
use crate::log::EventLog;
use crate::workload::QuerySet;

mod crtc;
mod kv_index;
mod naive;
mod ours;

pub(crate) use crtc::Crtc;
pub(crate) use kv_index::KvIndex;
pub(crate) use naive::Naive;
pub(crate) use ours::Ours;

/// An index that can be measured.
pub(crate) trait Index: 'static {
    /// Its column in the tables.
    const NAME: &'static str;
    /// Events as its API takes them.
    type Log: Send + Sync;
    /// Queries as its API takes them.
    type Queries: Send + Sync;
    /// What readers and the writer share.
    type Shared: Send + Sync;
    /// What the one writer owns.
    type Writer: Send;
    /// What one reading thread owns.
    type Reader<'a>: Reader<Queries = Self::Queries>;

    /// Converts events to the index's own types, before anything is timed.
    fn log(events: &EventLog) -> Self::Log;
    /// Converts queries to the index's own types, before anything is timed.
    fn queries(queries: &QuerySet) -> Self::Queries;
    /// An empty index with pods `0..pods`.
    fn create(pods: usize) -> (Self::Shared, Self::Writer);
    /// Applies a range of events; readers see all of them when it returns.
    fn apply(
        shared: &Self::Shared,
        writer: &mut Self::Writer,
        log: &Self::Log,
        events: Range<usize>,
    );
    /// The clock of the thread that does the work of `apply`.
    fn writer_clock(_writer: &Self::Writer) -> CpuClock {
        CpuClock::CALLER
    }
    /// Expects query `query` to be held by a pod soon, if the index knows such a thing.
    fn expect(_writer: &mut Self::Writer, _queries: &Self::Queries, _query: usize, _pod: usize) {}
    /// Drops all expectations.
    fn expire(_writer: &mut Self::Writer) {}
    /// A new reader.
    fn reader(shared: &Self::Shared) -> Self::Reader<'_>;
    /// Removes a pod, as a gateway does.
    fn remove_pod(shared: &Self::Shared, writer: &mut Self::Writer, pod: u32);
    /// One bounded step of the sweep after a removal; returns whether there is more.
    fn sweep(_shared: &Self::Shared, _writer: &mut Self::Writer) -> bool {
        false
    }
    /// Housekeeping that runs every few minutes, before memory is measured.
    fn housekeep(_writer: &mut Self::Writer) {}
}

/// A reading thread's view of an index.
pub(crate) trait Reader {
    /// Queries as the index's API takes them.
    type Queries;

    /// Looks up a query from the fastest input the API takes, and keeps the answer.
    fn lookup(&mut self, queries: &Self::Queries, query: usize);
    /// Looks up a query from its content hashes. Both peers take nothing else.
    fn lookup_local(&mut self, queries: &Self::Queries, query: usize) {
        self.lookup(queries, query);
    }
    /// The kept answer: every pod's depth (0 for the others).
    fn depths(&self, into: &mut [u32]);
    /// Whether the kept answer lists the pod.
    fn answers(&self, pod: u32) -> bool;
}

/// Query `query` of a flat list of queries.
#[inline]
fn chain<T>(flat: &[T], blocks: usize, query: usize) -> &[T] {
    &flat[query * blocks..(query + 1) * blocks]
}
