//! Why sources cannot be reached, for people who look.

use std::sync::Arc;

/// A source that cannot be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceError {
    /// Where the events would come from.
    pub source: Arc<str>,
    /// Why they do not.
    pub reason: String,
}

/// The troubles of one pod, one a source at most.
#[derive(Default)]
pub(crate) struct SourceErrors(Vec<SourceError>);

impl SourceErrors {
    pub(crate) fn note(&mut self, source: &Arc<str>, reason: String) {
        self.clear(source);
        self.0.push(SourceError { source: Arc::clone(source), reason });
    }

    pub(crate) fn clear(&mut self, source: &str) {
        self.0.retain(|trouble| *trouble.source != *source);
    }

    pub(crate) fn all(&self) -> &[SourceError] {
        &self.0
    }
}
