//! Writes the records of a run in groups, and retries while the store fails.

use crate::answer_budget::AnswerHold;
use crate::record::{LineRecord, Publish};
use crate::run_work::{RunControl, RunProgress};
use crate::store_error::{STORE_RETRY, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

/// The most records of one group.
pub(crate) const GROUP: usize = 256;
/// The bytes of a group after which no more records are added: a store copies them together.
pub(crate) const GROUP_BYTES: usize = 8 << 20;
/// How long a group that is not full waits for more records.
const GATHER_FOR: Duration = Duration::from_millis(10);

/// A record that is not written yet, and the memory of its response.
pub(crate) struct Unwritten {
    pub(crate) record: LineRecord,
    pub(crate) held: AnswerHold,
}

/// Writes records in groups.
pub(crate) struct ResultWriter {
    pub(crate) records: mpsc::UnboundedReceiver<Unwritten>,
    pub(crate) unwritten: Arc<AtomicUsize>,
    pub(crate) written: Arc<Notify>,
    pub(crate) progress: watch::Sender<RunProgress>,
    pub(crate) control: watch::Receiver<RunControl>,
}

/// A group, as it grows.
#[derive(Default)]
struct RecordGroup {
    records: Vec<LineRecord>,
    held: Vec<AnswerHold>,
    bytes: usize,
}

impl RecordGroup {
    fn add(&mut self, unwritten: Unwritten) {
        self.bytes += unwritten.record.bytes.len();
        self.records.push(unwritten.record);
        self.held.push(unwritten.held);
    }

    fn is_full(&self) -> bool {
        self.records.len() >= GROUP || self.bytes >= GROUP_BYTES
    }

    /// Adds what is there.
    fn gather(&mut self, records: &mut mpsc::UnboundedReceiver<Unwritten>) {
        while !self.is_full()
            && let Ok(more) = records.try_recv()
        {
            self.add(more);
        }
    }
}

impl ResultWriter {
    /// Writes until the channel is closed.
    pub(crate) async fn write<P: Publish + 'static>(
        mut self,
        mut publisher: P,
    ) -> Result<P, StoreError> {
        loop {
            self.report(&publisher);
            let Some(first) = self.records.recv().await else { return Ok(publisher) };
            let mut group = RecordGroup::default();
            group.add(first);
            group.gather(&mut self.records);
            if !group.is_full() {
                sleep(GATHER_FOR).await;
                group.gather(&mut self.records);
            }
            let count = group.records.len();
            let written;
            (publisher, written) = self.write_group(publisher, group.records).await?;
            // Lines without a record are computed again when the run is resumed.
            if written == WrittenGroup::No {
                return Ok(publisher);
            }
            drop(group.held);
            self.unwritten.fetch_sub(count, Relaxed);
            self.written.notify_one();
        }
    }

    /// Writes one group, and retries until it succeeds, or the run is stopped while the store
    /// fails.
    async fn write_group<P: Publish + 'static>(
        &self,
        mut publisher: P,
        mut group: Vec<LineRecord>,
    ) -> Result<(P, WrittenGroup), StoreError> {
        loop {
            let publishing = tokio::task::spawn_blocking(move || {
                let result = publisher.publish(&group);
                (publisher, group, result)
            });
            let result;
            (publisher, group, result) =
                publishing.await.map_err(|error| StoreError::Unreachable(error.to_string()))?;
            match result {
                Ok(_) => return Ok((publisher, WrittenGroup::Yes)),
                Err(error) if error.is_passing() => {
                    self.progress.send_modify(|now| now.blocked = Some(error.to_string()));
                    if *self.control.borrow() == RunControl::Stop {
                        return Ok((publisher, WrittenGroup::No));
                    }
                    sleep(STORE_RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn report(&self, publisher: &impl Publish) {
        self.progress.send_modify(|progress| {
            progress.blocked = None;
            progress.counts = publisher.counts();
            progress.usage = publisher.usage();
        });
    }
}

/// Whether a group was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WrittenGroup {
    Yes,
    No,
}
