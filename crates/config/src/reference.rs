//! The reference page of `wornpath.yaml`, written from what the code declares.

use std::fmt::Write;

use wornpath_yaml::{Parameter, parameter_table};

use crate::config::TOP;
use crate::sections::{
    access_log, batch, checkpoint, continuation, discovery, epp, exchange, kubernetes, limits,
    listen, metrics, models, password, pods, routes, shadow, sources, telemetry, tenants, tls,
};

const HEAD: &str = "\
# wornpath.yaml

Generated from the code by a test; do not edit. A commented example: [wornpath.example.yaml](../wornpath.example.yaml).

`wornpath check wornpath.yaml` lists every problem of a configuration with its position and its cure;
`wornpath serve -c wornpath.yaml` runs it. Relative paths start at the file's folder. The file contains no secrets:
API keys and tokens are written as digests (`printf %s SECRET | sha256sum`), and the cell's secret and passwords are in
separate files. The configuration is reloaded on SIGHUP, when the file changes, and on request of the admin plane; a file with a
problem changes nothing. An option of `wornpath serve` overrides the file ([which option overrides what](operations.md#changing-the-configuration)).
";

type ReferencePart = (&'static str, &'static str, &'static [Parameter]);

const PARTS: &[ReferencePart] = &[
    ("listen.client", "The client API: an address, or a map.", listen::LISTEN),
    (
        "listen.admin, listen.events",
        "An address, or a map. Both listeners are disabled by default.",
        listen::GUARDED,
    ),
    (
        "listen.epp",
        "The endpoint picker of a Gateway API Inference Extension ([page](endpoint-picker.md)): an address, or a map. Disabled by default; needs the feature `grpc`. `tls` is a map, or `self_signed`: a certificate that is made when the configuration is read, for gateways that encrypt without checking who answers.",
        epp::EPP,
    ),
    (
        "listen.*.tls",
        "Enables TLS on the listener. Renewed files take effect when the configuration is reloaded.",
        tls::LISTENER_TLS,
    ),
    ("models[]", "Models with a tokenizer, a block size or aliases.", models::MODEL),
    ("pods[]", "The engines. Identity and address:", pods::ADDRESS),
    ("pods[], and discovery by name", "Properties:", pods::FACTS),
    (
        "pod_addresses",
        "A list of address ranges such as `10.0.0.0/8` that every pod's address must be in, \
         whatever the pod's source; it is checked at every connection, after name resolution. \
         Without it, only link-local, multicast and unspecified addresses are refused.",
        &[],
    ),
    (
        "pod_tls",
        "TLS for pods at `https://`: the CA that pods must be signed by, and wornpath's own client certificate.",
        tls::POD_TLS,
    ),
    ("discovery[]: a file", "Pods listed in a file.", discovery::FILE),
    (
        "discovery[]: a name",
        "Pods at the addresses of a DNS name. The properties of pods can be set as well; they apply to all of them.",
        discovery::DNS,
    ),
    (
        "discovery[].kubernetes",
        "Pods of a Kubernetes cluster, as its API server reports them: a pod that becomes ready gets requests, one that is not ready, terminating or marked for removal gets no new ones, and a deleted one is removed. While the API server is away, pods stay. The properties of pods can be set beside `kubernetes`; an annotation `wornpath/KEY` of a pod replaces the property `KEY`. [kubernetes.md](kubernetes.md) has the annotations and the rights that it needs.",
        kubernetes::KUBERNETES,
    ),
    (
        "event_sources[]",
        "Sources of cache events other than the engines themselves.",
        sources::SOURCE,
    ),
    (
        "event_sources[].tls",
        "For a broker over TLS. Renewed files take effect when the configuration is reloaded.",
        tls::SERVER_TLS,
    ),
    (
        "checkpoint",
        "Saves the cache index across restarts: it is written to a file, loaded at the next \
         start, and used for a pod as soon as the pod's own events confirm it. A damaged file, or \
         one of another version, is ignored.",
        checkpoint::CHECKPOINT,
    ),
    (
        "tenants[]",
        "The callers and their API keys; without any, every caller is accepted.",
        tenants::TENANT,
    ),
    (
        "isolation",
        "If present, tenants share no cached blocks and cannot probe for each other's prompts. \
         Only engines that support `cache_salt` can isolate tenants.",
        tenants::ISOLATION,
    ),
    (
        "routes[]",
        "Selects the profile of a request; the first matching route applies, and the last must match every request. Without routes, the only profile is used, or else the built-in `cache-aware`, and `cache-aware-text` for models whose tokenizer is not known.",
        routes::ROUTE,
    ),
    (
        "routes[].match",
        "Conditions on a request; an omitted one matches every request.",
        routes::MATCH,
    ),
    (
        "profiles",
        "A map from names to profiles: either the profile itself, or the path of its file. \
         Plugins and their parameters: [plugins/reference.md](plugins/reference.md).",
        &[],
    ),
    (
        "shadow",
        "A second profile that decides beside the one of the route, without effect: it reserves no load, and the index learns \
         nothing of it. The dashboard and `wornpath_shadow_…` compare the two: how often they agree, and the cached tokens and \
         the time to first token that are predicted for both choices. Without this section nothing is compared.",
        shadow::SHADOW,
    ),
    ("limits", "Limits for clients, and capacities.", limits::LIMITS),
    ("timeouts", "Timeouts of calls to pods.", limits::TIMEOUTS),
    ("retries", "The retry budget.", limits::RETRIES),
    ("breaker", "The circuit breaker of each pod.", limits::BREAKER),
    (
        "continuation",
        "If `mode` is `on`, a stream whose pod dies, hangs or is drained goes on with another pod, which \
         gets the prompt and the text that the client has. [operations.md](operations.md#streams-that-survive-their-pod) \
         says which streams.",
        continuation::CONTINUATION,
    ),
    (
        "exchange",
        "Routers of the same pods tell each other what only each of them knows: the load that it put on each pod, the prompts \
         that it has just sent, and how much of their quotas and rates its tenants use. \
         [high-availability.md](high-availability.md#routers-that-exchange-what-they-know) says how. Without this section a \
         router sees of the others' load what the engines report every second. Read only at start.",
        exchange::EXCHANGE,
    ),
    (
        "exchange.tls",
        "Encrypts what routers tell each other; each shows a certificate. Without it only the key is checked.",
        tls::MUTUAL_TLS,
    ),
    ("drain", "Shutdown, and draining pods.", limits::DRAIN),
    (
        "metrics",
        "The cardinality of `/metrics`. Pods have series of their own without a limit, and are removed with their pod.",
        metrics::METRICS,
    ),
    (
        "access_log",
        "A line for every finished request to an engine, of clients, of batches and of data planes that ask the endpoint \
         picker: time, id, API, tenant, model, profile, pod, status, how it ended, the reason of an error, tokens of the prompt, \
         cached and generated, milliseconds in the wait queue (`waited_ms`), to the first token (`ttft_ms`) and in all \
         (`total_ms`), retries, and the trace id if it is traced. Disabled by default. [operations.md](operations.md#logs) has \
         examples. No request waits for it: lines that cannot be written in time are dropped and counted \
         (`wornpath_access_log_lines_total`).",
        access_log::ACCESS_LOG,
    ),
    (
        "telemetry",
        "Exports to a collector by OTLP: spans of traced requests (the request, `prepare`, \
         `lookup`, `filter`, `score`, `pick` and every `call`), and metrics. Pods receive a \
         `traceparent` below the request's span. Without this section, a client's trace context \
         is forwarded to the pod unchanged. The standard variables of OpenTelemetry apply where a \
         key is absent, those of one signal (`OTEL_EXPORTER_OTLP_TRACES_…`, \
         `OTEL_EXPORTER_OTLP_METRICS_…`) first; also `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER` \
         (`none`) and `OTEL_METRICS_EXPORTER` (`otlp`).",
        telemetry::TELEMETRY,
    ),
    (
        "telemetry.tls",
        "For a collector at `https://`. Without it, the CA is in `OTEL_EXPORTER_OTLP_CERTIFICATE`.",
        tls::SERVER_TLS,
    ),
    (
        "batch",
        "Enables the Files and Batches APIs: [batches.md](batches.md). Read only at start.",
        batch::BATCH,
    ),
    (
        "batch.tls",
        "Encrypts connections to the database. Without it they are not encrypted.",
        tls::SERVER_TLS,
    ),
    (
        "batch, event_sources[]: the password",
        "Of a database or a broker. An address with a password in it is refused.",
        password::PASSWORD,
    ),
    ("Top level", "Keys environment the sections.", TOP),
];

/// The reference page, as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (name, text, parameters) in PARTS {
        let _ = write!(page, "\n## {name}\n\n{text}\n");
        parameter_table(parameters, &mut page);
    }
    page
}
