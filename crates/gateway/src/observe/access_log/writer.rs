//! The thread that writes the access log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;

use wornpath_config::{AccessLogSettings, AccessLogTarget, LogFormat};

use super::AccessMessage;
use crate::observe::export_counts::ExportCounts;

/// Bytes of lines that are written at once.
const MAX_BATCH: usize = 64 << 10;

/// The open target of the log.
pub(super) struct LogTarget {
    file: File,
    /// None for standard output and standard error.
    path: Option<PathBuf>,
}

impl LogTarget {
    pub(super) fn open(target: &AccessLogTarget) -> io::Result<Self> {
        // Copies of the descriptors: the process holds the lock on its standard output.
        let (file, path) = match target {
            AccessLogTarget::Stdout => (io::stdout().as_fd().try_clone_to_owned()?.into(), None),
            AccessLogTarget::Stderr => (io::stderr().as_fd().try_clone_to_owned()?.into(), None),
            AccessLogTarget::File(path) => (append(path)?, Some(path.clone())),
        };
        Ok(Self { file, path })
    }

    /// Opens the file again; the old one stays open if that fails.
    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match append(path) {
            Ok(opened) => self.file = opened,
            Err(error) => {
                let file = path.display();
                tracing::error!(%file, %error, "access log not opened again; keeping the old file");
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Writes what is queued, many lines at once.
pub(super) struct AccessWriter {
    target: LogTarget,
    format: LogFormat,
    counts: Arc<ExportCounts>,
    /// Lines that are about to be written.
    text: String,
    lines: u64,
    /// Whether the last write failed, so that a failure is logged once.
    is_failing: bool,
}

impl AccessWriter {
    pub(super) fn new(
        settings: &AccessLogSettings,
        target: LogTarget,
        counts: Arc<ExportCounts>,
    ) -> Self {
        let format = settings.format;
        Self { target, format, counts, text: String::new(), lines: 0, is_failing: false }
    }

    /// Writes until the queue is closed.
    pub(super) fn run(mut self, queue: &Receiver<AccessMessage>) {
        while let Ok(first) = queue.recv() {
            self.handle(first);
            while self.text.len() < MAX_BATCH
                && let Ok(next) = queue.try_recv()
            {
                self.handle(next);
            }
            self.write();
        }
    }

    fn handle(&mut self, message: AccessMessage) {
        match message {
            AccessMessage::Line(record) => {
                record.write(self.format, &mut self.text);
                self.lines += 1;
            }
            AccessMessage::Reopen => {
                self.write();
                self.target.reopen();
            }
            AccessMessage::Flush(flushed) => {
                self.write();
                // The flush may have timed out.
                let _ = flushed.send(());
            }
        }
    }

    fn write(&mut self) {
        if self.lines == 0 {
            return;
        }
        let written = self.target.file.write_all(self.text.as_bytes());
        let count = if written.is_ok() { &self.counts.exported } else { &self.counts.failed };
        count.fetch_add(self.lines, Relaxed);
        let has_failed = written.is_err();
        match written {
            Err(error) if !self.is_failing => {
                tracing::error!(%error, "access log cannot be written; its lines are lost");
            }
            Ok(()) if self.is_failing => tracing::info!("access log is written again"),
            _ => {}
        }
        self.is_failing = has_failed;
        self.text.clear();
        self.lines = 0;
    }
}
