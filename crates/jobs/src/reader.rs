//! Reads the lines of a run, and retries while their store is unreachable.
//!
//! An unreachable store is a failure of no line and no engine: a read waits until the store is
//! back, and the run waits with it, because few reads run at once. That bounds the load on a
//! database, too.

use crate::dedup::CopyBatch;
use crate::line::{BatchLine, Interface, LineForm};
use crate::record::LineRecord;
use crate::reply::{LineReply, Owner, ReplyError};
use crate::run_work::{RunProgress, RunWork};
use crate::store_error::{STORE_RETRY, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use wornpath_execution::field;

/// Concurrent reads.
const CONCURRENT_READS: usize = 8;

/// A line of the input as a request.
pub(crate) struct LineRequest {
    pub(crate) owner: Owner,
    pub(crate) interface: Interface,
    /// The bytes that are sent.
    pub(crate) body: Bytes,
}

/// Reads the lines of one run.
pub(crate) struct LineReader {
    work: RunWork,
    permits: Semaphore,
    /// Reports why nothing can be read.
    progress: watch::Sender<RunProgress>,
}

impl LineReader {
    pub(crate) fn new(work: RunWork, progress: watch::Sender<RunProgress>) -> Arc<Self> {
        Arc::new(Self { work, permits: Semaphore::new(CONCURRENT_READS), progress })
    }

    /// Reads a line; waits while its store is unreachable.
    ///
    /// # Errors
    /// If it can never be read.
    pub(crate) async fn line(self: &Arc<Self>, line: u32) -> Result<LineRequest, StoreError> {
        self.with_retries(move |reader| reader.request(line)).await
    }

    /// Makes the records of lines that get the response of an identical one. Their tokens count
    /// only where they were computed.
    ///
    /// # Errors
    /// If they can never be read, except lines that are lost for good: those fail.
    pub(crate) async fn records(
        self: &Arc<Self>,
        batch: CopyBatch,
    ) -> Result<Vec<LineRecord>, StoreError> {
        self.with_retries(move |reader| {
            batch.lines.iter().map(|line| reader.copied_record(*line, &batch.reply)).collect()
        })
        .await
    }

    fn copied_record(
        &self,
        line: u32,
        reply: &Result<LineReply, ReplyError>,
    ) -> Result<LineRecord, StoreError> {
        match self.request(line) {
            Ok(request) => Ok(request.owner.copy(reply)),
            Err(error) if self.fails_alone(&error) => {
                let reply = Err(ReplyError::Unreadable(error.to_string()));
                Ok(self.nameless(line).record(&reply))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a line once.
    ///
    /// # Errors
    /// If it cannot be read, or has changed.
    fn request(&self, line: u32) -> Result<LineRequest, StoreError> {
        let bytes = self.work.source.line(line)?;
        let parsed = BatchLine::parse(&bytes, LineForm::Free)
            .map_err(|problem| self.has_changed(&problem.to_string()))?;
        // The exact bytes of the input are sent, not a parsed and rewritten form.
        let own = |name| field(&bytes, name).ok().flatten().map(|value| bytes.slice_ref(value));
        let (custom_id, body) = match parsed.custom_id {
            Some(id) => {
                let body = own("body").ok_or_else(|| self.has_changed("its body is missing"))?;
                (serde_json::Value::from(id).to_string(), body)
            }
            None => (format!("\"line-{}\"", (self.work.numbers)(line)), bytes.clone()),
        };
        let owner = Owner { custom_id: custom_id.into_bytes(), ..self.nameless(line) };
        Ok(LineRequest { owner, interface: parsed.interface, body })
    }

    /// The owner of a line that cannot be read.
    pub(crate) fn nameless(&self, line: u32) -> Owner {
        Owner { line, custom_id: b"null".to_vec(), name: self.work.name.clone() }
    }

    /// Whether only this line fails by the error, and the run continues.
    pub(crate) fn fails_alone(&self, error: &StoreError) -> bool {
        self.work.source.file().is_none() && !error.is_passing()
    }

    /// Reads on a blocking thread, and retries while the store is unreachable.
    async fn with_retries<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.permits.acquire().await;
        let read = Arc::new(read);
        let mut is_blocked = false;
        loop {
            let reader = Arc::clone(self);
            let read = Arc::clone(&read);
            let result = tokio::task::spawn_blocking(move || read(&reader)).await;
            match result.map_err(|error| StoreError::Unreachable(error.to_string()))? {
                Err(error) if error.is_passing() && self.work.source.file().is_none() => {
                    is_blocked = true;
                    self.progress.send_modify(|now| now.blocked = Some(error.to_string()));
                    sleep(STORE_RETRY).await;
                }
                result => {
                    if is_blocked {
                        self.progress.send_modify(|now| now.blocked = None);
                    }
                    return result;
                }
            }
        }
    }

    fn has_changed(&self, what: &str) -> StoreError {
        match self.work.source.file() {
            Some(path) => StoreError::OtherInput { path: path.to_owned(), what: what.to_owned() },
            None => StoreError::Conflict(format!("line has changed: {what}")),
        }
    }
}
