//! Reads the lines of a run: a few at a time, and again for as long as their store does not answer.
//!
//! A store that is away for a while is no line's failure and no engine's: who wants a line waits until it can be read, and the
//! run waits with it, because only so many are read at once. That bounds what is asked of a database, too.

use crate::dedup::Portion;
use crate::line::{BatchLine, Interface, LineForm};
use crate::problem::StoreError;
use crate::record::LineRecord;
use crate::reply::Owner;
use crate::runner::{RunProgress, RunWork};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use wornpath_execution::field;

/// Lines, or portions of copies, that are read at once.
const AT_ONCE: usize = 8;
/// How often what could not be read is tried again.
const PERIOD: Duration = Duration::from_millis(500);

/// Whose a line is, what it is for, and what is sent.
pub(crate) type NamedLine = (Owner, Interface, Bytes);

/// Reads for one run.
pub(crate) struct LineReader {
    work: RunWork,
    turns: Semaphore,
    /// Is told why nothing can be read.
    progress: watch::Sender<RunProgress>,
}

impl LineReader {
    pub(crate) fn new(work: RunWork, progress: watch::Sender<RunProgress>) -> Arc<Self> {
        Arc::new(Self { work, turns: Semaphore::new(AT_ONCE), progress })
    }

    /// A line, however long it takes.
    ///
    /// # Errors
    /// If it will never be read.
    pub(crate) async fn line(self: &Arc<Self>, line: u32) -> Result<NamedLine, StoreError> {
        self.patiently(move |reader| reader.named(line)).await
    }

    /// The records of lines that get the answer of another.
    ///
    /// # Errors
    /// If they will never be read.
    pub(crate) async fn records(
        self: &Arc<Self>,
        portion: Portion,
    ) -> Result<Vec<LineRecord>, StoreError> {
        self.patiently(move |reader| portion.records(reader)).await
    }

    /// What the owner of a line calls it, what it is for, and what is sent.
    ///
    /// # Errors
    /// If it cannot be read, or is not what it was.
    pub(crate) fn named(&self, line: u32) -> Result<NamedLine, StoreError> {
        let bytes = self.work.source.line(line)?;
        let parsed = BatchLine::parse(&bytes, LineForm::Free)
            .map_err(|problem| self.has_changed(&problem.to_string()))?;
        // The owner's own bytes go out, not what a parser made of them.
        let own = |name| field(&bytes, name).ok().flatten().map(|value| bytes.slice_ref(value));
        let (custom_id, body) = match parsed.custom_id {
            Some(id) => {
                let body = own("body").ok_or_else(|| self.has_changed("its body is gone"))?;
                (serde_json::Value::from(id).to_string(), body)
            }
            None => (format!("\"line-{}\"", (self.work.numbers)(line)), bytes.clone()),
        };
        let owner = Owner { custom_id: custom_id.into_bytes(), ..self.nameless(line) };
        Ok((owner, parsed.interface, body))
    }

    /// The owner of a line that cannot be read.
    pub(crate) fn nameless(&self, line: u32) -> Owner {
        Owner { line, custom_id: b"null".to_vec(), name: self.work.name.clone() }
    }

    /// Whether a line that cannot be read fails, and the run goes on with the others.
    pub(crate) fn fails_alone(&self, error: &StoreError) -> bool {
        self.work.source.file().is_none() && !error.is_passing()
    }

    /// Reads where that keeps no other task waiting.
    async fn patiently<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let _turn = self.turns.acquire().await;
        let (read, mut is_blocked) = (Arc::new(read), false);
        loop {
            let (reader, reading) = (Arc::clone(self), Arc::clone(&read));
            let came = tokio::task::spawn_blocking(move || reading(&reader)).await;
            match came.map_err(|error| StoreError::Unreachable(error.to_string()))? {
                Err(error) if error.is_passing() && self.work.source.file().is_none() => {
                    is_blocked = true;
                    self.progress.send_modify(|now| now.blocked = Some(error.to_string()));
                    sleep(PERIOD).await;
                }
                came => {
                    if is_blocked {
                        self.progress.send_modify(|now| now.blocked = None);
                    }
                    return came;
                }
            }
        }
    }

    fn has_changed(&self, what: &str) -> StoreError {
        match self.work.source.file() {
            Some(path) => StoreError::OtherInput { path: path.to_owned(), what: what.to_owned() },
            None => StoreError::Conflict(format!("its line has changed: {what}")),
        }
    }
}
