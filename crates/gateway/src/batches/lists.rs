//! Lists in pages, and files as they are read.

use super::Batches;
use super::trouble::Trouble;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;
use wornpath_jobs::StoreError;

const PAGE: usize = 20;
const MOST: usize = 100;
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// What a list is asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) after: Option<String>,
    pub(super) limit: Option<String>,
}

impl Asked {
    /// From the query of a URL.
    pub(super) fn of(query: Option<&str>) -> Self {
        let mut asked = Self::default();
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("after", value)) => asked.after = Some(value.to_owned()),
                Some(("limit", value)) => asked.limit = Some(value.to_owned()),
                _ => {}
            }
        }
        asked
    }

    /// One page of `all`, which has an `id` each.
    pub(super) fn page(&self, all: Vec<Value>) -> Result<Value, Trouble> {
        let limit = match &self.limit {
            None => PAGE,
            Some(limit) => {
                let limit = limit.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                let wrong =
                    || Trouble::bad(&format!("`limit` must be from 1 to {MOST}"), Some("limit"));
                limit.ok_or_else(wrong)?
            }
        };
        let from = match &self.after {
            None => 0,
            Some(after) => {
                let at = all.iter().position(|item| item["id"] == after.as_str());
                at.ok_or_else(|| {
                    Trouble::bad(
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

/// A file's bytes as they are read, a few pieces ahead of whoever wants them.
pub(super) fn content(
    batches: &Arc<Batches>,
    mut read: impl FnMut(&Batches, u64, &mut [u8]) -> Result<usize, StoreError> + Send + 'static,
) -> mpsc::Receiver<Option<Bytes>> {
    let (sender, pieces) = mpsc::channel(2);
    let batches = Arc::clone(batches);
    // Not on the threads where prompts are tokenized: a client may take its time.
    tokio::task::spawn_blocking(move || {
        let mut offset = 0;
        loop {
            let mut piece = vec![0; PIECE];
            let piece = match read(&batches, offset, &mut piece) {
                Ok(count) => {
                    piece.truncate(count);
                    Some(Bytes::from(piece)).filter(|piece| !piece.is_empty())
                }
                // Without an end: the client sees that something is missing.
                Err(_) => return,
            };
            offset += piece.as_ref().map_or(0, Bytes::len) as u64;
            let is_over = piece.is_none();
            if sender.blocking_send(piece).is_err() || is_over {
                return;
            }
        }
    });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<Value, Trouble> {
        let all = (0..5).map(|id| json!({"id": format!("b{id}")})).collect();
        Asked::of(Some(query)).page(all)
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
}
