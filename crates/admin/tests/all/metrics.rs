//! The page of metrics, and the page about it.
//!
//! `UPDATE=1 cargo test -p wornpath-admin` updates docs/metrics.md.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::{TestServer, folder};
use wornpath_gateway::http::metrics_page::{PageFormat, page};
use wornpath_gateway::observe::metrics::{FAMILIES, reference};
use wornpath_gateway::{Api, RequestEnd, RequestSummary, SummaryObserver, Usage};

#[test]
fn the_reference_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, reference()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference(),
        "docs/metrics.md is not current; write it with \
         `UPDATE=1 cargo test -p wornpath-admin`"
    );
}

#[test]
fn every_declared_metric_is_on_the_page_once_and_no_other() {
    let path = folder("page").join("wornpath.yaml");
    let text = "pods: [{url: \"http://127.0.0.1:1\", name: a}]\n";
    fs::write(&path, text).unwrap();
    let server = TestServer::start(&path);
    let snapshot = server.gateway.snapshot();
    let pod = &snapshot.fleet().pods()[0];
    server.context.metrics.ended(&RequestSummary {
        profile: "p".into(),
        model: "m".into(),
        pod: Some((pod.id(), pod.facts().name.clone())),
        status: 200,
        ended: RequestEnd::Whole,
        first_byte: Some(Duration::from_millis(2)),
        total: Duration::from_millis(3),
        predicted_tokens: Some(16),
        usage: Usage { prompt_tokens: Some(32), cached_tokens: Some(16), output_tokens: Some(1) },
        ..RequestSummary::new("r", Api::CHAT)
    });
    let page = page(&server.gateway, &server.context.metrics, PageFormat::Text);
    let mut exported: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut declared: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = series.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is_declared = |name: &str| declared.contains(&name);
        assert!(is_declared(name) || base.is_some_and(is_declared), "{line}");
    }
    assert!(page.contains("wornpath_pod_health{pod=\"a\",health=\"down\"} 1\n"), "{page}");
}
