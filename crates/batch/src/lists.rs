//! Paginated lists.

use crate::error::BatchError;
use serde_json::{Value, json};
use wornpath_jobs::{Batch, FileEntry};

/// Default and maximum page size.
#[derive(Clone, Copy)]
pub(crate) struct ListPages {
    usual: usize,
    most: usize,
}

/// OpenAI's page sizes.
pub(crate) const OF_BATCHES: ListPages = ListPages { usual: 20, most: 100 };
pub(crate) const OF_FILES: ListPages = ListPages { usual: 10_000, most: 10_000 };
/// Maximum bytes of a page with more than one item. Clients continue after its last item.
const PAGE_BYTES: usize = 1 << 20;
/// An item of a list.
pub(crate) trait Listed {
    fn id(&self) -> &str;
    fn shown(&self) -> Value;
}

impl Listed for FileEntry {
    fn id(&self) -> &str {
        &self.id
    }

    fn shown(&self) -> Value {
        self.to_json()
    }
}

impl Listed for Batch {
    fn id(&self) -> &str {
        &self.id
    }

    fn shown(&self) -> Value {
        self.to_json()
    }
}

/// The query parameters of a list.
#[derive(Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<String>,
    pub(crate) order: Option<String>,
    pub(crate) purpose: Option<String>,
}

impl ListQuery {
    /// Parses the query of a URL.
    pub(crate) fn of(query: Option<&str>) -> Self {
        let mut list = Self::default();
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("after", value)) => list.after = Some(value.to_owned()),
                Some(("limit", value)) => list.limit = Some(value.to_owned()),
                Some(("order", value)) => list.order = Some(value.to_owned()),
                Some(("purpose", value)) => list.purpose = Some(value.to_owned()),
                _ => {}
            }
        }
        list
    }

    /// Filters a list of files, newest first, by purpose, and sorts it by the requested order.
    pub(crate) fn chosen(&self, mut files: Vec<FileEntry>) -> Result<Vec<FileEntry>, BatchError> {
        if let Some(purpose) = &self.purpose {
            files.retain(|file| file.purpose == *purpose);
        }
        match self.order.as_deref() {
            None | Some("desc") => {}
            Some("asc") => files.reverse(),
            Some(other) => {
                let message =
                    format!("invalid value: `{other}`; supported values are: `asc`, `desc`");
                return Err(BatchError::invalid(&message, Some("order")));
            }
        }
        Ok(files)
    }

    /// One page of `all`: as many as fit into its bytes, and at least one.
    pub(crate) fn page(&self, all: &[impl Listed], pages: ListPages) -> Result<Value, BatchError> {
        let ListPages { usual, most } = pages;
        let limit = match &self.limit {
            None => usual,
            Some(limit) => {
                let limit = limit.parse().ok().filter(|limit| (1..=most).contains(limit));
                let wrong = || {
                    BatchError::invalid(
                        &format!("invalid `limit`: it must be an integer between 1 and {most}"),
                        Some("limit"),
                    )
                };
                limit.ok_or_else(wrong)?
            }
        };
        let from = match &self.after {
            None => 0,
            Some(after) => {
                let at = all.iter().position(|item| item.id() == after);
                at.ok_or_else(|| {
                    BatchError::invalid(
                        &format!("invalid `after`: no object found with id `{after}`"),
                        Some("after"),
                    )
                })? + 1
            }
        };
        let mut data = Vec::new();
        let mut bytes = 0;
        for item in all[from..].iter().take(limit) {
            let shown = item.shown();
            bytes += shown.to_string().len();
            if bytes > PAGE_BYTES && !data.is_empty() {
                break;
            }
            data.push(shown);
        }
        let has_more = all.len() > from + data.len();
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let first = id(data.first());
        let last = id(data.last());
        Ok(
            json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: &str, purpose: &str) -> FileEntry {
        FileEntry {
            id: id.to_owned(),
            owner: String::new(),
            filename: String::new(),
            purpose: purpose.to_owned(),
            bytes: 0,
            created_at: 0,
            expires_at: None,
            crc: None,
            of: None,
        }
    }

    fn page(query: &str) -> Result<Value, BatchError> {
        let all: Vec<_> = (0..5).map(|id| file(&format!("b{id}"), "batch")).collect();
        ListQuery::of(Some(query)).page(&all, OF_BATCHES)
    }

    #[test]
    fn a_page_ends_at_its_bytes_and_the_next_one_continues() {
        let long = |id: &str, bytes| FileEntry { filename: "n".repeat(bytes), ..file(id, "batch") };
        let all = [
            long("a", PAGE_BYTES / 2),
            long("b", PAGE_BYTES / 3),
            long("c", PAGE_BYTES / 3),
            long("d", 2 * PAGE_BYTES),
            long("e", 1),
        ];
        let mut query = ListQuery::default();
        let mut pages = Vec::new();
        loop {
            let page = query.page(&all, OF_FILES).unwrap();
            let ids = page["data"].as_array().unwrap().iter().map(|item| item["id"].to_string());
            pages.push(ids.collect::<String>());
            if page["has_more"] == false {
                break;
            }
            query.after = page["last_id"].as_str().map(str::to_owned);
        }
        assert_eq!(pages, ["\"a\"\"b\"", "\"c\"", "\"d\"", "\"e\""]);
    }

    #[test]
    fn consecutive_pages_have_no_gap() {
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
    fn files_are_filtered_by_purpose_and_sorted_as_requested() {
        let files = |query: &str| {
            let all = [("c", "batch"), ("b", "batch_output"), ("a", "batch")];
            let all = all.map(|(id, purpose)| file(id, purpose)).to_vec();
            let chosen = ListQuery::of(Some(query)).chosen(all)?;
            Ok::<_, BatchError>(chosen.into_iter().map(|file| file.id).collect::<String>())
        };
        assert_eq!(files(""), Ok("cba".to_owned()));
        assert_eq!(files("order=asc"), Ok("abc".to_owned()));
        assert_eq!(files("purpose=batch&order=desc"), Ok("ca".to_owned()));
        assert_eq!(files("purpose=vision"), Ok(String::new()));
        assert!(files("order=up").is_err());
        let many = |query: &str| ListQuery::of(Some(query)).page(&[] as &[FileEntry], OF_FILES);
        assert!(many("limit=10000").is_ok() && many("limit=10001").is_err());
    }
}
