//! Fields of expressions have the values that their names say, and invalid expressions are refused.

use crate::fleet::{PodFacts, Reservation, Topology};
use crate::plugins::cel::Vocabulary;
use crate::plugins::harness::Harness;
use crate::stage::Stage;

const HASHED: [&str; 2] = ["tokenize", "block_hash"];

/// Two pods: a busy one that holds four of ten blocks, and an idle one with labels.
fn harness() -> Harness {
    let labelled = PodFacts {
        labels: vec![("gpu".into(), "h100".into())],
        topology: Topology { zone: Some("z1".into()), ..Topology::default() },
        kv_tokens: Some(1000),
        ..PodFacts::serving("second", "m")
    };
    let tokens: Vec<u32> = (0..21).collect();
    let mut harness = Harness::with(vec![PodFacts::serving("first", "m"), labelled])
        .prompt(&tokens)
        .holding(0, 4);
    harness.request.output_tokens = Some(9);
    harness.request.tenant = Some("acme".into());
    harness.pod_state(0).report(3, 0.25);
    harness
}

fn costs(harness: &Harness, expression: &str) -> Vec<f64> {
    let yaml = format!("expression: {{cost: \"{expression}\"}}");
    harness.run(&HASHED, Stage::Score, &yaml).scores()
}

#[test]
fn fields_of_the_pod_the_request_and_the_fleet_have_their_values() {
    let harness = harness();
    let mut reserved = Reservation::new(harness.pod_state(0), 30, 20);
    let _pending = Reservation::new(harness.pod_state(0), 7, 7);
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
            "tenant.name == request.tenant && tenant.name == 'acme' && request.model == 'm' && !has(request.lora) ? 1 : 0",
            [1.0, 1.0],
        ),
    ];
    for (expression, expected) in cases {
        assert_eq!(costs(&harness, expression), expected, "{expression}");
    }
}

#[test]
fn the_parameters_documentation_lists_every_field() {
    let doc = super::score::PLUGIN.parameters[0].doc;
    for field in super::vocabulary::FieldNames::default().known() {
        assert!(doc.contains(&field), "{field}");
    }
}

#[test]
fn attributes_are_read_by_name() {
    let mut harness = harness();
    harness.request.headers = vec![("x-gpu".into(), "h100".into())];
    let prepare = ["attributes: {headers: [gpu=x-gpu]}"];
    let yaml = "expression: {score: 'pod.labels.gpu == request.attributes.gpu ? 1.0 : 0.5'}";
    let scores = harness.run(&prepare, Stage::Score, yaml).scores();
    assert_eq!(scores, [0.5, 1.0]);
}

#[test]
fn placed_tokens_sum_the_uncached_tokens_sent_to_a_pod() {
    let harness = harness();
    let yaml = "expression: {cost: pod.placed_tokens}";
    let run = harness.run(&HASHED, Stage::Score, yaml);
    run.chosen(0);
    run.chosen(1);
    run.chosen(1);
    assert_eq!(run.scores(), [13.0, 42.0]);
}

#[test]
fn scores_are_clamped_and_errors_count_as_the_worst() {
    let harness = harness();
    let scores = |yaml: &str| harness.run(&[], Stage::Score, yaml).scores();
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
fn an_expression_that_does_not_compile_is_refused_with_line_and_column() {
    let error = |yaml| Harness::assembly_error(Stage::Score, yaml);
    assert_eq!(
        error("expression: {score: '1.0 - pod.kv_use'}"),
        "`score` of `expression`: line 1, column 7: unknown field `pod.kv_use`; \
         did you mean `pod.kv_usage`?"
    );
    assert_eq!(
        error("expression: {score: 'pod.engine == \"8b-h200\" ? 1.0 : 0.0'}"),
        "`score` of `expression`: line 1, column 1: unknown field `pod.engine`; \
         it is called `pod.speed` now"
    );
    assert_eq!(
        error("expression: {cost: 'pod.requests > 3'}"),
        "`cost` of `expression`: line 1, column 14: the expression has type bool, but a score must be \
         a number; write `condition ? 1.0 : 0.0`"
    );
    assert_eq!(error("expression"), "`expression`: no expression is set");
    assert_eq!(
        error("expression: {score: '1', cost: '1'}"),
        "`cost` of `expression`: both `score` and `cost` are set"
    );
}

#[test]
fn an_infinite_cost_with_weight_zero_does_not_count() {
    let mut bench = crate::testing::TestBench::with_pods(2);
    let _load = Reservation::new(bench.pod(0).state(), 1, 1);
    let profile = bench.profile(
        "score:\n  - expression: {cost: '1.0 / double(pod.requests)', weight: 0}\n  \
         - expression: {cost: 'pod.requests'}\npick: max_score\n",
    );
    assert_eq!(bench.chosen(&profile, crate::request::Request::default()), 1, "it is idle");
}

const RULE: &str = "tenant.name == \"premium\" ? pod.labels.gpu == \"h100\" : true";

fn rule(expression: &str) -> String {
    format!("expression: {{keep: '{expression}'}}")
}

#[test]
fn a_rule_keeps_the_pods_for_which_it_is_true() {
    let mut harness = harness();
    let kept =
        |harness: &Harness, text: &str| harness.run(&HASHED, Stage::Filter, &rule(text)).kept();
    assert_eq!(kept(&harness, RULE), [0, 1], "another tenant may go anywhere");
    assert_eq!(kept(&harness, "pod.cached_share < 0.3"), [1]);
    assert_eq!(kept(&harness, "request.prompt_tokens > 1000"), [0usize; 0]);
    harness.request.tenant = Some("premium".into());
    assert_eq!(kept(&harness, RULE), [1]);
    harness.request.tenant = None;
    assert_eq!(kept(&harness, RULE), [0, 1], "a request without a tenant has an empty name");
}

#[test]
fn a_rule_that_cannot_be_computed_drops_the_pod() {
    let harness = harness();
    let _load = Reservation::new(harness.pod_state(0), 1, 1);
    for text in ["8 / pod.requests >= 8", "!(8 / pod.requests < 8)"] {
        assert_eq!(harness.run(&[], Stage::Filter, &rule(text)).kept(), [0], "{text}");
    }
}

#[test]
fn a_rejection_names_the_rule_by_its_name_or_else_by_its_expression() {
    let harness = harness();
    let run = harness.run(&[], Stage::Filter, &rule(RULE));
    assert_eq!(run.rejection().reason, format!("no pod satisfies the rule `{RULE}`"));
    assert_eq!(run.why(0), format!("the rule `{RULE}` is not true"));
    let named = format!("expression: {{keep: '{RULE}', name: premium-gpu}}");
    let run = harness.run(&[], Stage::Filter, &named);
    assert_eq!(run.rejection().reason, "no pod satisfies the rule `premium-gpu`");
    assert_eq!(run.rejection().status, 503);
}

#[test]
fn a_rule_that_is_no_rule_is_refused_before_the_first_request() {
    let error = |text: &str| Harness::assembly_error(Stage::Filter, &rule(text));
    assert_eq!(
        error("pod.kv_usage"),
        "`keep` of `expression`: line 1, column 1: the expression has type double, but a rule must \
         be a bool; write a comparison such as `pod.requests < 8`"
    );
    assert_eq!(
        error("tenant.nam == \"premium\""),
        "`keep` of `expression`: line 1, column 1: unknown field `tenant.nam`; \
         did you mean `tenant.name`?"
    );
    assert_eq!(
        error("pod.placed_tokens < 8"),
        "`keep` of `expression`: `pod.placed_tokens` counts what a scorer has sent; \
         a filter sends nothing"
    );
}
