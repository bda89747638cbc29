//! `wornpath serve --pod URL` and nothing else: exact if the engine says what it is, by text and
//! loudly so until the tokenizer is there.

use crate::hub::{COMMIT, Hub};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, command, eventually, folder};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const REPOSITORY: &str = "tiny/llama";

fn tiny_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../blocks/tests/models/tiny-llama")
}

/// An engine of the small model, whose card says that it is from there.
fn engine_of(root: &str, more: &[&str]) -> Engines {
    let folder = tiny_llama();
    let model = ["--model", "m", "--tokenizer", folder.to_str().unwrap(), "--root", root];
    Engines::start(&[&model[..], more].concat())
}

/// A router with nothing but the addresses of the engines; it may ask this hub.
fn in_front_of(engines: &Engines, hub: Option<&Hub>, cache: &Path, token: &str) -> Gateway {
    let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
    let mut arguments = vec!["--admin", "127.0.0.1:0"];
    arguments.extend(urls.iter().flat_map(|url| ["--pod", url.as_str()]));
    let mut command = command(&arguments);
    command.env("HF_HUB_CACHE", cache).env("HF_TOKEN", token);
    if let Some(hub) = hub {
        command.env("HF_ENDPOINT", format!("http://{}", hub.address)).env_remove("HF_HUB_OFFLINE");
    }
    Gateway::spawn(command, &arguments, urls.len())
}

fn pod(gateway: &Gateway) -> Value {
    gateway.ask("GET", "/pods", "").json()["pods"][0].clone()
}

fn mode(gateway: &Gateway) -> Value {
    pod(gateway)["precision"]["mode"].clone()
}

fn chat(gateway: &Gateway, turns: usize) -> u64 {
    let content = "the path is worn where many have walked ".repeat(10 * turns);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
    let answer = gateway.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.cached_tokens()
}

/// Sends chats that share beginnings and checks that every prediction was right to the token.
fn assert_exact(gateway: &Gateway) {
    eventually("its events are trusted", || pod(gateway)["events"]["trust"] == "exact");
    assert_eq!(mode(gateway), "exact", "{}", pod(gateway));
    for turns in [2, 1, 3, 2] {
        chat(gateway, turns);
        // The engine's events of this chat, before the next one is predicted.
        let expected = || gateway.ask("GET", "/index", "").json()["by_pod"][0]["expected"].clone();
        eventually("the events came", || expected() == 0);
    }
    let decisions = gateway.ask("GET", "/decisions?last=4", "").json()["decisions"].clone();
    let tokens: Vec<_> = (0..4).map(|at| decisions[at]["cached_tokens"].clone()).collect();
    for tokens in &tokens {
        assert_eq!(tokens["predicted"], tokens["actual"], "{decisions}");
    }
    assert!(tokens.iter().filter(|tokens| tokens["actual"].as_u64() > Some(0)).count() >= 3);
}

#[test]
fn one_flag_is_exact_in_front_of_an_engine_that_says_what_it_is() {
    let engines = Engines::start(&["--model", "m", "--block-size", "32"]);
    let gateway = in_front_of(&engines, None, Path::new("/nonexistent"), "");
    assert_exact(&gateway);
    let pod = pod(&gateway);
    assert_eq!(pod["block_size"]["index"], 32);
    assert!(pod["engine"]["kv_tokens"].as_u64() > Some(1000), "{pod}");
    assert_eq!(pod["precision"], json!({"mode": "exact", "tokenizer": "bytes", "reasons": []}));
    let name = &engines.engines[0].http;
    let line = format!("wornpath_pod_mode{{pod=\"{name}\",mode=\"exact\"}}");
    assert_eq!(gateway.metric(&line) as u64, 1);
    assert!(!gateway.log().contains("approximate"), "{}", gateway.log());
}

#[test]
fn the_folder_of_a_model_that_the_router_sees_too_is_used() {
    let folder = tiny_llama().canonicalize().unwrap();
    let engines = engine_of(folder.to_str().unwrap(), &[]);
    let gateway = in_front_of(&engines, None, Path::new("/nonexistent"), "");
    assert_exact(&gateway);
    assert_eq!(pod(&gateway)["precision"]["tokenizer"], folder.to_str().unwrap());
}

#[test]
fn a_tokenizer_is_downloaded_once_at_a_pinned_commit_and_found_in_the_cache_then() {
    let cache = folder("hub_cache");
    let hub = Hub::start(REPOSITORY, &tiny_llama(), Some("hf_secret"));
    let engines = engine_of(REPOSITORY, &[]);
    let gateway = in_front_of(&engines, Some(&hub), &cache, "hf_secret");
    eventually("it is downloaded", || mode(&gateway) == "exact");
    assert_exact(&gateway);
    let source = format!("{REPOSITORY}@{COMMIT} at the hub");
    assert_eq!(pod(&gateway)["precision"]["tokenizer"], source.as_str());
    let head = hub.heads("/blob").concat();
    assert!(!head.is_empty() && !head.contains("hf_secret"), "the other host got: {head}");
    assert!(!gateway.log().contains("hf_secret"));
    let paths = hub.paths();
    assert_eq!(paths.len(), 4, "the list, two files, one of them redirected: {paths:?}");
    assert!(!paths.iter().any(|path| path.contains("safetensors")), "{paths:?}");
    let snapshot = cache.join("models--tiny--llama/snapshots").join(COMMIT);
    let kept: Vec<_> = std::fs::read_dir(&snapshot).unwrap().collect();
    assert_eq!(kept.len(), 2, "no parts are left: {kept:?}");
    drop(gateway);
    drop(hub);
    let gateway = in_front_of(&engines, None, &cache, "");
    assert_exact(&gateway);
    assert_eq!(pod(&gateway)["precision"]["tokenizer"], snapshot.to_str().unwrap());
}

#[test]
fn a_slow_hub_delays_neither_start_nor_requests_and_is_exact_once_it_answers() {
    let hub = Hub::start(REPOSITORY, &tiny_llama(), None);
    hub.hold();
    let engines = engine_of(REPOSITORY, &[]);
    // Returns once the pod is up.
    let gateway = in_front_of(&engines, Some(&hub), &folder("hub_slow"), "");
    chat(&gateway, 1);
    assert_eq!(mode(&gateway), "approximate");
    let why = pod(&gateway)["precision"]["reasons"].to_string();
    assert!(why.contains("is being sought"), "{why}");
    let of = |profile: &str| format!("wornpath_profile_cache_mode{{profile=\"{profile}\",mode=");
    let by_text = format!("{}\"approximate\"", of("cache-aware-text"));
    assert!(gateway.get("/metrics").text.contains(&by_text));
    let last = gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    assert_eq!(last["profile"], "cache-aware-text", "{last}");
    hub.release();
    eventually("it is there", || mode(&gateway) == "exact");
    assert_exact(&gateway);
    let last = gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    assert_eq!(last["profile"], "cache-aware");
}

#[test]
fn offline_nothing_is_asked_and_one_line_says_what_is_missing_and_the_cure() {
    let engines = engine_of("never/there", &[]);
    let gateway = in_front_of(&engines, None, &folder("hub_offline"), "");
    for turns in 1..4 {
        chat(&gateway, turns);
    }
    let log = gateway.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("tokenizer not found")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for part in
        ["HF_HUB_OFFLINE is set", "never/there", "approximate", "--tokenizer FOLDER --model m"]
    {
        assert!(lines[0].contains(part), "no `{part}` in: {}", lines[0]);
    }
    let precision = pod(&gateway)["precision"].clone();
    assert_eq!(
        (&precision["mode"], &precision["tokenizer"]),
        (&json!("approximate"), &Value::Null)
    );
    let name = &engines.engines[0].http;
    let line = format!("wornpath_pod_mode{{pod=\"{name}\",mode=\"approximate\"}}");
    assert_eq!(gateway.metric(&line) as u64, 1);
    let mut top = std::process::Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let shown = top.args(["top", "--once", "--admin", &admin]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("approximate"), "{shown}");
}

#[test]
fn a_file_with_another_checksum_is_not_used() {
    let cache = folder("hub_damaged");
    let hub = Hub::start(REPOSITORY, &tiny_llama(), None);
    hub.damage();
    let engines = engine_of(REPOSITORY, &[]);
    let gateway = in_front_of(&engines, Some(&hub), &cache, "");
    eventually("it is said", || gateway.log().contains("does not have its checksum"));
    assert_eq!(mode(&gateway), "approximate");
    assert!(!cache.join("models--tiny--llama").exists(), "and nothing is kept");
}

#[test]
fn a_repository_that_wants_a_token_is_named_with_the_cure() {
    let hub = Hub::start(REPOSITORY, &tiny_llama(), Some("hf_secret"));
    let engines = engine_of(REPOSITORY, &[]);
    let gateway = in_front_of(&engines, Some(&hub), &folder("hub_gated"), "");
    eventually("it is said", || gateway.log().contains("status 401"));
    assert!(gateway.log().contains("set HF_TOKEN"), "{}", gateway.log());
}

#[test]
fn a_model_that_only_a_client_names_is_never_sought() {
    let hub = Hub::start(REPOSITORY, &tiny_llama(), None);
    let engines = engine_of(REPOSITORY, &[]);
    let gateway = in_front_of(&engines, Some(&hub), &folder("hub_client"), "");
    eventually("its own is found", || mode(&gateway) == "exact");
    let before = hub.paths();
    for model in ["evil/model", "../../etc", "tiny/llama"] {
        let body = json!({"model": model, "prompt": "a", "max_tokens": 1});
        assert_eq!(gateway.post("/v1/completions", &body).status, 404, "{model}");
    }
    chat(&gateway, 1);
    assert_eq!(hub.paths(), before);
}

#[test]
fn an_engine_that_does_not_say_where_it_publishes_is_approximate_with_the_flag_that_cures_it() {
    let engines = Engines::start(&["--model", "m", "--fault", "no-discovery"]);
    let gateway = in_front_of(&engines, None, Path::new("/nonexistent"), "");
    chat(&gateway, 1);
    let why = pod(&gateway)["precision"]["reasons"].to_string();
    assert!(why.contains("events=zmq://HOST:PORT") && why.contains("--tokenizer FOLDER"), "{why}");
    assert!(gateway.log().contains("pod approximate"), "{}", gateway.log());
    drop(gateway);
    // The flags that it named.
    let at = &engines.engines[0];
    let pod = format!("http://{},events=zmq://{}?replay={}", at.http, at.events, at.replay);
    let flags = ["--pod", &pod, "--tokenizer", "bytes", "--model", "m", "--admin", "127.0.0.1:0"];
    assert_exact(&Gateway::start(&flags, 1));
}

#[test]
fn events_that_are_named_are_followed_once_the_tokenizer_is_there() {
    let hub = Hub::start(REPOSITORY, &tiny_llama(), None);
    hub.hold();
    let engines = engine_of(REPOSITORY, &["--fault", "no-discovery"]);
    let at = &engines.engines[0];
    let pod = format!("http://{},events=zmq://{}?replay={}", at.http, at.events, at.replay);
    let arguments = ["--pod", &pod, "--admin", "127.0.0.1:0"];
    let mut router = command(&arguments);
    router.env("HF_ENDPOINT", format!("http://{}", hub.address)).env_remove("HF_HUB_OFFLINE");
    router.env("HF_HUB_CACHE", folder("hub_events"));
    let gateway = Gateway::spawn(router, &arguments, 1);
    chat(&gateway, 1);
    assert_eq!(mode(&gateway), "approximate");
    hub.release();
    eventually("it is exact", || mode(&gateway) == "exact");
    assert_exact(&gateway);
}

#[test]
fn what_was_found_stays_after_a_reload_and_the_file_can_switch_it_off() {
    let engines = Engines::start(&["--model", "m"]);
    let at = &engines.engines[0].http;
    let pods = format!("pods: [{{url: \"http://{at}\"}}]\n");
    let gateway = Gateway::configured("zero_configuration", &pods, 1);
    assert_exact(&gateway);
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve/zero_configuration/wornpath.yaml");
    let write = |text: String, reloads: u64| {
        std::fs::write(&path, text).unwrap();
        gateway.signal("-HUP");
        let reloaded = || gateway.ask("GET", "/config", "").json()["reloads"] == reloads;
        eventually("it is reloaded", reloaded);
    };
    write(format!("{pods}models: [{{name: m, aliases: [other]}}]\n"), 1);
    assert_exact(&gateway);
    write(format!("{pods}models: [{{name: m, tokenizer: none}}]\n"), 2);
    assert_eq!(mode(&gateway), "approximate");
    chat(&gateway, 1);
}

/// The engine is asked to tokenize; its text tokens are not those of bytes.
#[test]
fn tokens_that_differ_from_the_engines_are_loud_within_a_minute_with_the_cure() {
    let folder = tiny_llama();
    let engines = Engines::start(&["--model", "m", "--tokenizer", folder.to_str().unwrap()]);
    let flags = ["--tokenizer", "bytes", "--model", "m", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::in_front_of(&engines, &flags);
    eventually("it is logged", || gateway.log().contains("tokens differ"));
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("tokens differ")).unwrap();
    assert!(line.contains("ERROR") && line.contains("at token 0 of a probe"), "{line}");
    assert!(line.contains("with --tokenizer"), "the cure: {line}");
    assert_eq!(mode(&gateway), "approximate");
    let same = ["--tokenizer", folder.to_str().unwrap(), "--model", "m", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::in_front_of(&engines, &same);
    assert_exact(&gateway);
    assert!(!gateway.log().contains("tokens differ"), "{}", gateway.log());
}

/// A template that the engine was given, as with vLLM's `--chat-template`.
#[test]
fn a_chat_template_that_differs_from_the_engines_is_told_from_a_tokenizer() {
    let of_engine = folder("zero_template");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny_llama().join(file), of_engine.join(file)).unwrap();
    }
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    std::fs::write(of_engine.join("chat_template.jinja"), template).unwrap();
    let engines = Engines::start(&["--model", "m", "--tokenizer", of_engine.to_str().unwrap()]);
    let folder = tiny_llama();
    let flags = ["--tokenizer", folder.to_str().unwrap(), "--model", "m", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::in_front_of(&engines, &flags);
    eventually("it is logged", || gateway.log().contains("renders chats by another template"));
    assert!(gateway.log().contains("chat_template.jinja"), "the cure: {}", gateway.log());
    drop(gateway);
    let flags =
        ["--tokenizer", of_engine.to_str().unwrap(), "--model", "m", "--admin", "127.0.0.1:0"];
    assert_exact(&Gateway::in_front_of(&engines, &flags));
}
