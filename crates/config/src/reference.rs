//! The reference page of `wornpath.yaml`, written from what the code declares.

use std::fmt::Write;

use wornpath_routing::Parameter;
use wornpath_routing::document::parameter_table;

use crate::config::TOP;
use crate::sections::{
    batch, checkpoint, discovery, limits, listen, models, pods, routes, sources, telemetry,
    tenants, tls,
};

const HEAD: &str = "\
# wornpath.yaml

Written from the code by a test; do not edit. A commented example: [wornpath.example.yaml](../wornpath.example.yaml).

`wornpath check wornpath.yaml` says what is wrong with a configuration, every problem with its place and its
cure; `wornpath serve -c wornpath.yaml` runs it. Paths in it start beside the file. Nothing secret stands in it:
API keys and tokens are written as digests (`printf %s SECRET | sha256sum`), the cell's secret has a file of its
own. It is read again on SIGHUP, when it changes, and when the admin plane says so; a file with a problem changes
nothing. An option of `wornpath serve` overrides what stands here ([which one what](operations.md#changing-the-configuration)).
";

type ReferencePart = (&'static str, &'static str, &'static [Parameter]);

const PARTS: &[ReferencePart] = &[
    ("listen.client", "Where clients come: an address alone, or a map.", listen::LISTEN),
    (
        "listen.admin, listen.events",
        "An address alone, or a map. Neither is there unless it is given.",
        listen::GUARDED,
    ),
    (
        "listen.*.tls",
        "With it, the listener speaks TLS. Renewed files take effect when the configuration is read again.",
        tls::LISTENER_TLS,
    ),
    (
        "models[]",
        "The models that are served, as far as more than their name matters.",
        models::MODEL,
    ),
    ("pods[]", "The engines. Who they are:", pods::ADDRESS),
    ("pods[], and discovery by name", "What is known of them:", pods::FACTS),
    (
        "pod_addresses",
        "A list of address ranges such as `10.0.0.0/8` in which all pods must be, wherever they come from; it is \
         checked at every connection, after names were resolved. Without it, pods may be anywhere but at link-local, \
         multicast and unspecified addresses.",
        &[],
    ),
    (
        "pod_tls",
        "How pods at `https://` are recognised, and how they recognise wornpath.",
        tls::POD_TLS,
    ),
    ("discovery[]: a file", "Pods that come and go with a file.", discovery::FILE),
    (
        "discovery[]: a name",
        "Pods that come and go with the addresses of a name. It also takes what is known of pods, the same for all.",
        discovery::DNS,
    ),
    (
        "event_sources[]",
        "Where cache events come from, besides the engines themselves.",
        sources::SOURCE,
    ),
    (
        "checkpoint",
        "With it, what is known of the pods' caches outlives the router: it is kept in a file, read at the next start, \
         and counts as soon as a pod's own events confirm it. A file that is damaged or of another version is passed \
         over.",
        checkpoint::CHECKPOINT,
    ),
    ("tenants[]", "Who may call; everybody if there is none.", tenants::TENANT),
    (
        "isolation",
        "If it is there, tenants share no cached blocks and cannot probe for each other's prompts. Only engines \
         that know `cache_salt` can do that.",
        tenants::ISOLATION,
    ),
    (
        "routes[]",
        "Which profile decides; the first route that matches counts, and the last must match everything. Without routes, the only profile decides, or the shipped `cache-aware`, or `cache-aware-text` where some model has no tokenizer.",
        routes::ROUTE,
    ),
    (
        "routes[].match",
        "What a request must be like; what is not given matches everything.",
        routes::MATCH,
    ),
    (
        "profiles",
        "A map from names to profiles: either the profile itself, or the path of a file with it. Plugins and their \
         parameters: [plugins/reference.md](plugins/reference.md).",
        &[],
    ),
    ("limits", "What a client may send.", limits::LIMITS),
    ("timeouts", "How long calls to pods may take.", limits::TIMEOUTS),
    ("retries", "How many retries there may be.", limits::RETRIES),
    ("breaker", "When pods are cut off.", limits::BREAKER),
    ("drain", "How wornpath ends.", limits::DRAIN),
    (
        "telemetry",
        "With it, spans of traced requests go to a collector: the request, `prepare`, `lookup`, `filter`, `score`, \
         `pick` and every `call`. Pods get a `traceparent` below the request's span. Without it, whatever trace \
         context a client sends goes to the pod as it is.",
        telemetry::TELEMETRY,
    ),
    (
        "batch",
        "With it, files and batches are served: [batches.md](batches.md). Read when wornpath starts.",
        batch::BATCH,
    ),
    ("At the top", "Keys that are no sections.", TOP),
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
