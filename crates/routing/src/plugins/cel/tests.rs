//! Expressions mean what CEL defines, and invalid ones are refused with line and column.

use super::parse::CelProblem;
use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Field {
    Requests,
    Usage,
    Draining,
    Zone,
    Rack,
}

/// Three equal candidates, whose fields vary (columns) or do not (single numbers).
pub(super) struct Pod(pub(super) Varying);

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Varying {
    Yes,
    No,
}

impl Vocabulary for Pod {
    type Field = Field;

    fn resolve(&self, path: &[&str]) -> Option<(Field, Type)> {
        match path {
            ["pod", "requests"] => Some((Field::Requests, Type::Int)),
            ["pod", "kv_usage"] => Some((Field::Usage, Type::Double)),
            ["pod", "draining"] => Some((Field::Draining, Type::Bool)),
            ["pod", "labels", "zone"] => Some((Field::Zone, Type::String)),
            ["pod", "labels", "rack"] => Some((Field::Rack, Type::String)),
            _ => None,
        }
    }

    fn known(&self) -> Vec<String> {
        ["pod.requests", "pod.kv_usage", "pod.draining"].map(String::from).to_vec()
    }
}

impl CelBatch<Field> for Pod {
    fn len(&self) -> usize {
        3
    }
    fn varies(&self, field: Field) -> bool {
        self.0 == Varying::Yes && field != Field::Rack
    }
    fn fill(&self, field: Field, column: &mut [f64]) {
        column.fill(match field {
            Field::Requests => 7.0,
            Field::Usage => 0.25,
            _ => 1.0,
        });
    }
    fn text(&self, field: Field, _: usize) -> Option<&str> {
        (field == Field::Zone).then_some("eu-west")
    }
}

/// The value, which must be the same for columns and for single numbers. None for an error.
fn value(text: &str) -> Option<f64> {
    let program =
        compile_number(text, &Pod(Varying::No)).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut values = [[5.0; 3]; 2];
    program.evaluate(&Pod(Varying::No), &mut values[0]);
    program.evaluate(&Pod(Varying::Yes), &mut values[1]);
    let first = values[0][0];
    let same = |value: &f64| *value == first || value.is_nan() && first.is_nan();
    assert!(values.as_flattened().iter().all(same), "{text}: {values:?}");
    (!first.is_nan()).then_some(first)
}

fn holds(text: &str) -> Option<bool> {
    value(&format!("({text}) ? 1 : 0")).map(|value| value == 1.0)
}

#[test]
fn arithmetic_follows_cel() {
    let cases = [
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("10 - 3 - 2", 5.0),
        ("7 / 2", 3.0),
        ("-7 / 2", -3.0),
        ("-7 % 2", -1.0),
        ("7.0 / 2.0", 3.5),
        ("7 / 2.0", 3.5),
        ("--7", 7.0),
        ("-pod.requests", -7.0),
        ("-9007199254740991", -9_007_199_254_740_991.0),
        ("9007199254740991 / 9007199254740990", 1.0),
        ("1e3 + 2.5E-1", 1000.25),
        ("min(pod.requests, 3) + max(0.5, pod.kv_usage)", 3.5),
        ("int(2.9) + int(-2.9)", 0.0),
        ("double(3) / 2.0", 1.5),
        ("'añb'.size()", 3.0),
        ("true ? 1 : false ? 2 : 3", 1.0),
        ("false ? 1 : false ? 2 : 3", 3.0),
        ("pod.labels.zone.size() + pod.labels.rack.size()", 7.0),
        ("pod.draining ? pod.requests : pod.kv_usage", 7.0),
    ];
    for (text, expected) in cases {
        assert_eq!(value(text), Some(expected), "{text}");
    }
}

#[test]
fn comparison_and_logic_follow_cel() {
    let cases = [
        ("1 < 2 && 2 <= 2 && 3 > 2.5 && 2 >= 2", true),
        ("'a' < 'b' && 'a' != 'b'", true),
        ("true == !false", true),
        ("1 == 1.0", true),
        ("false && false || true", true),
        ("!pod.draining || pod.kv_usage > 0.9", false),
        ("pod.requests in [1, 7]", true),
        ("pod.requests in [1, 7.5]", false),
        ("pod.kv_usage in [0.25]", true),
        ("pod.requests in []", false),
        ("pod.labels.zone in ['eu-west', \"us\"]", true),
        ("pod.labels.zone.startsWith('eu') && pod.labels.zone.endsWith('west')", true),
        ("pod.labels.zone.contains('u-w')", true),
        ("has(pod.labels.zone) && !has(pod.labels.rack) && pod.labels.rack == ''", true),
        ("has(pod.requests)", true),
        ("'it\\'s\\n' == \"it's\\n\"", true),
    ];
    for (text, expected) in cases {
        assert_eq!(holds(text), Some(expected), "{text}");
    }
}

#[test]
fn errors_propagate_unless_the_other_side_decides() {
    let errors = [
        "1 / (pod.requests - 7)",
        "1 % 0",
        "9007199254740991 + 1",
        "-9007199254740990 - pod.requests",
        "int(1e300)",
        "0.0 / 0.0",
        "min(0.0 / 0.0, 1.0)",
        "max(1.0, 0.0 / 0.0)",
        "1 / 0 == 1 && true ? 1 : 0",
        "1 / 0 == 1 || false ? 1 : 0",
        "!(1 / 0 == 1) ? 1 : 0",
        "1 / 0 in [1, 2] ? 1 : 0",
        "pod.draining ? 1 / 0 : 1",
    ];
    for text in errors {
        assert_eq!(value(text), None, "{text}");
    }
    assert_eq!(value("1.0 / 0.0"), Some(f64::INFINITY));
    for zero in ["-(pod.requests - 7)", "0 * -pod.requests", "-3 / pod.requests", "-7 % 7"] {
        let inverse = format!("1.0 / ({zero})");
        assert_eq!(value(&inverse), Some(f64::INFINITY), "ints have no -0: {zero}");
    }
    assert_eq!(holds("1 / 0 == 1 && false"), Some(false));
    assert_eq!(holds("true || 1 / 0 == 1"), Some(true));
    assert_eq!(
        value("pod.draining ? 1 : 1 / 0"),
        Some(1.0),
        "the branch that is not chosen does not count"
    );
}

#[test]
fn invalid_expressions_are_refused_with_line_and_column() {
    let cases = [
        ("", "line 1, column 1: expected a value, found end of input"),
        ("1 +", "line 1, column 4: expected a value, found end of input"),
        ("1 2", "line 1, column 3: expected an operator or end of input, found `2`"),
        ("(1", "line 1, column 3: expected ), found end of input"),
        ("1 = 2", "line 1, column 3: expected an operator or value, found `=`"),
        ("'abc", "line 1, column 1: unterminated string; close it with '"),
        ("'a\\q'", "line 1, column 3: unknown escape `\\q`; use one of \\\\ \\\" \\' \\n \\t"),
        (
            "99999999999999999999",
            "line 1, column 1: number 99999999999999999999 is out of range; ints have 53 bits and doubles are finite",
        ),
        (
            "1.0 +\n  pod.request",
            "line 2, column 3: unknown field `pod.request`; did you mean `pod.requests`?",
        ),
        (
            "queue",
            "line 1, column 1: unknown field `queue`; available: pod.requests, pod.kv_usage, pod.draining",
        ),
        (
            "pod.requests + pod.labels.zone",
            "line 1, column 14: `+` cannot take int and string; it takes operands of one type",
        ),
        ("'a' + 'b'", "line 1, column 5: `+` cannot take string; it takes two numbers"),
        ("1.5 % 2", "line 1, column 5: `%` cannot take double; it takes two ints"),
        ("!1 ? 1 : 2", "line 1, column 2: `!` cannot take int; it takes a bool"),
        ("1 ? 1 : 2", "line 1, column 1: `? :` cannot take int; it takes a bool"),
        (
            "pod.draining",
            "line 1, column 1: the expression has type bool, but a score must be a number; write `condition ? 1.0 : 0.0`",
        ),
        (
            "true ? 'a' : 'b'",
            "line 1, column 6: `? :` cannot take string; it takes numbers or bools to choose from",
        ),
        ("min(1)", "line 1, column 1: `min` takes two numbers"),
        ("has(1)", "line 1, column 1: `has` takes one field"),
        ("pod.requests.size()", "line 1, column 14: `size` takes a string before the dot"),
        (
            "pod.requests in ['a']",
            "line 1, column 18: a list is allowed only after `in`, with literals of one type",
        ),
        ("[1]", "line 1, column 1: a list is allowed only after `in`, with literals of one type"),
    ];
    for (text, expected) in cases {
        let error = compile_number(text, &Pod(Varying::No)).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
    let error = compile_number("sqrt(2.0)", &Pod(Varying::No)).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("line 1, column 1: unknown function `sqrt`; available: min("));
}

#[test]
fn deep_nesting_and_long_chains_are_refused_without_stack_overflow() {
    for text in ["(".repeat(4000), "!".repeat(4000), "-".repeat(4000), "[".repeat(4000)] {
        let error = compile_number(&text, &Pod(Varying::No)).map(|_| ()).unwrap_err();
        assert_eq!(error.problem, CelProblem::TooDeep, "{}", &text[..1]);
    }
    let long = compile_number(&format!("1{}", "+1".repeat(3000)), &Pod(Varying::No))
        .map(|_| ())
        .unwrap_err();
    assert_eq!((long.problem, long.column), (CelProblem::TooLong, 514));
    assert_eq!(value(&format!("1{}", "+1".repeat(256))), Some(257.0));
}

proptest::proptest! {
    #[test]
    fn the_compiler_does_not_panic_on_any_text(text in "[-a-z0-9 .()\\[\\]'\"\\\\+*/%!?:<>=&|,\ny]{0,60}") {
        let _ = compile_number(&text, &Pod(Varying::No));
    }
}
