//! The log of this process, kept so that a test can wait for a line.
//!
//! All tests of a process share it: name something of the test's own, such as a path in its folder.

use std::fmt::{Debug, Write};
use std::sync::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps every line that is logged from now on.
pub(crate) fn keep() {
    // Another test of this process may have done so.
    let _ = tracing::subscriber::set_global_default(Keeper);
}

/// Whether one line has all these words.
pub(crate) fn has(words: &[&str]) -> bool {
    let lines = LINES.lock().unwrap();
    lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
}

struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}
