//! Lists in pages, and files as they are read.

use crate::batches::{Batches, DOWNLOADS};
use crate::error::BatchError;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;
use wornpath_gateway::watchdog::heartbeat::named;
use wornpath_jobs::{FileEntry, Store, StoreError};

/// How long pages are if nobody says, and at most.
#[derive(Clone, Copy)]
pub(crate) struct ListPages {
    usual: usize,
    most: usize,
}

/// As OpenAI has them.
pub(crate) const OF_BATCHES: ListPages = ListPages { usual: 20, most: 100 };
pub(crate) const OF_FILES: ListPages = ListPages { usual: 10_000, most: 10_000 };
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Bytes that a client takes at once: few, so that a slow one is seen to take something.
const PART: usize = 32 << 10;

/// What a list is asked for.
#[derive(Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<String>,
    pub(crate) order: Option<String>,
    pub(crate) purpose: Option<String>,
}

impl ListQuery {
    /// From the query of a URL.
    pub(crate) fn of(query: Option<&str>) -> Self {
        let mut asked = Self::default();
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("after", value)) => asked.after = Some(value.to_owned()),
                Some(("limit", value)) => asked.limit = Some(value.to_owned()),
                Some(("order", value)) => asked.order = Some(value.to_owned()),
                Some(("purpose", value)) => asked.purpose = Some(value.to_owned()),
                _ => {}
            }
        }
        asked
    }

    /// Those of a list of files, newest first, that are wanted, in the order in which they are.
    pub(crate) fn chosen(&self, mut files: Vec<FileEntry>) -> Result<Vec<FileEntry>, BatchError> {
        if let Some(purpose) = &self.purpose {
            files.retain(|file| file.purpose == *purpose);
        }
        match self.order.as_deref() {
            None | Some("desc") => {}
            Some("asc") => files.reverse(),
            Some(other) => {
                let message = format!("`order` is `{other}`; it must be `asc` or `desc`");
                return Err(BatchError::bad(&message, Some("order")));
            }
        }
        Ok(files)
    }

    /// One page of `all`, which has an `id` each.
    pub(crate) fn page(&self, all: Vec<Value>, pages: ListPages) -> Result<Value, BatchError> {
        let ListPages { usual, most } = pages;
        let limit = match &self.limit {
            None => usual,
            Some(limit) => {
                let limit = limit.parse().ok().filter(|limit| (1..=most).contains(limit));
                let wrong =
                    || BatchError::bad(&format!("`limit` must be from 1 to {most}"), Some("limit"));
                limit.ok_or_else(wrong)?
            }
        };
        let from = match &self.after {
            None => 0,
            Some(after) => {
                let at = all.iter().position(|item| item["id"] == after.as_str());
                at.ok_or_else(|| {
                    BatchError::bad(
                        &format!("`after` is `{after}`, which is not in the list"),
                        Some("after"),
                    )
                })? + 1
            }
        };
        let has_more = all.len() > from + limit;
        let data: Vec<_> = all.into_iter().skip(from).take(limit).collect();
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        Ok(
            json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}),
        )
    }
}

/// A file's bytes as they are read, a little ahead of whoever wants them. No thread waits for a client, and a client that
/// takes nothing for as long as an engine may say nothing has no more read for it.
pub(crate) fn content(
    batches: &Arc<Batches>,
    read: impl Fn(&dyn Store, u64, &mut [u8]) -> Result<usize, StoreError> + Send + Sync + 'static,
) -> Result<mpsc::Receiver<Option<Bytes>>, BatchError> {
    let place = Arc::clone(&batches.downloads).try_acquire_owned();
    let place = place.map_err(|_| BatchError::busy("downloads", DOWNLOADS))?;
    let (sender, pieces) = mpsc::channel(1);
    let (batches, handle) =
        (Arc::clone(batches), batches.worker.gateway().pods().background().clone());
    handle.spawn(named("batch file download", async move {
        // Whatever goes wrong, there is no end then: the client sees that something is missing.
        let _ = pass_on(&batches, Arc::new(read), sender).await;
        drop(place);
    }));
    Ok(pieces)
}

/// Reads and sends piece by piece; none if that cannot be done to the end.
async fn pass_on(
    batches: &Batches,
    read: Arc<
        impl Fn(&dyn Store, u64, &mut [u8]) -> Result<usize, StoreError> + Send + Sync + 'static,
    >,
    sender: mpsc::Sender<Option<Bytes>>,
) -> Option<()> {
    let time = batches.worker.gateway().settings().timeouts.between_bytes;
    let mut offset = 0;
    loop {
        let read = Arc::clone(&read);
        let reading = move |store: &dyn Store| {
            let mut piece = vec![0; PIECE];
            let count = read(store, offset, &mut piece)?;
            piece.truncate(count);
            Ok(Bytes::from(piece))
        };
        let mut piece = batches.ask(reading).await.ok()?;
        if piece.is_empty() {
            return sender.send_timeout(None, time).await.ok();
        }
        offset += piece.len() as u64;
        while !piece.is_empty() {
            let part = piece.split_to(PART.min(piece.len()));
            sender.send_timeout(Some(part), time).await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<Value, BatchError> {
        let all = (0..5).map(|id| json!({"id": format!("b{id}")})).collect();
        ListQuery::of(Some(query)).page(all, OF_BATCHES)
    }

    #[test]
    fn pages_follow_each_other_without_gap() {
        let first = page("limit=2").unwrap();
        assert_eq!((&first["last_id"], &first["has_more"]), (&json!("b1"), &json!(true)));
        let last = page("limit=3&after=b1").unwrap();
        assert_eq!((&last["first_id"], &last["has_more"]), (&json!("b2"), &json!(false)));
        assert_eq!(last["data"].as_array().unwrap().len(), 3);
        for wrong in ["limit=0", "limit=101", "limit=x", "after=none"] {
            assert!(page(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_chosen_by_purpose_and_come_in_the_order_asked_for() {
        let files = |query: &str| {
            let file = |(id, purpose): (&str, &str)| FileEntry {
                id: id.to_owned(),
                owner: String::new(),
                filename: String::new(),
                purpose: purpose.to_owned(),
                bytes: 0,
                created_at: 0,
                expires_at: None,
                of: None,
            };
            let all = [("c", "batch"), ("b", "batch_output"), ("a", "batch")].map(file).to_vec();
            let chosen = ListQuery::of(Some(query)).chosen(all)?;
            Ok::<_, BatchError>(chosen.into_iter().map(|file| file.id).collect::<String>())
        };
        assert_eq!(files(""), Ok("cba".to_owned()));
        assert_eq!(files("order=asc"), Ok("abc".to_owned()));
        assert_eq!(files("purpose=batch&order=desc"), Ok("ca".to_owned()));
        assert_eq!(files("purpose=vision"), Ok(String::new()));
        assert!(files("order=up").is_err());
        let many = |query: &str| ListQuery::of(Some(query)).page(Vec::new(), OF_FILES);
        assert!(many("limit=10000").is_ok() && many("limit=10001").is_err());
    }
}
