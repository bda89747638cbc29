//! The log of `serve`: its level, which an operator can change, and its format.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{self as lines, FmtContext, FormatEvent};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload, util::SubscriberInitExt};
use wornpath_admin::Logging;
use wornpath_config::LogFormat;

use crate::command_error::print_error;

/// Handle to change the level and the format.
pub(crate) struct Log {
    level: reload::Handle<LevelFilter, Registry>,
    is_json: Arc<AtomicBool>,
}

impl Log {
    /// Starts logging.
    pub(crate) fn start(level: Level) -> Self {
        let (filter, level) = reload::Layer::new(LevelFilter::from_level(level));
        // The client of Kubernetes logs every failed attempt, without a subject; discovery logs the
        // failure once.
        let is_ours = filter_fn(|line| !line.target().starts_with("kube_"));
        let is_json = Arc::<AtomicBool>::default();
        let format = LineFormat {
            is_json: Arc::clone(&is_json),
            text: Format::default().with_target(false),
        };
        let lines = lines::layer().with_writer(io::stderr).with_ansi(false).event_format(format);
        let lines = lines.with_filter(is_ours);
        tracing_subscriber::registry().with(filter).with(lines).init();
        Self { level, is_json }
    }

    /// How an error that ends the command is reported, in the format that is set by then.
    pub(crate) fn last_error(&self) -> LastError {
        LastError { is_json: Arc::clone(&self.is_json) }
    }

    /// Sets the format of all lines from now on.
    pub(crate) fn set_format(&self, format: LogFormat) {
        self.is_json.store(format == LogFormat::Json, Relaxed);
    }
}

/// Reports the error that ends the command: as every command does, or as a line of the log where
/// programs read it.
pub(crate) struct LastError {
    is_json: Arc<AtomicBool>,
}

impl LastError {
    pub(crate) fn report(&self, error: &anyhow::Error) {
        if self.is_json.load(Relaxed) {
            tracing::error!("{error:#}");
        } else {
            // There is nowhere left to report a failure of this.
            let _ = print_error(error, &mut io::stderr().lock());
        }
    }
}

impl Logging for Log {
    fn level(&self) -> String {
        let level = self.level.clone_current();
        level.map_or_else(|| "unknown".to_owned(), |level| level.to_string())
    }

    fn set_level(&self, level: &str) -> Result<(), String> {
        let parsed: Level = level.parse().map_err(|_| {
            format!("unknown log level `{level}`; give error, warn, info, debug or trace")
        })?;
        self.level.reload(LevelFilter::from_level(parsed)).map_err(|error| error.to_string())
    }
}

/// Lines as text, or as JSON with every field of the line under its own name.
struct LineFormat {
    is_json: Arc<AtomicBool>,
    text: Format,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, DefaultFields> for LineFormat {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !self.is_json.load(Relaxed) {
            return self.text.format_event(context, writer, event);
        }
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut object = Map::new();
        object.insert("time".to_owned(), time.into());
        object.insert("level".to_owned(), event.metadata().level().as_str().into());
        event.record(&mut JsonFields(&mut object));
        writeln!(writer, "{}", Value::Object(object))
    }
}

/// Collects the fields of a line.
struct JsonFields<'a>(&'a mut Map<String, Value>);

impl JsonFields<'_> {
    fn add(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}
