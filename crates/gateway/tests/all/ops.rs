//! The Grafana dashboard and the Prometheus alerts name only metrics and labels that exist.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use wornpath_gateway::observe::metrics::{FAMILIES, Family, MetricKind};

fn read(name: &str) -> String {
    let path = format!("{}/../../ops/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The metric that a name in an expression means.
fn family(name: &str) -> Option<&'static Family> {
    let of_histogram = || {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end))?;
        FAMILIES.iter().find(|family| family.name == base && family.kind == MetricKind::Histogram)
    };
    let plain =
        FAMILIES.iter().find(|family| family.name == name && family.kind != MetricKind::Histogram);
    plain.or_else(of_histogram)
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// What is wrong with an expression: unknown metrics, labels they do not have, brackets that do not
/// fit.
fn problems(expression: &str) -> Vec<String> {
    let mut problems = Vec::new();
    // Prometheus itself says of every figure which router it is of.
    let mut labels = BTreeSet::from(["le", "instance"]);
    let mut rest = expression;
    while let Some(at) = rest.find("wornpath_") {
        let name: String = rest[at..].chars().take_while(|letter| is_of_name(*letter)).collect();
        rest = &rest[at + name.len()..];
        let Some(family) = family(&name) else {
            problems.push(format!("there is no metric `{name}`"));
            continue;
        };
        labels.extend(family.labels);
        let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for matcher in selector.map_or("", |(selector, _)| selector).split(", ") {
            let label: String = matcher.chars().take_while(|letter| is_of_name(*letter)).collect();
            if !label.is_empty() && !family.labels.contains(&&*label) {
                problems.push(format!("`{name}` has no label `{label}`"));
            }
        }
        let is_rated = expression.contains("rate(") || expression.contains("increase(");
        if family.kind != MetricKind::Gauge && !is_rated {
            problems.push(format!("`{name}` only grows: take its rate"));
        }
    }
    for by in expression.split("by (").skip(1) {
        let by = by.split(')').next().unwrap_or_default();
        let unknown = by.split(", ").filter(|label| !labels.contains(label));
        problems.extend(unknown.map(|label| format!("grouped by `{label}`, which no metric has")));
    }
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            problems.push(format!("`{open}` and `{close}` do not fit"));
        }
    }
    problems
}

fn check(what: &str, expression: &str) {
    assert!(expression.contains("wornpath_"), "{what} queries no metric of the router");
    assert_eq!(problems(expression), Vec::<String>::new(), "{what}: {expression}");
}

#[test]
fn a_wrong_name_label_or_bracket_is_found() {
    assert!(
        problems("sum by (pod) (rate(wornpath_requests_total{status=~\"5..\"}[5m]))").is_empty()
    );
    for (wrong, why) in [
        ("wornpath_podd_health", "no metric `wornpath_podd_health`"),
        ("wornpath_pod_health{state=\"up\"}", "no label `state`"),
        ("sum by (tenant) (wornpath_pod_requests)", "grouped by `tenant`"),
        ("wornpath_requests_total", "only grows"),
        ("rate(wornpath_first_byte_seconds[5m])", "no metric `wornpath_first_byte_seconds`"),
        ("sum(wornpath_pod_requests", "do not fit"),
    ] {
        let found = problems(wrong);
        assert!(found.iter().any(|problem| problem.contains(why)), "{wrong}: {found:?}");
    }
}

#[test]
fn the_grafana_dashboard_queries_only_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has a number of its own");
    let mut queried = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            check(title, expression);
            queried.extend(
                FAMILIES.iter().filter(|family| expression.contains(family.name)).map(|it| it.name),
            );
        }
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{title}");
    }
    assert!(queried.len() > 25, "only {} metrics are shown", queried.len());
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let (metric, label) = query
                .trim_start_matches("label_values(")
                .trim_end_matches(')')
                .split_once(", ")
                .unwrap();
            assert!(family(metric).unwrap().labels.contains(&label), "{query}");
        }
    }
}

#[test]
fn every_alert_queries_existing_metrics_and_names_an_action() {
    let text = read("alerts.yaml");
    let alerts: Vec<_> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 12);
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        assert!(name.starts_with("Wornpath") && names.insert(name), "{name}");
        let line = |key: &str| alert.lines().find_map(|line| line.trim().strip_prefix(key));
        check(name, line("expr: ").unwrap_or_else(|| panic!("{name} has no expression")));
        let severity = line("labels: ").unwrap();
        assert!(
            ["{severity: page}", "{severity: ticket}"].contains(&severity),
            "{name}: {severity}"
        );
        for words in ["summary: \"", "description: \""] {
            assert!(line(words).is_some_and(|words| words.len() > 12), "{name} has no {words}");
        }
    }
}

/// The figures of several routers are never added up: one that is blind would be hidden by the
/// others.
#[test]
fn every_alert_names_one_router() {
    for line in read("alerts.yaml").lines().filter(|line| line.contains("expr: ")) {
        for adding in ["sum", "count", "max", "min", "avg"] {
            assert!(!line.contains(&format!("{adding}(")), "{line}");
        }
        for by in line.split("by (").skip(1) {
            assert!(by.starts_with("instance"), "{line}");
        }
    }
}

#[test]
fn every_documented_failure_raises_an_alert() {
    /// Told by `wornpath_pod_predictions_broken`, whose row is the next.
    const COMPARED_BY_PEOPLE: &str = "is routing by cache on?";
    let alerts = read("alerts.yaml");
    let page = read("../docs/operations.md");
    let (_, watch) = page.split_once("\n## What to watch\n").unwrap();
    let rows: Vec<_> = watch.lines().filter(|line| line.contains("`wornpath_")).collect();
    assert!(rows.len() > 9, "{rows:?}");
    for row in rows.iter().filter(|row| !row.contains(COMPARED_BY_PEOPLE)) {
        let words = row.split('`').filter_map(|word| word.split('{').next());
        let mut names = words.filter(|word| word.starts_with("wornpath_"));
        assert!(names.any(|name| alerts.contains(name)), "nothing is raised for: {row}");
    }
    for state in ["unsure", "partial", "stale", "quarantined"] {
        assert!(watch.contains(state) && alerts.contains(state), "{state}");
    }
}

#[test]
fn latency_queries_exclude_batches() {
    for file in ["alerts.yaml", "grafana.json"] {
        let text = read(file).replace('\\', "");
        let queries: Vec<_> = text.split("wornpath_first_byte_seconds_bucket").skip(1).collect();
        assert!(!queries.is_empty());
        for rest in queries {
            let selector = rest.split('}').next().unwrap();
            assert!(selector.contains("profile!=\"offline\""), "{file}: {selector}");
        }
    }
}

/// Prometheus' own opinion, where its tool is installed: of the rules, and of what raises them.
#[test]
fn prometheus_accepts_every_expression_and_raises_the_expected_alerts() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops");
    fs::create_dir_all(&folder).unwrap();
    let dashboard: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let mut rules = "groups:\n- name: panels\n  rules:\n".to_owned();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    for (number, target) in targets.enumerate() {
        let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
        rules.push_str(&format!(
            "  - record: panel{number}\n    expr: {}\n",
            Value::from(expression)
        ));
    }
    fs::write(folder.join("panels.yaml"), rules).unwrap();
    for file in ["alerts.yaml", "alerts.test.yaml"] {
        fs::write(folder.join(file), read(file)).unwrap();
    }
    for arguments in [
        &["check", "rules", "panels.yaml", "alerts.yaml"][..],
        &["test", "rules", "alerts.test.yaml"],
    ] {
        let mut promtool = std::process::Command::new("promtool");
        match promtool.args(arguments).current_dir(&folder).output() {
            Err(error) => {
                let is_required = std::env::var("WORNPATH_PEERS").is_ok_and(|it| it == "required");
                assert!(!is_required, "promtool: {error}");
                eprintln!("NOT SHOWN: Prometheus' own opinion, because there is no promtool");
            }
            Ok(output) => {
                let printed = [output.stdout, output.stderr].concat();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
            }
        }
    }
}
