//! What became of exports by OTLP and of lines of the access log, for the metrics page.

use std::sync::atomic::AtomicU64;

/// Results of exports: of traced requests, of metrics as a whole, or of lines.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    /// Accepted by the collector, or written.
    pub(crate) exported: AtomicU64,
    /// Refused by the collector, or not delivered.
    pub(crate) failed: AtomicU64,
    /// Not sent, because the export queue was full or the process ended.
    pub(crate) dropped: AtomicU64,
}
