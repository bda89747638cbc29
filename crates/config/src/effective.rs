//! The configuration in force, key by key, and where each value comes from.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use wornpath_yaml::{Absent, Node, Parameter, Yaml};

use crate::env::Environment;
use crate::sections::{
    access_log, batch, checkpoint, continuation, exchange, limits, listen, metrics, shadow,
    telemetry,
};

/// A key of the configuration and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveValue {
    /// The key with those of its sections, such as `limits.body`.
    pub key: String,
    /// The value, as in YAML; a secret is not shown.
    pub value: String,
    /// Where it comes from.
    pub source: ValueSource,
    /// Tells two values apart that are not shown.
    fingerprint: Option<u64>,
}

/// Keyed anew in every process, so that no fingerprint says anything about its secret.
static FINGERPRINTS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueSource {
    /// The file.
    File {
        /// Its line.
        line: usize,
    },
    /// This environment variable.
    Environment(String),
    /// This option of the command line.
    Option(String),
    /// The declared default.
    Default,
}

impl EffectiveValue {
    /// A value that this option of the command line gives to a key.
    #[must_use]
    pub fn option(key: &str, flag: &str, value: &str) -> Self {
        Self::new(key.to_owned(), value, ValueSource::Option(flag.to_owned()))
    }

    /// A value that this environment variable gives to a key.
    #[must_use]
    pub fn environment(key: &str, name: &str, value: &str) -> Self {
        Self::new(key.to_owned(), value, ValueSource::Environment(name.to_owned()))
    }

    fn new(key: String, value: &str, source: ValueSource) -> Self {
        let name = match &source {
            ValueSource::Environment(name) => name,
            _ => &key,
        };
        let shown = shown(name, value).to_owned();
        let is_hidden = shown == HIDDEN;
        let fingerprint = is_hidden.then(|| FINGERPRINTS.hash_one(value));
        Self { value: shown, key, source, fingerprint }
    }

    /// What tells it apart from others that are not shown either; none if it is shown.
    pub(crate) const fn fingerprint(&self) -> Option<u64> {
        self.fingerprint
    }
}

impl ValueSource {
    /// As people read it.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::File { line } => format!("line {line}"),
            Self::Environment(name) => format!("environment {name}"),
            Self::Option(flag) => format!("option {flag}"),
            Self::Default => "default".to_owned(),
        }
    }
}

/// Sections with declared defaults, whether or not the file has them.
const ALWAYS: &[(&str, &[Parameter])] = &[
    ("listen.client", listen::LISTEN),
    ("limits", limits::LIMITS),
    ("timeouts", limits::TIMEOUTS),
    ("retries", limits::RETRIES),
    ("breaker", limits::BREAKER),
    ("drain", limits::DRAIN),
    ("continuation", continuation::CONTINUATION),
    ("metrics", metrics::METRICS),
];

/// Sections whose defaults count only if the file has them.
const IF_PRESENT: &[(&str, &[Parameter])] = &[
    ("shadow", shadow::SHADOW),
    ("checkpoint", checkpoint::CHECKPOINT),
    ("access_log", access_log::ACCESS_LOG),
    ("telemetry", telemetry::TELEMETRY),
    ("exchange", exchange::EXCHANGE),
    ("batch", batch::BATCH),
];

/// The standard variables that `telemetry` reads. Headers hold API keys.
const VARIABLES: [&str; 12] = [
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];

/// Parts of the names of keys whose values are not shown.
const SECRETS: [&str; 4] = ["digest", "password", "secret", "headers"];

const HIDDEN: &str = "(not shown)";

/// The values of a file, then the variables in force, then the defaults of what is absent. `top` are
/// the keys outside of sections.
pub(crate) fn effective(
    root: Option<&Node>,
    environment: &dyn Environment,
    top: &'static [Parameter],
) -> Vec<EffectiveValue> {
    let mut values = Vec::new();
    if let Some(root) = root {
        flatten("", root, &mut values);
    }
    for name in VARIABLES {
        let Some(value) = environment.variable(name) else { continue };
        let key = format!("telemetry ({name})");
        values.push(EffectiveValue::environment(&key, name, &value));
    }
    let present =
        IF_PRESENT.iter().filter(|(name, _)| root.is_some_and(|root| root.get(name).is_some()));
    for (section, parameters) in std::iter::once(&("", top)).chain(ALWAYS).chain(present) {
        for parameter in *parameters {
            let Absent::Means(default) = parameter.absent else { continue };
            let key = join(section, parameter.name);
            // `client: 127.0.0.1:8080` is short for a map with an address.
            let is_given = |value: &EffectiveValue| value.key == key || value.key == *section;
            if !values.iter().any(is_given) {
                values.push(EffectiveValue::new(key, default, ValueSource::Default));
            }
        }
    }
    values
}

fn flatten(key: &str, node: &Node, values: &mut Vec<EffectiveValue>) {
    match &node.value {
        Yaml::Map(entries) => {
            for (name, value) in entries {
                flatten(&join(key, name.text().unwrap_or_default()), value, values);
            }
        }
        Yaml::List(items) => {
            for (at, item) in items.iter().enumerate() {
                flatten(&format!("{key}[{at}]"), item, values);
            }
        }
        Yaml::Null => {}
        Yaml::Scalar { text, .. } => {
            let source = ValueSource::File { line: node.span.line };
            values.push(EffectiveValue::new(key.to_owned(), text, source));
        }
    }
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// A value as operators may see it: no secret, and no address with a password.
fn shown<'v>(key: &str, value: &'v str) -> &'v str {
    let last = key.rsplit('.').next().unwrap_or(key).to_ascii_lowercase();
    let is_secret = SECRETS.iter().any(|word| last.contains(word)) && !last.ends_with("file");
    // The query of an event source is the port of its replays.
    let has_query = value.contains('?') && !value.contains("?replay=");
    let has_password = value.contains("://") && (value.contains('@') || has_query);
    if is_secret || has_password { HIDDEN } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::path::{Path, PathBuf};
    use wornpath_yaml::parse;

    struct Variables(&'static [(&'static str, &'static str)]);

    impl Environment for Variables {
        fn text(&self, _: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn output_path(&self, _: &Path) -> Option<PathBuf> {
            None
        }

        fn is_folder(&self, _: &Path) -> Option<bool> {
            None
        }

        fn variable(&self, name: &str) -> Option<String> {
            let found = self.0.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }

        fn has_tokenizer(&self, _: &Path) -> bool {
            false
        }
    }

    #[test]
    fn every_value_says_where_it_comes_from_and_no_secret_is_shown() {
        let text = "listen: {client: \"127.0.0.1:1\"}\nexplained: 5\npods:\n  - url: http://a:1\ntenants: [{name: t, key_digest: sha256:00}]\n";
        let root = parse(text).unwrap();
        let variables = Variables(&[("OTEL_EXPORTER_OTLP_HEADERS", "api-key=canary")]);
        let values = effective(Some(&root), &variables, crate::config::TOP);
        let of = |key: &str| {
            let found: Vec<_> = values.iter().filter(|value| value.key == key).collect();
            assert_eq!(found.len(), 1, "{key}: {found:?}");
            (found[0].value.as_str(), found[0].source.word())
        };
        assert_eq!(of("explained"), ("5", "line 2".to_owned()));
        assert_eq!(of("pods[0].url"), ("http://a:1", "line 4".to_owned()));
        assert_eq!(of("tenants[0].key_digest").0, HIDDEN);
        assert_eq!(of("stream_usage"), ("always", "default".to_owned()));
        assert_eq!(of("listen.client"), ("127.0.0.1:1", "line 1".to_owned()));
        assert!(!values.iter().any(|value| value.key == "listen.client.address"));
        let headers = of("telemetry (OTEL_EXPORTER_OTLP_HEADERS)");
        assert_eq!(headers, (HIDDEN, "environment OTEL_EXPORTER_OTLP_HEADERS".to_owned()));
        assert!(!format!("{values:?}").contains("canary"));
    }

    #[test]
    fn a_password_in_an_address_is_not_shown() {
        assert_eq!(shown("batch.store", "postgres://me:canary@h/db"), HIDDEN);
        assert_eq!(shown("pods[0].events", "zmq://h:1?replay=2"), "zmq://h:1?replay=2");
        assert_eq!(shown("pods[0].events", "zmq://me:canary@h:1?replay=2"), HIDDEN);
        assert_eq!(shown("pods[0].url", "http://h:1?key=canary"), HIDDEN);
        let option = EffectiveValue::option("pods", "--pod", "http://me:canary@h:1");
        assert_eq!(option.value, HIDDEN);
        assert_eq!(shown("isolation.secret_file", "secret"), "secret");
    }
}
