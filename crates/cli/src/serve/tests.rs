//! Every flag of `serve` against the file: a table, so that a flag cannot come without saying what
//! it overrides.

use super::*;
use clap::{Args, Command, Parser};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use wornpath_blocks::HashKey;
use wornpath_routing::{Prompt, Request};

/// A command line of `serve`.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    serve: ServeArguments,
}

/// A flag whose value `wornpath.yaml` can also set.
struct Row {
    flag: &'static str,
    /// What the file says.
    file: &'static str,
    /// What the command line says on top.
    given: &'static [&'static str],
    read: fn(&Settings) -> String,
    /// The value with the file alone.
    by_file: &'static str,
    /// The value with both.
    by_both: &'static str,
}

/// Flags that have no place in the file, and why.
const NOT_IN_FILE: [(&str, &str); 2] = [
    ("config", "names the file"),
    ("log-level", "logging begins before the file is read; the admin plane changes it"),
];

const TINY_LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../blocks/tests/models/tiny-llama");

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Lists grow: the pods of the command line come in addition.
    Row { flag: "pod", file: "pods: [{url: \"http://127.0.0.1:1\"}]", given: &["--pod", "http://127.0.0.1:2"], read: pods,
        by_file: "http://127.0.0.1:1 serve", by_both: "http://127.0.0.1:1 serve, http://127.0.0.1:2 serve" },
    Row { flag: "prefill", file: "pods: [{url: \"http://127.0.0.1:1\"}]", given: &["--prefill", "http://127.0.0.1:2"], read: pods,
        by_file: "http://127.0.0.1:1 serve", by_both: "http://127.0.0.1:1 serve, http://127.0.0.1:2 prefill" },
    Row { flag: "decode", file: "pods: [{url: \"http://127.0.0.1:1\"}]", given: &["--decode", "http://127.0.0.1:2"], read: pods,
        by_file: "http://127.0.0.1:1 serve", by_both: "http://127.0.0.1:1 serve, http://127.0.0.1:2 decode" },
    Row { flag: "log-format", file: "log_format: json", given: &["--log-format", "text"], read: |settings| format!("{:?}", settings.log_format),
        by_file: "Json", by_both: "Text" },
    Row { flag: "pod-key-file", file: "pods: [{url: \"http://127.0.0.1:1\", key_file: of-file}]",
        given: &["--pod", "http://127.0.0.1:2", "--pod-key-file", "of-flag"], read: key_files,
        by_file: "of-file", by_both: "of-file, of-flag" },
    // Every route goes by the policy of the command line; what a route lets through stays.
    Row { flag: "policy", file: "routes: [{match: {path: /v1/embeddings}, profile: least-load}, {profile: cache-aware}]",
        given: &["--policy", "round-robin"], read: routes,
        by_file: "/v1/embeddings least-load, * cache-aware; default cache-aware",
        by_both: "/v1/embeddings round-robin, * round-robin; default round-robin" },
    Row { flag: "policy", file: "", given: &["--policy", "round-robin"], read: routes,
        by_file: "; default cache-aware", by_both: "; default round-robin" },
    Row { flag: "policy", file: "profiles: {mine: {score: [least_load], pick: max_score}, yours: {score: [queue_depth], pick: max_score}}\nroutes: [{profile: yours}]",
        given: &["--policy", "mine"], read: routes,
        by_file: "* yours; default yours", by_both: "* mine; default mine" },
    Row { flag: "host", file: "listen: {client: \"127.0.0.2:9000\"}", given: &["--host", "127.0.0.3"], read: |settings| settings.client.to_string(),
        by_file: "127.0.0.2:9000", by_both: "127.0.0.3:9000" },
    Row { flag: "port", file: "listen: {client: \"127.0.0.2:9000\"}", given: &["--port", "9001"], read: |settings| settings.client.to_string(),
        by_file: "127.0.0.2:9000", by_both: "127.0.0.2:9001" },
    Row { flag: "admin", file: "listen: {admin: \"127.0.0.1:9000\"}", given: &["--admin", "127.0.0.1:9001"], read: |settings| format!("{:?}", settings.admin),
        by_file: "Some(127.0.0.1:9000)", by_both: "Some(127.0.0.1:9001)" },
    Row { flag: "epp", file: "listen: {epp: \"127.0.0.1:9000\"}", given: &["--epp", "127.0.0.1:9001"],
        read: |settings| format!("{:?}", settings.epp.as_ref().map(|epp| epp.address)),
        by_file: "Some(127.0.0.1:9000)", by_both: "Some(127.0.0.1:9001)" },
    Row { flag: "epp-health", file: "listen: {epp: {address: \"127.0.0.1:9000\", health: \"127.0.0.1:9001\"}}", given: &["--epp-health", "127.0.0.1:9002"],
        read: |settings| format!("{:?}", settings.epp.as_ref().and_then(|epp| epp.health)),
        by_file: "Some(127.0.0.1:9001)", by_both: "Some(127.0.0.1:9002)" },
    Row { flag: "one-destination", file: "listen: {epp: \"127.0.0.1:9000\"}", given: &["--one-destination"],
        read: |settings| format!("{:?}", settings.epp.as_ref().map(|epp| epp.destinations)),
        by_file: "Some(List)", by_both: "Some(One)" },
    // Of a tenant that the file has, the key of the command line counts, and what else the file
    // says of it.
    Row { flag: "api-key", file: "tenants: [{name: t, quota: 7, key_digest: \"sha256:cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4\"}]",
        given: &["--api-key", "t=new", "--api-key", "u=other"], read: tenants,
        by_file: "t sha256:cba06b57 Some(7)", by_both: "t sha256:11507a0e Some(7), u sha256:d9298a10 None" },
    Row { flag: "api-key-file", file: "tenants: [{name: t, quota: 7, key_digest: \"sha256:cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4\"}]",
        given: &["--api-key-file", "of-flag"], read: tenants,
        by_file: "t sha256:cba06b57 Some(7)", by_both: "t sha256:cba06b57 Some(7), key-1 sha256:2c70e12b None" },
    Row { flag: "isolate-tenants", file: "tenants: [{name: t, key_digest: \"sha256:cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4\"}]",
        given: &["--isolate-tenants"], read: |settings| format!("{:?}", settings.sharing),
        by_file: "Shared", by_both: "Isolated" },
    Row { flag: "tokenizer", file: "models: [{name: m, tokenizer: bytes}]", given: &["--model", "m", "--tokenizer", TINY_LLAMA], read: tokens,
        by_file: "m: 21 tokens", by_both: "m: 6 tokens" },
    Row { flag: "tokenizer", file: "models: [{name: m, tokenizer: bytes}]", given: &["--model", "m", "--tokenizer", "none"],
        read: |settings| format!("{:?} {:?}", settings.models, settings.models[0].tokenizer_source),
        by_file: "[m (with tokenizer, blocks of 16)] Configured", by_both: "[m (without tokenizer, blocks of 16)] Configured" },
    Row { flag: "model", file: "models: [{name: m, tokenizer: bytes}]", given: &["--model", "n", "--tokenizer", "bytes"], read: tokens,
        by_file: "m: 21 tokens", by_both: "m: 21 tokens, n: 21 tokens" },
    Row { flag: "block-size", file: "models: [{name: m, tokenizer: bytes, block_size: 32}]",
        given: &["--model", "m", "--tokenizer", "bytes", "--block-size", "64"], read: block_sizes,
        by_file: "32", by_both: "64" },
    Row { flag: "workers", file: "workers: 3", given: &["--workers", "5"], read: |settings| settings.workers.to_string(),
        by_file: "3", by_both: "5" },
    Row { flag: "first-byte-timeout", file: "timeouts: {first_byte: 3s, unstreamed: 4s}", given: &["--first-byte-timeout", "5"],
        read: |settings| format!("{:?} {:?}", settings.timeouts.first_byte, settings.unstreamed),
        by_file: "3s 4s", by_both: "5s 5s" },
    Row { flag: "between-bytes-timeout", file: "timeouts: {between_bytes: 3s}", given: &["--between-bytes-timeout", "5"],
        read: |settings| format!("{:?}", settings.timeouts.between_bytes), by_file: "3s", by_both: "5s" },
    Row { flag: "max-body", file: "limits: {body: 2KiB}", given: &["--max-body", "4096"], read: |settings| settings.limits.body_bytes.to_string(),
        by_file: "2048", by_both: "4096" },
    Row { flag: "lame-duck", file: "drain: {lame_duck: 3s}", given: &["--lame-duck", "0"], read: |settings| format!("{:?}", settings.drain.lame_duck),
        by_file: "3s", by_both: "0ns" },
    Row { flag: "grace", file: "drain: {grace: 3s}", given: &["--grace", "5"], read: |settings| format!("{:?}", settings.drain.grace),
        by_file: "3s", by_both: "5s" },
    Row { flag: "reveal-pods", file: "reveal: nothing", given: &["--reveal-pods"], read: |settings| format!("{:?}", settings.reveal),
        by_file: "Nothing", by_both: "Pod" },
    Row { flag: "batches", file: "batch: {postgres: \"postgres://user@127.0.0.1:1/name\", window: 7}", given: &["--batches", "kept"], read: batches,
        by_file: "postgres 7", by_both: "kept 7" },
];

fn pods(settings: &Settings) -> String {
    let pod = |pod: &PodConfig| format!("{} {}", pod.url(), pod.facts.roles[0]);
    listed(settings.pods.iter().map(pod))
}

fn key_files(settings: &Settings) -> String {
    let name = |pod: &PodConfig| {
        let file = pod.key_file.as_ref().and_then(|file| file.file_name());
        file.map(|file| file.to_string_lossy().into_owned())
    };
    listed(settings.pods.iter().filter_map(name))
}

fn routes(settings: &Settings) -> String {
    let routes = settings.routes.iter();
    let routes =
        routes.map(|route| format!("{} {}", route.path.as_deref().unwrap_or("*"), route.profile));
    format!("{}; default {}", listed(routes), settings.profiles[0].name)
}

fn tenants(settings: &Settings) -> String {
    let tenants = settings.tenants.iter();
    listed(tenants.map(|it| format!("{} {} {:?}", it.name, &it.key.to_string()[..15], it.quota)))
}

/// How each model's tokenizer cuts a text.
fn tokens(settings: &Settings) -> String {
    let request =
        Request { prompt: Prompt::Text("a text of some length".into()), ..Request::default() };
    listed(settings.models.iter().map(|model| {
        let mut tokens = Vec::new();
        model.tokenizer.as_ref().unwrap().tokenize(&request, &mut tokens).unwrap();
        format!("{}: {} tokens", model.name, tokens.len())
    }))
}

fn block_sizes(settings: &Settings) -> String {
    listed(settings.models.iter().map(|model| model.block_size.tokens().to_string()))
}

fn batches(settings: &Settings) -> String {
    let rules = settings.batch.as_ref().unwrap();
    match &rules.kept {
        BatchStoreSettings::Folder(folder) => format!("{} {}", folder.display(), rules.window),
        BatchStoreSettings::Postgres(_) => format!("postgres {}", rules.window),
    }
}

fn listed(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

/// A configuration in a folder of its own.
struct File(PathBuf);

impl File {
    fn new(test: &str) -> Self {
        let name = format!("wornpath-flags-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        for key in ["of-file", "of-flag"] {
            fs::write(folder.join(key), "key").unwrap();
        }
        Self(folder)
    }

    /// What is served by if the file says this, and the command line that on top.
    fn settings(&self, text: &str, given: &[&str]) -> anyhow::Result<Settings> {
        let mut text = text.to_owned();
        for (key, usual) in [
            ("pods:", "pods: [{url: \"http://127.0.0.1:1\"}]"),
            ("models:", "models: [{name: m, tokenizer: bytes}]"),
        ] {
            if !text.contains(key) {
                text = format!("{text}\n{usual}");
            }
        }
        let path = self.0.join("wornpath.yaml");
        fs::write(&path, text).unwrap();
        let mut line = vec!["serve", "-c", path.to_str().unwrap()];
        let key = self.0.join("of-flag");
        line.extend(given.iter().map(|word| match *word {
            "of-flag" => key.to_str().unwrap(),
            word => word,
        }));
        let arguments = Line::try_parse_from(line)?.serve;
        let config = Config::read(&path).map_err(|refused| anyhow::anyhow!("{refused}"))?;
        settings(&arguments, config.settings(&mut Tokenizers::new(&path))?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_flag_says_what_it_overrides() {
    let command = ServeArguments::augment_args(Command::new("serve"));
    let flags: BTreeSet<_> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
    let rows = ROWS.iter().map(|row| row.flag).chain(NOT_IN_FILE.map(|(flag, _)| flag));
    assert_eq!(rows.collect::<BTreeSet<_>>(), flags, "add a row to ROWS, or to NOT_IN_FILE");
}

#[test]
fn the_file_counts_where_a_flag_is_not_given_and_the_flag_where_it_is() {
    let file = File::new("both");
    let mut wrong = Vec::new();
    for row in ROWS {
        assert_ne!(row.by_file, row.by_both, "--{}: this row cannot fail", row.flag);
        for (given, expected) in [(&[][..], row.by_file), (row.given, row.by_both)] {
            let found = match file.settings(row.file, given) {
                Ok(settings) => (row.read)(&settings),
                Err(error) => format!("{error:#}"),
            };
            if found != expected {
                wrong.push(format!("--{} {given:?}: {found}\n  expected: {expected}", row.flag));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_file_alone_turns_on_what_a_flag_can_only_turn_on() {
    let file = File::new("on");
    let revealed = file.settings("reveal: pod", &[]).unwrap().reveal;
    assert_eq!(revealed, DebugHeaders::Pod);
    fs::write(file.0.join("secret"), "ab".repeat(32)).unwrap();
    let text =
        "isolation: {secret_file: secret}\npods: [{url: \"http://127.0.0.1:1\", engine: vllm}]";
    for given in [&[][..], &["--isolate-tenants", "--api-key", "t=key"]] {
        let settings = file.settings(text, given).unwrap();
        assert_eq!(settings.sharing, CacheSharing::Isolated, "{given:?}");
        assert_eq!(
            settings.key,
            HashKey::new([0xab; 32]),
            "the secret of the file stays: {given:?}"
        );
    }
}

#[test]
fn a_flag_without_effect_is_refused_with_the_cure() {
    let file = File::new("refused");
    for (given, cure) in [
        (&["--pod", "http://127.0.0.1:1/"][..], "the file already lists it as `127.0.0.1:1`"),
        (&["--pod-key-file", "of-flag"], "set `key_file` of pods in the file"),
        (&["--isolate-tenants"], "or list `tenants` in the file"),
        (&["--one-destination"], "give --epp ADDRESS:PORT"),
        (
            &["--policy", "round-robbin"],
            "did you mean `round-robin`? available: cache-affinity, cache-aware,",
        ),
        (&["--policy", "no-profile"], "unknown profile `no-profile`; available: cache-affinity,"),
    ] {
        let error = file.settings("", given).unwrap_err();
        assert!(format!("{error:#}").contains(cure), "{given:?}: {error:#}");
    }
}

#[test]
fn a_password_on_the_command_line_is_refused_with_the_cure_and_not_shown() {
    let file = File::new("password");
    let given = ["--batches", "postgres://me:canary@127.0.0.1:1/name"];
    let error = format!("{:#}", file.settings("", &given).unwrap_err());
    assert!(error.contains("set PGPASSWORD") && !error.contains("canary"), "{error}");
}

#[test]
fn a_policy_that_needs_tokens_is_refused_where_no_model_has_a_tokenizer() {
    let file = File::new("tokens");
    let text = "models: [{name: m}]\nprofiles: {mine: {prepare: [tokenize, block_hash], score: [cache_affinity], pick: max_score}, other: {score: [least_load], pick: max_score}}\nroutes: [{profile: other}]";
    let error = file.settings(text, &["--policy", "mine"]).unwrap_err().to_string();
    assert!(error.contains("--policy mine needs tokens"), "{error}");
}
