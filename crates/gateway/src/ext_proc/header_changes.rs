//! The headers of a message that change.

use super::proto::header_value_option::HeaderAppendAction;
use super::proto::{HeaderMutation, HeaderValue, HeaderValueOption};
use bytes::Bytes;

fn set(name: &str, value: Bytes) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.into(), value: String::new(), raw_value: value }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// The headers of a message that change.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderChanges {
    set: Vec<HeaderValueOption>,
    removed: Vec<String>,
}

impl HeaderChanges {
    pub(super) fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        self.set.push(set(name, value.into()));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.removed.push(name.to_owned());
    }

    pub(super) fn mutation(self) -> Option<HeaderMutation> {
        let is_empty = self.set.is_empty() && self.removed.is_empty();
        (!is_empty)
            .then_some(HeaderMutation { set_headers: self.set, remove_headers: self.removed })
    }
}
