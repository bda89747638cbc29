//! Streamed file content, checked against what was stored.
//!
//! A file that has lost its end, and a short file that has changed, are refused before the first
//! byte. A long file is checked while it is sent: if it has changed, the response breaks off before
//! its last chunk, so that no client takes it for the file.

use crate::batches::{Batches, DOWNLOADS};
use crate::error::BatchError;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;
use wornpath_gateway::reply::ClientReply;
use wornpath_gateway::watchdog::heartbeat::named;
use wornpath_jobs::{ByteCheck, Store, StoreError};

/// Bytes of one read.
const PIECE: usize = 256 << 10;
/// Bytes of one chunk to the client: small, so that a slow client makes visible progress.
const PART: usize = 32 << 10;

/// Content that a client gets.
pub(crate) struct Download<R> {
    /// Fills a buffer from an offset on.
    pub(crate) read: R,
    pub(crate) check: ByteCheck,
    /// The offset of the first byte that the client gets.
    pub(crate) from: u64,
}

impl<R> Download<R>
where
    R: Fn(&dyn Store, u64, &mut [u8]) -> Result<usize, StoreError> + Send + Sync + 'static,
{
    /// Streams the content, one read ahead of the client. No thread waits for a client, and a client
    /// that reads nothing for `timeouts.between_bytes` is cut off.
    pub(crate) async fn start(self, batches: &Arc<Batches>) -> Result<ClientReply, BatchError> {
        let permit = Arc::clone(&batches.downloads).try_acquire_owned();
        let permit = permit.map_err(|_| BatchError::busy("downloads", DOWNLOADS))?;
        let Self { read, check, from } = self;
        let mut state = DownloadState { read: Arc::new(read), check, from };
        let read = Arc::clone(&state.read);
        let check = state.check.clone();
        batches
            .with_store(move |store| check.has_end(|offset, byte| read(store, offset, byte)))
            .await?;
        let first = state.next(batches).await?;
        let (sender, pieces) = mpsc::channel(1);
        let batches = Arc::clone(batches);
        let handle = batches.worker.gateway().pods().background().clone();
        handle.spawn(named("batch file download", async move {
            // After a failure the stream has no end, so the client sees that it is incomplete.
            let _ = state.send(&batches, first, sender).await;
            drop(permit);
        }));
        Ok(ClientReply::Pieces(pieces))
    }
}

struct DownloadState<R> {
    read: Arc<R>,
    check: ByteCheck,
    from: u64,
}

impl<R> DownloadState<R>
where
    R: Fn(&dyn Store, u64, &mut [u8]) -> Result<usize, StoreError> + Send + Sync + 'static,
{
    /// The next bytes for the client, checked; none at the end.
    async fn next(&mut self, batches: &Batches) -> Result<Option<Bytes>, StoreError> {
        while self.check.at() < self.check.end() {
            let read = Arc::clone(&self.read);
            let mut check = self.check.clone();
            let reading = move |store: &dyn Store| {
                let at = check.at();
                let left = usize::try_from(check.end() - at).unwrap_or(usize::MAX);
                let mut piece = vec![0; PIECE.min(left)];
                let count = read(store, at, &mut piece)?;
                piece.truncate(count);
                check.feed(&piece)?;
                Ok((Bytes::from(piece), check))
            };
            let at = self.check.at();
            let mut piece;
            (piece, self.check) = batches.with_store(reading).await?;
            // The check may begin before the bytes that the client wants.
            let skipped = usize::try_from(self.from.saturating_sub(at)).unwrap_or(usize::MAX);
            if skipped < piece.len() {
                return Ok(Some(piece.split_off(skipped)));
            }
        }
        Ok(None)
    }

    /// Sends chunk by chunk; `None` if that fails before the end.
    async fn send(
        mut self,
        batches: &Batches,
        first: Option<Bytes>,
        sender: mpsc::Sender<Option<Bytes>>,
    ) -> Option<()> {
        let time = batches.worker.gateway().settings().timeouts.between_bytes;
        let mut next = first;
        while let Some(mut piece) = next {
            while !piece.is_empty() {
                let part = piece.split_to(PART.min(piece.len()));
                sender.send_timeout(Some(part), time).await.ok()?;
            }
            next = self.next(batches).await.ok()?;
        }
        sender.send_timeout(None, time).await.ok()
    }
}
