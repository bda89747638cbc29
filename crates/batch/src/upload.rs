//! Uploads: a multipart body, streamed into the store within size and quota limits.

use crate::batches::Batches;
use crate::error::BatchError;
use crate::quota::check_entry_quota;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wornpath_gateway::proxy::body_pace::{BodyPace, BodyTimeout, PaceError};
use wornpath_gateway::proxy::multipart::{Multipart, MultipartEvent};
use wornpath_jobs::{FileEntry, Store, StoreError};

/// Maximum bytes of a form field other than the file.
const MOST_FIELD: usize = 4 << 10;
/// How much longer than a chunk an upload may be too slow.
const SLACK: Duration = Duration::from_secs(5);
/// Chunks that may wait to be written.
const WAITING: usize = 8;
/// How long the rest of a refused upload is discarded before the error response: a client may not
/// read a response before it has sent its body.
const LINGER: Duration = Duration::from_secs(10);

/// File content from another task. A missing end is an error, so that no incomplete file is stored.
struct UploadReader {
    pieces: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    is_over: bool,
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            match self.pieces.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.is_over = true,
                None => {
                    return Err(io::Error::other("connection closed before the end of the upload"));
                }
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// The form fields received so far.
#[derive(Default)]
struct UploadForm {
    /// The field that is being read.
    field: String,
    purpose: Option<String>,
    /// Lifetime in seconds.
    expires_after: Option<u64>,
    value: Vec<u8>,
}

/// A file that is being written.
struct FileWriter {
    pieces: mpsc::Sender<Option<Bytes>>,
    kept: tokio::task::JoinHandle<Result<FileEntry, StoreError>>,
}

/// Receives a file.
pub(crate) async fn upload(
    batches: &Arc<Batches>,
    owner: &str,
    request: Request<Incoming>,
) -> Result<FileEntry, BatchError> {
    let (parts, mut body) = request.into_parts();
    let stored = receive(batches, owner, &parts, &mut body).await;
    // A client that sends nothing more reads the response.
    if stored.as_ref().is_err_and(|error| !error.is_timeout()) {
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = timeout(LINGER, rest).await;
    }
    stored
}

async fn receive(
    batches: &Arc<Batches>,
    owner: &str,
    parts: &Parts,
    body: &mut Incoming,
) -> Result<FileEntry, BatchError> {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let mut parser = kind.and_then(Multipart::of).ok_or_else(|| {
        BatchError::invalid("uploads must be multipart/form-data with `purpose` and `file`", None)
    })?;
    let _slot = batches.uploads.take(owner).map_err(|limit| BatchError::busy("uploads", limit))?;
    check_entry_quota(batches, owner).await?;
    // A file may be long, so there is a timeout for each chunk, and a minimum rate.
    let time = batches.worker.gateway().settings().limits.body_time;
    let mut pace = BodyPace::start(BodyTimeout::Piece(time), time.saturating_add(SLACK));
    let mut reservation = batches.storage_quotas.begin(owner);
    let tenant = owner.to_owned();
    let most = batches.rules.quota.bytes;
    reservation.set_left(batches.with_store(move |store| bytes_left(store, &tenant, most)).await?);
    let mut form = UploadForm::default();
    let mut writing = None;
    let mut bytes = 0;
    let mut events = Vec::new();
    while let Some(data) = next_chunk(&mut pace, body).await? {
        bytes += data.len() as u64;
        if bytes > batches.rules.most_bytes {
            let message =
                format!("file exceeds the maximum size of {} bytes", batches.rules.most_bytes);
            return Err(BatchError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        if !reservation.reserve(data.len() as u64) {
            return Err(quota_exceeded(batches));
        }
        parser.feed(&data, &mut events).map_err(|what| BatchError::invalid(what, None))?;
        for event in events.drain(..) {
            form.take(event, &mut writing, |form, filename| begin(batches, owner, form, filename))
                .await?;
        }
    }
    let missing =
        |what| BatchError::invalid(&format!("missing required parameter: `{what}`"), Some(what));
    if !parser.is_over() {
        return Err(BatchError::invalid("connection closed before the end of the upload", None));
    }
    let FileWriter { pieces, kept } = writing.ok_or_else(|| missing("file"))?;
    match form.purpose.as_deref() {
        Some("batch") => {}
        Some(other) => {
            let message = format!("invalid value: `{other}`; supported values are: `batch`");
            return Err(BatchError::invalid(&message, Some("purpose")));
        }
        None => return Err(missing("purpose")),
    }
    // The end marker completes the file; every earlier return discards it.
    let _ = pieces.send(None).await;
    let kept = kept.await.map_err(|_| BatchError::shutting_down())??;
    reservation.commit(kept.bytes);
    Ok(kept)
}

/// The next chunk of an upload.
async fn next_chunk(pace: &mut BodyPace, body: &mut Incoming) -> Result<Option<Bytes>, BatchError> {
    pace.next(body).await.map_err(|error| match error {
        PaceError::TooSlow(_) => BatchError::too_slow("upload"),
        PaceError::Timeout(time) => BatchError::timeout("upload", time),
        PaceError::Closed(_) => {
            BatchError::invalid("connection closed before the end of the upload", None)
        }
    })
}

/// Bytes that an owner may still store, of a quota of `most`.
pub(crate) fn bytes_left(store: &dyn Store, owner: &str, most: u64) -> Result<u64, StoreError> {
    let used: u64 = store.files(owner)?.iter().map(|file| file.bytes).sum();
    Ok(most.saturating_sub(used))
}

pub(crate) fn quota_exceeded(batches: &Batches) -> BatchError {
    let most = batches.rules.quota.bytes;
    let message = format!(
        "storage quota exceeded: limit {most} bytes; delete files with DELETE /v1/files/ID"
    );
    BatchError::new(StatusCode::FORBIDDEN, message)
}

fn begin(batches: &Arc<Batches>, owner: &str, form: &UploadForm, filename: String) -> FileWriter {
    let (sender, pieces) = mpsc::channel(WAITING);
    let now = wornpath_gateway::proxy::unix_time();
    let entry = FileEntry {
        id: batches.new_id("file-"),
        owner: owner.to_owned(),
        filename,
        purpose: "batch".to_owned(),
        bytes: 0,
        created_at: now,
        expires_at: form.expires_after.map(|seconds| now.saturating_add(seconds)),
        crc: None,
        of: None,
    };
    let store = Arc::clone(&batches.store);
    let kept = tokio::task::spawn_blocking(move || {
        let mut content = UploadReader { pieces, piece: Bytes::new(), is_over: false };
        store.add_file(entry, &mut content)
    });
    FileWriter { pieces: sender, kept }
}

impl UploadForm {
    async fn take(
        &mut self,
        event: MultipartEvent,
        writing: &mut Option<FileWriter>,
        begin: impl Fn(&Self, String) -> FileWriter,
    ) -> Result<(), BatchError> {
        match event {
            MultipartEvent::Part { name, filename } => {
                if name == "file" {
                    if writing.is_some() {
                        return Err(BatchError::invalid("duplicate field `file`", Some("file")));
                    }
                    *writing = Some(begin(self, filename.unwrap_or_else(|| "file".to_owned())));
                }
                self.field = name;
                self.value = Vec::new();
            }
            MultipartEvent::Data(data) if self.field == "file" => {
                if let Some(writing) = writing
                    && writing.pieces.send(Some(data.into())).await.is_err()
                {
                    // The store failed; its result has the error.
                    let kept =
                        (&mut writing.kept).await.map_err(|_| BatchError::shutting_down())?;
                    return Err(kept
                        .err()
                        .map_or_else(BatchError::shutting_down, BatchError::from));
                }
            }
            MultipartEvent::Data(data) => {
                self.value.extend_from_slice(&data);
                if self.value.len() > MOST_FIELD {
                    return Err(BatchError::invalid("form field is too long", None));
                }
            }
            MultipartEvent::PartEnd => self.end(writing.is_some())?,
        }
        Ok(())
    }

    fn end(&mut self, has_file: bool) -> Result<(), BatchError> {
        let value = String::from_utf8_lossy(&self.value).into_owned();
        match self.field.as_str() {
            "purpose" => self.purpose = Some(value),
            "expires_after[anchor]" if value != "created_at" => {
                let message =
                    format!("invalid value: `{value}`; supported values are: `created_at`");
                return Err(BatchError::invalid(&message, Some("expires_after")));
            }
            "expires_after[seconds]" => {
                let wrong = || {
                    BatchError::invalid(
                        "`expires_after[seconds]` must be an integer",
                        Some("expires_after"),
                    )
                };
                if has_file {
                    return Err(BatchError::invalid(
                        "`expires_after` must come before `file`",
                        Some("expires_after"),
                    ));
                }
                self.expires_after = Some(value.parse().map_err(|_| wrong())?);
            }
            _ => {}
        }
        Ok(())
    }
}
