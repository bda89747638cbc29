//! Sources that a pod's events should come from and that are unreachable, for the status.

use std::sync::Arc;

/// An unreachable source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceError {
    /// The transport's name.
    pub source: Arc<str>,
    /// Why it is unreachable.
    pub reason: String,
}

/// The errors of one pod's sources, at most one per source.
#[derive(Default)]
pub(crate) struct SourceErrors(Vec<SourceError>);

impl SourceErrors {
    pub(crate) fn set(&mut self, source: &Arc<str>, reason: String) {
        self.clear(source);
        self.0.push(SourceError { source: Arc::clone(source), reason });
    }

    pub(crate) fn clear(&mut self, source: &str) {
        self.0.retain(|error| *error.source != *source);
    }

    pub(crate) fn all(&self) -> &[SourceError] {
        &self.0
    }
}
