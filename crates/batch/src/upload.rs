//! A file on its way into the store: read as it comes, written as it comes, bounded.

use crate::batches::{Batches, UPLOADS};
use crate::error::BatchError;
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
use wornpath_gateway::proxy::multipart::{Multipart, MultipartEvent};
use wornpath_jobs::{FileEntry, Store, StoreError};

/// The most bytes of a field that is no file.
const MOST_FIELD: usize = 4 << 10;
/// Pieces of a file that wait to be written.
const WAITING: usize = 8;
/// For so long, what a client goes on sending is thrown away before it is told why: it may not listen until then.
const LINGER: Duration = Duration::from_secs(10);

/// Content that comes from another task. Without an end it is an error, so that no half file is kept.
struct Incomings {
    pieces: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    is_over: bool,
}

impl Read for Incomings {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            match self.pieces.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.is_over = true,
                None => return Err(io::Error::other("the upload broke off")),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// The fields of a form, as far as they came.
#[derive(Default)]
struct UploadForm {
    /// The field that is being read.
    field: String,
    purpose: Option<String>,
    /// Seconds.
    expires_after: Option<u64>,
    value: Vec<u8>,
}

/// A file that is being written.
struct Writing {
    pieces: mpsc::Sender<Option<Bytes>>,
    kept: tokio::task::JoinHandle<Result<FileEntry, StoreError>>,
}

/// Takes a file in.
pub(crate) async fn upload(
    batches: &Arc<Batches>,
    owner: &str,
    request: Request<Incoming>,
) -> Result<FileEntry, BatchError> {
    let (parts, mut body) = request.into_parts();
    let taken = take(batches, owner, &parts, &mut body).await;
    // Who sends nothing listens, if it is there at all.
    if taken.as_ref().is_err_and(|trouble| !trouble.is_late()) {
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = timeout(LINGER, rest).await;
    }
    taken
}

async fn take(
    batches: &Arc<Batches>,
    owner: &str,
    parts: &Parts,
    body: &mut Incoming,
) -> Result<FileEntry, BatchError> {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let mut parser = kind.and_then(Multipart::of).ok_or_else(|| {
        BatchError::bad("files are uploaded as multipart/form-data with `purpose` and `file`", None)
    })?;
    let _place = batches.uploads.try_acquire().map_err(|_| BatchError::busy("uploads", UPLOADS))?;
    let time = batches.worker.gateway().settings().limits.body_time;
    let mut taken = batches.rooms.enter(owner);
    let (own, most) = (owner.to_owned(), batches.rules.quota.bytes);
    taken.measure(batches.ask(move |store| room(store, &own, most)).await?);
    let (mut form, mut writing, mut bytes, mut events) =
        (UploadForm::default(), None, 0, Vec::new());
    while let Some(data) = next(body, time).await? {
        bytes += data.len() as u64;
        if bytes > batches.rules.most_bytes {
            let message = format!(
                "the file has more than {} bytes, the most that is taken",
                batches.rules.most_bytes
            );
            return Err(BatchError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        if !taken.take(data.len() as u64) {
            return Err(over_quota(batches));
        }
        parser.feed(&data, &mut events).map_err(|what| BatchError::bad(what, None))?;
        for event in events.drain(..) {
            form.take(event, &mut writing, |form, filename| begin(batches, owner, form, filename))
                .await?;
        }
    }
    let missing =
        |what| BatchError::bad(&format!("missing required parameter: `{what}`"), Some(what));
    if !parser.is_over() {
        return Err(BatchError::bad("the upload broke off", None));
    }
    let Writing { pieces, kept } = writing.ok_or_else(|| missing("file"))?;
    match form.purpose.as_deref() {
        Some("batch") => {}
        Some(other) => {
            let message = format!("`purpose` is `{other}`; only `batch` is served");
            return Err(BatchError::bad(&message, Some("purpose")));
        }
        None => return Err(missing("purpose")),
    }
    // Only now does the file count: everything else drops it unfinished.
    let _ = pieces.send(None).await;
    let kept = kept.await.map_err(|_| BatchError::ending())??;
    taken.keep(kept.bytes);
    Ok(kept)
}

/// The next piece. A file may be long, so the time is for each piece and not for all of them.
async fn next(body: &mut Incoming, time: Duration) -> Result<Option<Bytes>, BatchError> {
    loop {
        let frame = timeout(time, body.frame()).await;
        let frame = frame.map_err(|_| BatchError::late("nothing more of the upload came", time))?;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|_| BatchError::bad("the upload broke off", None))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Bytes that an owner may still have, of so many.
pub(crate) fn room(store: &dyn Store, owner: &str, most: u64) -> Result<u64, StoreError> {
    let used: u64 = store.files(owner)?.iter().map(|file| file.bytes).sum();
    Ok(most.saturating_sub(used))
}

pub(crate) fn over_quota(batches: &Batches) -> BatchError {
    let most = batches.rules.quota.bytes;
    let message =
        format!("your files may have {most} bytes in all; delete some with DELETE /v1/files/ID");
    BatchError::new(StatusCode::FORBIDDEN, message)
}

fn begin(batches: &Arc<Batches>, owner: &str, form: &UploadForm, filename: String) -> Writing {
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
        of: None,
    };
    let store = Arc::clone(&batches.store);
    let kept = tokio::task::spawn_blocking(move || {
        let mut content = Incomings { pieces, piece: Bytes::new(), is_over: false };
        store.add_file(entry, &mut content)
    });
    Writing { pieces: sender, kept }
}

impl UploadForm {
    async fn take(
        &mut self,
        event: MultipartEvent,
        writing: &mut Option<Writing>,
        begin: impl Fn(&Self, String) -> Writing,
    ) -> Result<(), BatchError> {
        match event {
            MultipartEvent::Part { name, filename } => {
                if name == "file" {
                    if writing.is_some() {
                        return Err(BatchError::bad("`file` is given twice", Some("file")));
                    }
                    *writing = Some(begin(self, filename.unwrap_or_else(|| "file".to_owned())));
                }
                (self.field, self.value) = (name, Vec::new());
            }
            MultipartEvent::Data(data) if self.field == "file" => {
                if let Some(writing) = writing
                    && writing.pieces.send(Some(data.into())).await.is_err()
                {
                    // The store has given up and says why.
                    let kept = (&mut writing.kept).await.map_err(|_| BatchError::ending())?;
                    return Err(kept.err().map_or_else(BatchError::ending, BatchError::from));
                }
            }
            MultipartEvent::Data(data) => {
                self.value.extend_from_slice(&data);
                if self.value.len() > MOST_FIELD {
                    return Err(BatchError::bad("a field of the form is too long", None));
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
                    format!("`expires_after[anchor]` is `{value}`; it must be `created_at`");
                return Err(BatchError::bad(&message, Some("expires_after")));
            }
            "expires_after[seconds]" => {
                let wrong = || {
                    BatchError::bad(
                        "`expires_after[seconds]` is no number of seconds",
                        Some("expires_after"),
                    )
                };
                if has_file {
                    return Err(BatchError::bad(
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
