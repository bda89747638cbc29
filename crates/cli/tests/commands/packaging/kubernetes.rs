//! The chart without a cluster: what it renders is what Kubernetes takes, fits each other, and fits
//! the binary.

use super::yaml::parse;
use super::{folder, has, root, takes, wornpath};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const CHART: &str = "deploy/helm/wornpath";

/// Ways to install the chart: values, or a file of values after `@`.
const INSTALLATIONS: [(&str, &[&str]); 10] = [
    ("default", &[]),
    ("picker", &["mode=picker", "route.gateway=inference", "route.hostnames={llm.example.com}"]),
    (
        "a picker with fallbacks, objectives and a certificate of its own",
        &[
            "mode=picker",
            "picker.destinations=list",
            "picker.failureMode=FailOpen",
            "picker.tls.kind=secret",
            "picker.tls.secret=picker",
            "picker.objectives={interactive=6,batch=1}",
        ],
    ),
    (
        "hub token and volume",
        &[
            "replicas=1",
            "batches.kind=volume",
            "modelDefaults.tokenizer.hub.secret=hub",
            "serviceMonitor.enabled=true",
        ],
    ),
    (
        "from zero, TLS and PostgreSQL",
        &[
            "tls.secret=front",
            "batches.kind=postgres",
            "batches.postgres=postgres://wornpath@db:5432/wornpath",
            "batches.secret=db",
            "modelDefaults.waitForPod=600s",
            "modelDefaults.autoscaling.kind=keda",
            "modelDefaults.autoscaling.min=0",
            "modelDefaults.tokenizer.claim=models",
            "modelDefaults.tokenizer.path=qwen",
            "serviceMonitor.enabled=true",
        ],
    ),
    (
        "scaled by metrics",
        &[
            "modelDefaults.autoscaling.kind=hpa",
            "modelDefaults.autoscaling.prefillTokens=1000000",
            "route.gateway=inference",
            "route.namespace=infra",
            "networkPolicy.engineCallers[0].namespaceSelector.matchLabels.name=monitoring",
        ],
    ),
    (
        "a picker that only its proxy reaches",
        &[
            "mode=picker",
            "networkPolicy.proxy[0].namespaceSelector.matchLabels.name=gateways",
            "networkPolicy.routerCallers[0].podSelector.matchLabels.app=prometheus",
        ],
    ),
    ("the example of a gateway", &["@examples/kubernetes-vllm/gateway.yaml"]),
    ("the example of a picker", &["@examples/kubernetes-vllm/picker.yaml"]),
    (
        "engines that exist, two models",
        &[
            "modelDefaults.engines.create=false",
            "models[0].name=a",
            "models[0].model=org/a",
            "models[0].engines.selector.app=a",
            "models[1].name=b",
            "models[1].model=org/b",
            "models[1].engines.selector.app=b",
            "models[1].engines.eventsPort=0",
        ],
    ),
];

/// Whether a program is there; the whole suite requires it.
fn is_there(program: &str) -> bool {
    if has(program)
        || Command::new(program).arg("version").output().is_ok_and(|it| it.status.success())
    {
        return true;
    }
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    assert!(!required, "{program} is missing; `./test` installs it");
    false
}

/// What helm renders with these values, or what it says is wrong.
fn render(values: &[&str]) -> Result<String, String> {
    let mut helm = Command::new("helm");
    helm.args(["template", "test"]).arg(root().join(CHART)).args(["--namespace", "models"]);
    for value in values {
        match value.strip_prefix('@') {
            Some(file) => helm.arg("--values").arg(root().join(file)),
            None => helm.args(["--set", value]),
        };
    }
    let output = helm.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The manifests of one installation.
pub(super) struct Rendered(Vec<Value>);

impl Rendered {
    pub(super) fn of(values: &[&str]) -> Self {
        let text = render(values).unwrap_or_else(|error| panic!("{values:?}: {error}"));
        let documents = text.split("\n---").filter(|document| document.contains("\nkind:"));
        Self(documents.map(|document| parse(document.trim_start_matches("---"))).collect())
    }

    pub(super) fn all<'a>(&'a self, kind: &str) -> Vec<&'a Value> {
        self.0.iter().filter(|manifest| manifest["kind"] == kind).collect()
    }

    /// The manifest of a kind that belongs to the routers.
    pub(super) fn router(&self, kind: &str) -> &Value {
        let is_router = |it: &&&Value| it["metadata"]["name"] == "test-wornpath";
        self.all(kind).iter().find(is_router).unwrap_or_else(|| panic!("no {kind}"))
    }

    pub(super) fn engines(&self) -> &Value {
        let is_engine = |it: &&&Value| it["metadata"]["name"] == "test-wornpath-qwen3-8b";
        self.all("Deployment").iter().find(is_engine).expect("engines")
    }

    pub(super) fn config_text(&self) -> &str {
        at(self.router("ConfigMap"), "/data/wornpath.yaml").as_str().unwrap()
    }

    pub(super) fn config(&self) -> Value {
        parse(self.config_text())
    }

    pub(super) fn container(&self) -> &Value {
        at(self.router("Deployment"), "/spec/template/spec/containers/0")
    }
}

pub(super) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("there is no {path} in {value}"))
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// A test of the chart; without helm it shows nothing.
pub(super) fn with_helm(test: impl FnOnce()) {
    if is_there("helm") {
        test();
    }
}

#[test]
fn every_manifest_has_the_form_that_kubernetes_and_the_gateway_api_ask_for() {
    with_helm(|| {
        if !is_there("kubernetes-validate") {
            return;
        }
        let folder = folder("chart");
        let schemas = root().join("crates/cli/tests/commands/packaging/custom_resources.json");
        for (name, values) in INSTALLATIONS {
            let rendered = Rendered::of(values);
            let is_custom = |it: &&Value| {
                let group =
                    it["apiVersion"].as_str().unwrap().split('/').next().unwrap().to_owned();
                group.contains('.')
                    && !group.ends_with("authorization.k8s.io")
                    && group != "networking.k8s.io"
            };
            let (custom, core): (Vec<_>, Vec<_>) = rendered.0.iter().partition(is_custom);
            let write = |file: &str, manifests: &[&Value]| {
                let path = folder.join(file);
                let all: Vec<_> = manifests.iter().map(ToString::to_string).collect();
                fs::write(&path, all.join("\n---\n")).unwrap();
                path
            };
            let core = write("core.yaml", &core);
            let answer =
                Command::new("kubernetes-validate").arg("--strict").arg(core).output().unwrap();
            let said = [answer.stdout, answer.stderr].concat();
            assert!(answer.status.success(), "{name}: {}", String::from_utf8_lossy(&said));
            for manifest in custom {
                let path = write("custom.json", &[manifest]);
                let script = "import json, sys, jsonschema\n\
                    manifest = json.load(open(sys.argv[2]))\n\
                    schema = json.load(open(sys.argv[1]))[manifest['apiVersion'] + ' ' + manifest['kind']]\n\
                    jsonschema.validate(manifest, schema)\n";
                let answer = Command::new("python3")
                    .args(["-c", script])
                    .arg(&schemas)
                    .arg(path)
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&answer.stderr);
                assert!(answer.status.success(), "{name}: {manifest}: {said}");
            }
        }
    });
}

#[test]
fn every_rendered_configuration_checks() {
    with_helm(|| {
        let has_picker = wornpath(&["epp", "--help"]).status.success();
        let folder = folder("chart-config");
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.join(name));
        let front = rcgen::generate_simple_self_signed(vec!["front".to_owned()]).unwrap();
        fs::write(&certificate, front.cert.pem()).unwrap();
        fs::write(&key, front.signing_key.serialize_pem()).unwrap();
        for (name, values) in INSTALLATIONS {
            let rendered = Rendered::of(values);
            let mut text = rendered.config_text().to_owned();
            for model in ["qwen3-8b", "a", "b"] {
                text =
                    text.replace(&format!("/models/{model}\n"), &format!("{}\n", folder.display()));
            }
            text = text.replace("/etc/wornpath-tls", folder.to_str().unwrap());
            text = text.replace("/etc/wornpath-picker-tls", folder.to_str().unwrap());
            text = text.replace("/var/lib/wornpath", folder.to_str().unwrap());
            if !has_picker && at(&rendered.config(), "/listen").get("epp").is_some() {
                continue;
            }
            let path = folder.join("wornpath.yaml");
            fs::write(&path, &text).unwrap();
            let answer = Command::new(env!("CARGO_BIN_EXE_wornpath"))
                .arg("check")
                .arg(&path)
                .env("WORNPATH_DATABASE_PASSWORD", "secret")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&answer.stdout);
            assert!(answer.status.success(), "{name}: {said}\n{text}");
        }
    });
}

#[test]
fn the_default_installation_routes_exactly() {
    with_helm(|| {
        let rendered = Rendered::of(&[]);
        let config = rendered.config();
        let model = at(&config, "/models/0");
        let source = at(&config, "/discovery/0");
        assert_eq!(model["name"], source["model"]);
        let engine = at(rendered.engines(), "/spec/template/spec/containers/0");
        let arguments: Vec<_> =
            engine["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(arguments[0], model["name"]);
        assert!(arguments.contains(&&*format!("--block-size={}", model["block_size"])));
        assert!(arguments.contains(&"--enable-prompt-tokens-details"), "predictions are checked");
        let given = arguments.iter().position(|word| *word == "--kv-events-config").unwrap();
        let events: Value = serde_json::from_str(arguments[given + 1]).unwrap();
        let port =
            |key: &str| events[key].as_str().unwrap().strip_prefix("tcp://*:").unwrap().to_owned();
        let expected =
            format!("zmq://{{host}}:{}?replay={}", port("endpoint"), port("replay_endpoint"));
        assert_eq!(source["events"], expected);
        let tokenizer = model["tokenizer"].as_str().unwrap();
        let download = at(rendered.router("Deployment"), "/spec/template/spec/initContainers/0");
        let variable = |name: &str| {
            let all = download["env"].as_array().unwrap();
            all.iter().find(|variable| variable["name"] == name).unwrap()["value"].clone()
        };
        assert_eq!(
            (variable("FOLDER"), variable("REPOSITORY")),
            (tokenizer.into(), model["name"].clone())
        );
        let mounted = at(rendered.container(), "/volumeMounts/1/mountPath").as_str().unwrap();
        assert!(tokenizer.starts_with(&format!("{mounted}/")));
    });
}

#[test]
fn the_selector_of_discovery_selects_the_engines_and_the_role_allows_to_watch_them() {
    with_helm(|| {
        for (name, values) in &INSTALLATIONS[..9] {
            let rendered = Rendered::of(values);
            let labels = at(rendered.engines(), "/spec/template/metadata/labels");
            let source = at(&rendered.config(), "/discovery/0/kubernetes").clone();
            let rules = at(rendered.router("Role"), "/rules").as_array().unwrap().clone();
            assert_eq!(rules[0]["resources"], serde_json::json!(["pods"]));
            if let Some(pool) = source["pool"].as_str() {
                let [manifest] = rendered.all("InferencePool")[..] else { panic!("{name}") };
                assert_eq!(manifest["metadata"]["name"], pool);
                assert_eq!(at(manifest, "/spec/selector/matchLabels"), labels, "{name}");
                assert_eq!(rules[1]["resourceNames"], serde_json::json!([pool]));
                let picker = at(manifest, "/spec/endpointPickerRef");
                assert_eq!(picker["name"], rendered.router("Service")["metadata"]["name"]);
                assert_eq!(
                    at(picker, "/port/number"),
                    at(rendered.router("Service"), "/spec/ports/1/port")
                );
            } else {
                for term in source["selector"].as_str().unwrap().split(',') {
                    let (key, value) = term.split_once('=').unwrap();
                    assert_eq!(labels[key], value, "{name}");
                }
                assert_eq!(rules.len(), 1, "no right that is not needed");
            }
            for rule in &rules {
                assert_eq!(rule["verbs"], serde_json::json!(["list", "watch"]));
            }
        }
    });
}

#[test]
fn values_that_cannot_work_are_refused_with_a_cure() {
    with_helm(|| {
        for (values, cure) in [
            (&["mode=proxy"][..], "give gateway or picker"),
            (&["batches.kind=volume"], "set replicas to 1, or use postgres"),
            (&["batches.kind=postgres"], "needs batches.postgres"),
            (
                &["modelDefaults.autoscaling.kind=keda", "modelDefaults.autoscaling.min=0"],
                "set waitForPod",
            ),
            (
                &["modelDefaults.autoscaling.kind=hpa", "modelDefaults.autoscaling.min=0"],
                "needs kind keda",
            ),
            (&["modelDefaults.engines.create=false"], "engines.selector must give the labels"),
            (
                &[
                    "modelDefaults.engines.create=false",
                    "modelDefaults.engines.selector.app=vllm",
                    "modelDefaults.autoscaling.kind=keda",
                ],
                "no Deployment to scale; set autoscaling.kind to none",
            ),
            (&["route.gateway=inference", "tls.secret=front"], "remove tls.secret"),
            (&["picker.failureMode=Open"], "give FailClose or FailOpen"),
            (&["picker.destinations=all"], "give list or one"),
            (&["picker.tls.kind=on"], "give selfSigned, secret or none"),
            (&["picker.tls.kind=secret"], "needs picker.tls.secret"),
            (
                &[
                    "mode=picker",
                    "models[0].name=a",
                    "models[0].model=a",
                    "models[1].name=b",
                    "models[1].model=b",
                ],
                "install the chart once for each model",
            ),
        ] {
            let error = render(values).expect_err(cure);
            assert!(error.contains(cure), "{values:?}: {error}");
        }
    });
}

#[test]
fn the_autoscalers_read_metrics_that_exist() {
    with_helm(|| {
        let known = super::read("docs/metrics.md");
        let mut metrics = Vec::new();
        for kind in ["hpa", "keda"] {
            let kind = format!("modelDefaults.autoscaling.kind={kind}");
            let text = render(&[&kind, "modelDefaults.autoscaling.prefillTokens=9000"]).unwrap();
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let of_models = words.filter(|word| word.starts_with("wornpath_"));
            metrics.extend(of_models.map(str::to_owned));
        }
        assert_eq!(metrics.len(), 6, "{metrics:?}");
        for metric in metrics {
            assert!(known.contains(&format!("`{metric}`")), "{metric}");
        }
    });
}

#[test]
fn the_container_starts_the_binary_with_the_mounted_configuration() {
    with_helm(|| {
        let rendered = Rendered::of(&[]);
        let container = rendered.container();
        let arguments = at(container, "/args").as_array().unwrap();
        let arguments: Vec<&str> = arguments.iter().map(|word| word.as_str().unwrap()).collect();
        takes(&arguments);
        let mount = at(container, "/volumeMounts/0");
        let folder = at(mount, "/mountPath").as_str().unwrap();
        assert_eq!(arguments[2], format!("{folder}/wornpath.yaml"));
        let volume = at(rendered.router("Deployment"), "/spec/template/spec/volumes/0");
        assert_eq!(at(mount, "/name"), at(volume, "/name"));
        let version = String::from_utf8(wornpath(&["--version"]).stdout).unwrap();
        assert_eq!(at(container, "/image"), &version.trim().replace(' ', ":"));
        let port = at(&rendered.config(), "/listen/client/address").as_str().unwrap().to_owned();
        assert_eq!(format!("0.0.0.0:{}", at(container, "/ports/0/containerPort")), port);
        assert_eq!(
            at(rendered.router("Service"), "/spec/ports/0/targetPort"),
            at(container, "/ports/0/name")
        );
        assert!(
            at(&rendered.config(), "/listen/admin").as_str().unwrap().starts_with("127.0.0.1:")
        );
    });
}

#[test]
fn the_container_may_do_little_and_is_not_root() {
    with_helm(|| {
        let rendered = Rendered::of(&[]);
        let pod = at(rendered.router("Deployment"), "/spec/template/spec/securityContext");
        assert_eq!(at(pod, "/runAsNonRoot"), true);
        assert!(at(pod, "/runAsUser").as_u64().unwrap() > 0);
        let download = at(rendered.router("Deployment"), "/spec/template/spec/initContainers/0");
        for container in [rendered.container(), download] {
            let own = at(container, "/securityContext");
            assert_eq!(at(own, "/readOnlyRootFilesystem"), true);
            assert_eq!(at(own, "/allowPrivilegeEscalation"), false);
            assert_eq!(at(own, "/capabilities/drop/0"), "ALL");
        }
    });
}

#[test]
fn selectors_select_the_routers() {
    with_helm(|| {
        let rendered = Rendered::of(&["serviceMonitor.enabled=true"]);
        let labels = at(rendered.router("Deployment"), "/spec/template/metadata/labels");
        for (kind, path) in [
            ("Deployment", "/spec/selector/matchLabels"),
            ("Service", "/spec/selector"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
            ("NetworkPolicy", "/spec/podSelector/matchLabels"),
            ("ServiceMonitor", "/spec/selector/matchLabels"),
        ] {
            for (key, value) in at(rendered.router(kind), path).as_object().unwrap() {
                assert_eq!(labels[key], *value, "{kind}");
            }
        }
        let engines = at(rendered.engines(), "/spec/template/metadata/labels");
        assert_ne!(engines["app.kubernetes.io/name"], labels["app.kubernetes.io/name"]);
    });
}

#[test]
fn the_termination_grace_period_covers_lame_duck_and_draining() {
    with_helm(|| {
        let rendered = Rendered::of(&["drain.grace=120"]);
        let config = rendered.config();
        let drain = |key: &str| seconds(at(&config, key).as_str().unwrap());
        let lame_duck = drain("/drain/lame_duck");
        let longest = lame_duck + drain("/drain/grace") + 2;
        let pod = at(rendered.router("Deployment"), "/spec/template/spec");
        let allowed = at(pod, "/terminationGracePeriodSeconds").as_u64().unwrap();
        assert!(allowed > longest, "{allowed} s are too short for {longest}");
        let probe = at(rendered.container(), "/readinessProbe");
        let noticed = at(probe, "/periodSeconds").as_u64().unwrap()
            * at(probe, "/failureThreshold").as_u64().unwrap();
        assert!(noticed < lame_duck, "noticed after {noticed} s, the lame duck lasts {lame_duck}");
        let engine = at(rendered.engines(), "/spec/template/spec");
        let allowed = at(engine, "/terminationGracePeriodSeconds").as_u64().unwrap();
        let hook = at(engine, "/containers/0/lifecycle/preStop/exec/command");
        let drain: u64 = at(hook, "/1").as_str().unwrap().parse().unwrap();
        assert!(allowed > drain, "the hook may take {drain} s of {allowed}");
    });
}

/// `/health` fails once a thread has been stuck for 5 s.
#[test]
fn a_router_with_a_stuck_thread_is_restarted_within_half_a_minute_and_one_that_starts_is_not() {
    with_helm(|| {
        let rendered = Rendered::of(&[]);
        let seconds = |probe: &str, key: &str| {
            at(rendered.container(), &format!("/{probe}/{key}")).as_u64().unwrap()
        };
        let lasts = |probe| seconds(probe, "periodSeconds") * seconds(probe, "failureThreshold");
        let noticed = 5 + lasts("livenessProbe") + seconds("livenessProbe", "timeoutSeconds");
        assert!(noticed <= 30, "{noticed} s");
        assert!(seconds("livenessProbe", "failureThreshold") > 1, "one late answer is no reason");
        assert!(lasts("startupProbe") >= 60, "{} s to start", lasts("startupProbe"));
        let path = |probe: &str| {
            at(rendered.container(), &format!("/{probe}/httpGet/path")).as_str().unwrap().to_owned()
        };
        assert_eq!(path("startupProbe"), path("livenessProbe"));
        let [alive, ready] = statuses(&path("livenessProbe"), &path("readinessProbe"));
        assert_eq!((alive.as_str(), ready.as_str()), ("200", "503"), "no pod has answered yet");
    });
}

/// The statuses of two paths of a router without pods.
fn statuses(live: &str, ready: &str) -> [String; 2] {
    let mut router = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["serve", "--pod", "http://127.0.0.1:1", "--port", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(router.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address =
        lines.find_map(|line| line.strip_prefix("listening: http://").map(str::to_owned)).unwrap();
    let status = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let statuses = [live, ready].map(status);
    router.kill().unwrap();
    router.wait().unwrap();
    statuses
}

#[test]
fn the_drain_hook_waits_for_the_streams_of_its_engine() {
    let engines = crate::support::engines::Engines::start_at("1", &["--model", "m"]);
    let engine = &engines.engines[0].http;
    let hook = || {
        Command::new("python3")
            .arg(root().join(CHART).join("files/drain.py"))
            .env("ENGINE_METRICS", format!("http://{engine}/metrics"))
            .env("SETTLE", "0")
            .spawn()
            .unwrap()
    };
    assert!(hook().wait().unwrap().success(), "an idle engine is drained");
    let body =
        r#"{"model": "m", "prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}"#;
    let mut stream =
        crate::support::engines::Exchange::open(engine, "POST", "/v1/completions", body);
    stream.read_past("data: ");
    let mut hook = hook();
    let mut read = String::new();
    while !read.contains("[DONE]") {
        assert!(hook.try_wait().unwrap().is_none(), "it ended before the stream");
        read = stream.read_past("\n");
    }
    assert!(hook.wait().unwrap().success());
}
