//! Envoy, with or without a picker.

use crate::{Process, free_port, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// A running Envoy.
pub(crate) struct Envoy {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

fn typed(kind: &str, mut fields: Value) -> Value {
    fields["@type"] = format!("type.googleapis.com/envoy.{kind}").into();
    fields
}

fn endpoints(name: &str, ports: &[u16]) -> Value {
    let endpoint = |port: &u16| json!({"endpoint": {"address": address(*port)}});
    let all: Vec<_> = ports.iter().map(endpoint).collect();
    json!({"cluster_name": name, "endpoints": [{"lb_endpoints": all}]})
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

fn ext_proc() -> Value {
    let fields = json!({
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "60s",
        "processing_mode": {
            "request_header_mode": "SEND", "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
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

fn pods_cluster(ports: &[u16], has_picker: bool) -> Value {
    let round_robin =
        typed("extensions.load_balancing_policies.round_robin.v3.RoundRobin", json!({}));
    let round_robin =
        json!({"name": "envoy.load_balancing_policies.round_robin", "typed_config": round_robin});
    let policy = if has_picker {
        let fields = json!({
            "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
            "selected_host_key": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]},
            "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
        });
        let policy =
            typed("extensions.load_balancing_policies.override_host.v3.OverrideHost", fields);
        json!({"name": "envoy.load_balancing_policies.override_host", "typed_config": policy})
    } else {
        round_robin
    };
    json!({
        "name": "pods", "type": "STATIC", "load_assignment": endpoints("pods", ports),
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
    })
}

impl Envoy {
    /// Starts Envoy in front of pods, with the picker at this port if there is one.
    pub(crate) fn start(pods: &[SocketAddr], picker: Option<u16>) -> anyhow::Result<Self> {
        let port = free_port()?;
        let ports: Vec<_> = pods.iter().map(SocketAddr::port).collect();
        let router = typed("extensions.filters.http.router.v3.Router", json!({}));
        let router = json!({"name": "envoy.filters.http.router", "typed_config": router});
        let filters: Vec<_> = picker.map(|_| ext_proc()).into_iter().chain([router]).collect();
        let manager = typed(
            "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            json!({
                "stat_prefix": "in",
                "route_config": {"virtual_hosts": [{
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pods", "timeout": "0s"}}],
                }]},
                "http_filters": filters,
            }),
        );
        let http2 = typed(
            "extensions.upstreams.http.v3.HttpProtocolOptions",
            json!({"explicit_http_config": {"http2_protocol_options": {}}}),
        );
        let mut clusters = vec![pods_cluster(&ports, picker.is_some())];
        if let Some(picker) = picker {
            clusters.push(json!({
                "name": "picker", "type": "STATIC", "load_assignment": endpoints("picker", &[picker]),
                "circuit_breakers": {"thresholds": [{"max_requests": 40000, "max_connections": 10000}]},
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2,
                },
            }));
        }
        let configuration = json!({
            "static_resources": {
                "listeners": [{
                    "name": "in", "address": address(port),
                    "filter_chains": [{"filters": [{
                        "name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
                    }]}],
                }],
                "clusters": clusters,
            },
        });
        let path = std::env::temp_dir().join(format!("wornpath-bench-envoy-{port}.json"));
        fs::write(&path, configuration.to_string())?;
        let process = Process::start(
            Command::new("envoy")
                .arg("-c")
                .arg(&path)
                .args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "error"])
                .stdout(Stdio::null()),
        )?;
        wait_for(port)?;
        Ok(Self { process, address: SocketAddr::from(([127, 0, 0, 1], port)) })
    }
}
