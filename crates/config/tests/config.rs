//! Golden tests of the problems of `wornpath.yaml`: message, position and cure.
//!
//! `tests/config/<case>.yaml` has problems, `<case>.txt` is the expected output. After a change of
//! a message, `UPDATE=1 cargo test -p wornpath-config` rewrites the expected output and the
//! reference page, for review.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[cfg(all(feature = "nats", feature = "redis"))]
use wornpath_config::SourceKind;
use wornpath_config::{
    BatchRules, BatchStoreSettings, Config, Environment, RelativePaths, Tokenizers, reference,
};
use wornpath_yaml::ProblemKind;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn updating() -> bool {
    std::env::var_os("UPDATE").is_some()
}

#[test]
fn every_problem_is_reported_with_its_position_and_cure() {
    let folder = here("tests/config");
    let mut cases: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    cases.sort();
    assert!(cases.len() > 15, "only {} cases", cases.len());
    let mut kinds = HashSet::new();
    let mut wrong = Vec::new();
    for path in &cases {
        let file = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(path).unwrap();
        let Err(refused) = Config::check(file, &text, &RelativePaths::new(path)) else {
            panic!("{file} has no problem");
        };
        let problems = refused.files().iter().flat_map(|problems| problems.all());
        kinds.extend(problems.map(wornpath_yaml::Problem::kind));
        let shown = refused.to_string();
        // The brokers that a build supports depend on its features.
        let has_brokers = cfg!(any(feature = "nats", feature = "redis", feature = "kafka"));
        if ["sources.yaml", "passwords.yaml"].contains(&file) && has_brokers {
            continue;
        }
        if file == "secrets.yaml" && cfg!(not(feature = "otlp")) {
            continue;
        }
        let expected = path.with_extension("txt");
        if updating() {
            fs::write(&expected, &shown).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != shown {
            wrong.push(shown);
        }
    }
    assert!(wrong.is_empty(), "different from the .txt files:\n{}", wrong.join("\n"));
    for kind in ProblemKind::OF_CONFIGURATIONS {
        assert!(kinds.contains(&kind), "no case breaks the rule {}", kind.code());
    }
}

#[test]
fn a_possible_secret_is_never_shown() {
    for file in ["secrets", "pods", "sources", "passwords"] {
        let refused = Config::read(&here(&format!("tests/config/{file}.yaml"))).unwrap_err();
        for shown in [refused.to_string(), format!("{refused:?}"), refused.to_json().to_string()] {
            for secret in ["sk-live", "hunter2", "4242", "user:secret"] {
                assert!(!shown.contains(secret), "{secret} is in\n{shown}");
            }
        }
    }
}

/// Every key that takes a URL or the name of a host, and those that take a digest or have the name
/// of a secret, each with a secret in it.
#[test]
fn no_key_takes_a_secret() {
    for line in [
        "pods: [{url: \"http://me:hunter2@a\"}]",
        "pods: [{url: \"http://a?key=hunter2\"}]",
        "pods: [{url: \"http://a\", metrics: \"http://me:hunter2@a/metrics\"}]",
        "pods: [{url: \"http://a\", metrics: \"http://a/metrics?token=hunter2\"}]",
        "pods: [{url: \"http://a\", events: \"zmq://me:hunter2@a:5557\"}]",
        "pods: [{url: \"http://a\", event_token_digest: hunter2}]",
        "pods: [{url: \"http://a\", key: hunter2}]",
        "pods: [{url: \"http://a\", api_key: hunter2}]",
        "discovery: [{dns: \"me:hunter2@engines\"}]",
        "listen: {admin: {address: \"127.0.0.1:8081\", token_digest: hunter2}}",
        "listen: {admin: {address: \"127.0.0.1:8081\", token: hunter2}}",
        "tenants: [{name: a, key_digest: hunter2}]",
        "tenants: [{name: a, further_digests: [\"hunter2 until 2026-12-31T00:00:00Z\"]}]",
        "tenants: [{name: a, key: hunter2}]",
        "isolation: {secret: hunter2}",
        "event_sources: [{name: a, kind: nats, url: \"nats://me:hunter2@a:4222\"}]",
        "event_sources: [{name: a, kind: nats, url: \"nats://hunter2@a:4222\"}]",
        "event_sources: [{name: a, kind: redis, url: \"redis://:hunter2@a\"}]",
        "event_sources: [{name: a, kind: redis, url: \"redis://a?password=hunter2\"}]",
        "event_sources: [{name: a, kind: kafka, url: \"kafka://me:hunter2@a:9092\"}]",
        "event_sources: [{name: a, kind: redis, url: \"redis://me@a\", password: hunter2}]",
        "batch: {postgres: \"postgres://me:hunter2@a/b\"}",
        "batch: {postgres: \"postgres://me@a/b?password=hunter2\"}",
        "batch: {postgres: \"postgres://me@a/b\", password: hunter2}",
        "telemetry: {otlp: \"http://me:hunter2@a:4318\"}",
        "telemetry: {otlp: \"http://a:4318?api-key=hunter2\"}",
        "telemetry: {otlp: \"http://a:4318\", headers: {api-key: hunter2}}",
    ] {
        let refused = Config::check("w.yaml", line, &RelativePaths::new(Path::new("")));
        let Err(refused) = refused else { panic!("{line} is accepted") };
        for shown in [refused.to_string(), format!("{refused:?}"), refused.to_json().to_string()] {
            assert!(!shown.contains("hunter2"), "{line} is shown in\n{shown}");
        }
    }
}

#[test]
fn the_example_is_valid_and_yields_its_pods_and_profiles() {
    let path = here("../../wornpath.example.yaml");
    let config = Config::read(&path).unwrap();
    let settings = config.settings(&mut Tokenizers::new(&path)).unwrap();
    let names: Vec<_> = settings.pods.iter().map(|pod| pod.facts.name.as_str()).collect();
    assert_eq!(names, ["a", "b/0", "b/1", "b/2", "b/3", "c"]);
    assert_eq!(config.discovery().len(), 2);
    assert_eq!(settings.profiles[0].name, "cache-aware", "the profile of the last route");
    let fourth = format!("{:?}", settings.pods[4].events);
    assert!(fourth.contains("10.0.0.6:5560"), "{fourth}");
}

#[test]
fn a_minimal_configuration_has_every_default_of_the_settings() {
    let text = "pods: [{url: \"http://127.0.0.1:8000/\"}]\n";
    let config = Config::check("w.yaml", text, &RelativePaths::new(Path::new(""))).unwrap();
    let settings = config.settings(&mut Tokenizers::new(Path::new(""))).unwrap();
    let default = wornpath_config::Settings::default();
    assert_eq!(settings.limits, default.limits);
    assert_eq!(settings.timeouts, default.timeouts);
    assert_eq!(settings.breaker, default.breaker);
    assert_eq!(settings.retries, default.retries);
    assert_eq!(settings.drain, default.drain);
    assert_eq!((settings.client, settings.admin), (default.client, None));
    let pod = wornpath_config::PodConfig::new("http://127.0.0.1:8000");
    assert_eq!(settings.pods, [wornpath_config::PodConfig { asks_for_events: true, ..pod }]);
}

#[test]
fn a_pod_file_is_checked_by_the_rules_of_the_configuration() {
    let text = "models: [{name: m}]\ndiscovery: [{file: pods.yaml}]\n";
    let config = Config::check("w.yaml", text, &RelativePaths::new(Path::new(""))).unwrap();
    let pods = config.check_pods("pods.yaml", "pods: [{url: \"http://a:1\", model: m}]\n").unwrap();
    assert_eq!(pods[0].name(), "a:1");
    assert_eq!(config.check_pods("pods.yaml", "pods: []\n").unwrap(), []);
    let wrong = "pods: [{url: \"http://a:1\", model: n}]\nlisten: {}\n";
    let refused = config.check_pods("pods.yaml", wrong).unwrap_err().to_string();
    assert!(refused.contains("unknown model `n`"), "{refused}");
    assert!(refused.contains("a file of pods has no key `listen`"), "{refused}");
}

/// One file with a password, and one variable.
struct Passwords;

impl Environment for Passwords {
    fn text(&self, path: &Path) -> io::Result<String> {
        if path == Path::new("db.password") {
            return Ok("p@ss/w:rd \n".to_owned());
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn output_path(&self, _: &Path) -> Option<PathBuf> {
        None
    }

    fn is_folder(&self, _: &Path) -> Option<bool> {
        None
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name == "BROKER").then(|| "t0ken".to_owned())
    }

    fn has_tokenizer(&self, _: &Path) -> bool {
        false
    }
}

#[test]
fn a_password_comes_from_a_file_or_the_environment_and_only_the_line_break_is_cut_off() {
    let text = "pods: [{url: \"http://a:1\"}]\nbatch: {postgres: \"postgres://me@db/x\", \
                password_file: db.password}\n";
    let config = Config::check("w.yaml", text, &Passwords).unwrap();
    let Some(BatchRules { kept: BatchStoreSettings::Postgres(database), .. }) =
        &config.base_settings().batch
    else {
        panic!("the store is no database");
    };
    assert_eq!(database.address, "postgres://me@db/x");
    assert_eq!(database.password.as_deref(), Some("p@ss/w:rd "));
    let shown = format!("{:?}", config.base_settings());
    assert!(!shown.contains("p@ss"), "{shown}");
}

#[cfg(all(feature = "nats", feature = "redis"))]
#[test]
fn the_user_of_a_broker_is_in_its_url_and_its_password_is_not() {
    let source = |rest: &str| {
        let text =
            format!("pods: [{{url: \"http://a:1\"}}]\nevent_sources: [{{name: s, {rest}}}]\n");
        let config = Config::check("w.yaml", &text, &Passwords).unwrap();
        let SourceKind::Broker { address, .. } = config.sources()[0].kind.clone() else {
            panic!("{rest} is no broker");
        };
        address
    };
    let token = source("kind: nats, url: \"nats://h\", password_env: BROKER").login.unwrap();
    assert_eq!((token.user, token.password.as_str()), (None, "t0ken"));
    let named = source("kind: redis, url: \"redis://me@h:1\", password_file: db.password");
    assert_eq!(named.url, "redis://h:1");
    assert_eq!(named.login.unwrap().user.as_deref(), Some("me"));
}

/// The variables of OpenTelemetry.
struct Variables(&'static [(&'static str, &'static str)]);

impl Environment for Variables {
    fn text(&self, path: &Path) -> io::Result<String> {
        let is_headers = path == Path::new("headers");
        if is_headers {
            Ok("api-key=hunter2\n".to_owned())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
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

#[cfg(feature = "otlp")]
#[test]
fn telemetry_is_what_the_file_says_and_else_what_the_variables_say() {
    let read = |keys: &str, variables| {
        let text = format!("pods: [{{url: \"http://a\"}}]\ntelemetry: {{{keys}}}\n");
        let config = Config::check("w.yaml", &text, &Variables(variables));
        config.unwrap().base_settings().telemetry.clone().unwrap()
    };
    let variables: &[_] = &[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:1/"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "7"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x=y"),
        ("OTEL_METRICS_EXPORTER", "otlp"),
    ];
    let own = read("otlp: \"http://c:2\", headers_file: headers, timeout: 3s", variables);
    let traces = own.traces.unwrap();
    assert_eq!(
        (traces.url.to_string().as_str(), traces.timeout.as_secs()),
        ("http://c:2/v1/traces", 3)
    );
    assert_eq!(traces.headers["api-key"], "hunter2");
    assert!(!format!("{traces:?}").contains("hunter2"));
    assert!(own.metrics.is_some());
    let other = read("", variables);
    let traces = other.traces.unwrap();
    assert_eq!((traces.url.path(), traces.timeout.as_millis()), ("/v1/traces", 250));
    assert_eq!(traces.headers["x"], "y");
    let (metrics, every) = other.metrics.unwrap();
    assert_eq!((metrics.url.path(), metrics.timeout.as_millis()), ("/v1/metrics", 7));
    assert_eq!(every.as_secs(), 60);
    let disabled = [variables, &[("OTEL_SDK_DISABLED", "true")]].concat().leak();
    let disabled = read("metrics: 1s", disabled);
    assert!(disabled.traces.is_none() && disabled.metrics.is_none());
    let none = [variables, &[("OTEL_TRACES_EXPORTER", "none")]].concat().leak();
    assert!(read("", none).traces.is_none());
}

#[test]
fn a_wrong_variable_is_named_and_a_secret_in_it_is_not_shown() {
    for (name, value, words) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@a", "a user or a password"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "a:4318", "http://"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2", "`name=value`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hunter2", "name is not valid"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf, grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "none, gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a", "name=value"),
    ] {
        let text = "pods: [{url: \"http://a\"}]\ntelemetry: {}\n";
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:1");
        let variables = Variables(vec![(name, value), endpoint].leak());
        let refused = Config::check("w.yaml", text, &variables).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains(words), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn the_reference_page_is_current() {
    let path = here("../../docs/configuration.md");
    let page = reference();
    if updating() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is not current; write it with \
         `UPDATE=1 cargo test -p wornpath-config`"
    );
}
