//! The fields of expressions have the values they are named for, and bad expressions are refused.

use crate::fleet::{PodFacts, Reservation, Topology};
use crate::plugins::cel::Vocabulary;
use crate::plugins::harness::Harness;
use crate::stage::Stage;

const HASHED: [&str; 2] = ["tokenize", "block_hash"];

/// Two pods: a busy one that holds four of ten blocks, and an idle one with labels.
fn rehearsal() -> Harness {
    let labelled = PodFacts {
        labels: vec![("gpu".into(), "h100".into())],
        topology: Topology { zone: Some("z1".into()), ..Topology::default() },
        kv_tokens: Some(1000),
        ..PodFacts::serving("second", "m")
    };
    let tokens: Vec<u32> = (0..21).collect();
    let mut rehearsal = Harness::with(vec![PodFacts::serving("first", "m"), labelled])
        .prompt(&tokens)
        .holding(0, 4);
    rehearsal.request.output_tokens = Some(9);
    rehearsal.request.tenant = Some("acme".into());
    rehearsal.vitals(0).report(3, 0.25);
    rehearsal
}

fn costs(rehearsal: &Harness, expression: &str) -> Vec<f64> {
    let yaml = format!("expression: {{cost: \"{expression}\"}}");
    rehearsal.play(&HASHED, Stage::Score, &yaml).scores()
}

#[test]
fn figures_of_the_pod_the_request_and_the_fleet_can_be_named() {
    let rehearsal = rehearsal();
    let mut reserved = Reservation::new(rehearsal.vitals(0), 30, 20);
    let _waiting = Reservation::new(rehearsal.vitals(0), 7, 7);
    reserved.first_token();
    let cases = [
        ("pod.requests", [2.0, 0.0]),
        ("pod.decoding", [1.0, 0.0]),
        ("pod.prefill_tokens", [7.0, 0.0]),
        ("pod.decode_tokens", [30.0, 0.0]),
        ("pod.waiting", [3.0, 0.0]),
        ("pod.kv_usage", [0.25, 0.0]),
        ("pod.kv_tokens", [0.0, 1000.0]),
        ("pod.cached_blocks", [4.0, 0.0]),
        ("pod.cached_share", [0.4, 0.0]),
        ("pod.uncached_tokens", [13.0, 21.0]),
        ("request.prompt_tokens", [21.0, 21.0]),
        ("request.block_tokens", [2.0, 2.0]),
        ("request.output_tokens", [9.0, 9.0]),
        ("request.priority", [4.0, 4.0]),
        ("fleet.pods", [2.0, 2.0]),
        ("fleet.least_requests + 10 * fleet.most_requests", [20.0, 20.0]),
        ("fleet.least_prefill_tokens + 10 * fleet.most_prefill_tokens", [70.0, 70.0]),
        ("fleet.most_cached_share", [0.4, 0.4]),
        ("pod.labels.gpu == 'h100' ? 1 : 0", [0.0, 1.0]),
        ("has(pod.zone) && pod.zone in ['z1'] ? 1 : 0", [0.0, 1.0]),
        ("pod.name.startsWith('first') ? 1 : 0", [1.0, 0.0]),
        (
            "request.tenant == 'acme' && request.model == 'm' && !has(request.lora) ? 1 : 0",
            [1.0, 1.0],
        ),
    ];
    for (expression, expected) in cases {
        assert_eq!(costs(&rehearsal, expression), expected, "{expression}");
    }
}

#[test]
fn every_field_is_documented() {
    let doc = super::PLUGIN.parameters[0].doc;
    for field in super::FieldNames::default().known() {
        assert!(doc.contains(&field), "{field}");
    }
}

#[test]
fn attributes_are_read_by_name() {
    let mut rehearsal = rehearsal();
    rehearsal.request.headers = vec![("x-gpu".into(), "h100".into())];
    let prepare = ["attributes: {headers: [gpu=x-gpu]}"];
    let yaml = "expression: {score: 'pod.labels.gpu == request.attributes.gpu ? 1.0 : 0.5'}";
    let scores = rehearsal.play(&prepare, Stage::Score, yaml).scores();
    assert_eq!(scores, [0.5, 1.0]);
}

#[test]
fn placed_tokens_count_what_a_pod_was_sent_to_compute() {
    let rehearsal = rehearsal();
    let yaml = "expression: {cost: pod.placed_tokens}";
    let played = rehearsal.play(&HASHED, Stage::Score, yaml);
    played.chosen(0);
    played.chosen(1);
    played.chosen(1);
    assert_eq!(played.scores(), [13.0, 42.0]);
}

#[test]
fn scores_are_cut_to_a_unit_and_faults_are_the_worst() {
    let rehearsal = rehearsal();
    let scores = |yaml: &str| rehearsal.play(&[], Stage::Score, yaml).scores();
    assert_eq!(scores("expression: {score: '3.0'}"), [1.0, 1.0]);
    assert_eq!(scores("expression: {score: '-0.5'}"), [0.0, 0.0]);
    assert_eq!(scores("expression: {score: '1 / pod.requests'}"), [0.0, 0.0]);
    assert_eq!(scores("expression: {cost: '1 / pod.requests'}"), [f64::INFINITY; 2]);
    for idle in ["1.0 / double(pod.requests)", "-1.0 / double(pod.requests)", "1e308 * 10.0"] {
        assert_eq!(scores(&format!("expression: {{score: '{idle}'}}")), [0.0, 0.0], "{idle}");
        let costs = scores(&format!("expression: {{cost: '{idle}'}}"));
        assert_eq!(costs, [f64::INFINITY; 2], "{idle}");
    }
}

#[test]
fn what_does_not_compile_is_refused_with_line_and_column() {
    let complaint = |yaml| Harness::complaint(Stage::Score, yaml);
    assert_eq!(
        complaint("expression: {score: '1.0 - pod.kv_use'}"),
        "`score` of `expression`: line 1, column 7: there is no field `pod.kv_use`; \
         did you mean `pod.kv_usage`?"
    );
    assert_eq!(
        complaint("expression: {cost: 'pod.requests > 3'}"),
        "`cost` of `expression`: line 1, column 14: the expression is a bool, but a score is a \
         number; choose one with `condition ? 1.0 : 0.0`"
    );
    assert_eq!(complaint("expression"), "`expression`: there is no expression");
    assert_eq!(
        complaint("expression: {score: '1', cost: '1'}"),
        "`cost` of `expression`: a `score` is given as well"
    );
}

#[test]
fn an_infinite_cost_without_weight_says_nothing() {
    let mut bench = crate::testing::TestBench::with_pods(2);
    let _load = Reservation::new(bench.pod(0).vitals(), 1, 1);
    let profile = bench.profile(
        "score:\n  - expression: {cost: '1.0 / double(pod.requests)', weight: 0}\n  \
         - expression: {cost: 'pod.requests'}\npick: max_score\n",
    );
    assert_eq!(bench.chosen(&profile, crate::request::Request::default()), 1, "it is idle");
}
