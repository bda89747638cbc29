//! What became of exports by OTLP, for the metrics page.

use std::sync::atomic::AtomicU64;

/// Results of exports: of traced requests, or of metrics as a whole.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    /// Accepted by the collector.
    pub(crate) exported: AtomicU64,
    /// Refused by the collector, or not delivered.
    pub(crate) failed: AtomicU64,
    /// Not sent, because the export queue was full or the process ended.
    pub(crate) dropped: AtomicU64,
}
