//! Numbers in a client's JSON reach the prompt as engines render them: by Python's `json.loads`,
//! and then `json.dumps` or `str`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use bytes::Bytes;
use wornpath_blocks::chat::{ChatTemplate, Conversation, TokenizerConfig};
use wornpath_gateway::Api;
use wornpath_gateway::fuzzing::client_body;
use wornpath_routing::Prompt;

const NUMBERS: usize = 100_000;
/// Numbers of one body.
const LIST: usize = 250;

/// Prints how Python renders the number in each line.
const PYTHON: &str = "\
import json, sys
for line in sys.stdin:
    value = json.loads(line)
    print(json.dumps(value), str(value), str([value]))
";

/// Renders the same for lists of numbers, in every field of a conversation that may have numbers.
const TEMPLATE: &str = "\
{%- macro show(numbers) %}{% for n in numbers %}{{ n | tojson }} {{ n }} {{ [n] | string }}\n{% endfor %}{% endmacro -%}
{%- for tool in tools or [] %}{{ show(tool.function.parameters.enum) }}{% endfor -%}
{%- for m in messages %}{% for call in m.tool_calls or [] %}{{ show(call.function.arguments.n) }}{% endfor %}{% endfor -%}
{%- if numbers %}{{ show(numbers) }}{% endif -%}";

/// A field of a body that may hold a list of numbers.
struct NumberField {
    name: &'static str,
    path: &'static str,
    /// The body, with `LIST` in place of the list, or `TEXT` if the list is inside a JSON string.
    body: &'static str,
}

const FIELDS: [NumberField; 7] = [
    NumberField {
        name: "arguments of a tool call",
        path: "/v1/chat/completions",
        body: r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"n\": TEXT}"}}]}]}"#,
    },
    NumberField {
        name: "parameters of a tool",
        path: "/v1/chat/completions",
        body: r#"{"messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"enum":LIST}}}]}"#,
    },
    NumberField {
        name: "chat_template_kwargs",
        path: "/v1/chat/completions",
        body: r#"{"messages":[],"chat_template_kwargs":{"numbers":LIST}}"#,
    },
    NumberField {
        name: "arguments that are an object",
        path: "/v1/chat/completions",
        body: r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"n":LIST}}}]}]}"#,
    },
    NumberField {
        name: "input of a tool use",
        path: "/v1/messages",
        body: r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"n":LIST}}]}]}"#,
    },
    NumberField {
        name: "schema of an Anthropic tool",
        path: "/v1/messages",
        body: r#"{"messages":[],"tools":[{"name":"f","input_schema":{"enum":LIST}}]}"#,
    },
    NumberField {
        name: "arguments of a function call",
        path: "/v1/responses",
        body: r#"{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{\"n\": TEXT}"}]}"#,
    },
];

impl NumberField {
    /// Whether engines parse the field by a second `json.loads`, which accepts `NaN` too; in the
    /// body itself, `NaN` is not JSON.
    fn is_text(&self) -> bool {
        self.body.contains("TEXT")
    }

    /// A rendered line for each number; no lines if the body is refused.
    fn rendered(&self, template: &ChatTemplate, numbers: &[String]) -> Vec<String> {
        let list = format!("[{}]", numbers.join(", "));
        let body = self.body.replace("LIST", &list).replace("TEXT", &list);
        let Some((_, request)) = client_body(Api::at(self.path), &Bytes::from(body)) else {
            return Vec::new();
        };
        let Prompt::Chat { messages, tools, kwargs } = request.prompt else {
            panic!("{} is not a chat", self.name)
        };
        let conversation = Conversation {
            tools: tools.as_deref(),
            kwargs: kwargs.as_ref(),
            ..Conversation::new(&messages)
        };
        let text = template.render(&conversation).unwrap().text;
        text.lines().map(str::to_owned).collect()
    }
}

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    fn pick<'a>(&mut self, among: &[&'a str]) -> &'a str {
        among[self.below(among.len() as u64) as usize]
    }

    /// Digits of which the first is not zero.
    fn digits(&mut self, count: u64) -> String {
        let digit = |at, random: &mut Self| match at {
            0 => 1 + random.below(9),
            _ => random.below(10),
        };
        (0..count.max(1)).map(|at| digit(at, self).to_string()).collect()
    }

    fn finite(&mut self) -> f64 {
        loop {
            let float = f64::from_bits(self.bits());
            if float.is_finite() {
                return float;
            }
        }
    }

    /// Any float, as programs write it.
    fn double(&mut self) -> String {
        let float = self.finite();
        match self.below(3) {
            0 => format!("{float:?}"),
            1 => format!("{float:.16e}"),
            _ => format!("{float:.17e}"),
        }
    }

    /// Prices, coordinates, thresholds: what tools are called with.
    fn plain(&mut self) -> String {
        let sign = self.pick(&["", "-"]);
        let whole = self.below(100_000);
        let count = 1 + self.below(19);
        format!("{sign}{whole}.{}", self.digits(count))
    }

    /// Any number that JSON's grammar allows.
    fn decimal(&mut self) -> String {
        let sign = self.pick(&["", "-"]);
        let before = self.below(22);
        let after = self.below(25);
        let mut text = sign.to_owned();
        text += &if before == 0 { "0".to_owned() } else { self.digits(before) };
        if after > 0 {
            text += &format!(".{}{}", "0".repeat(self.below(6) as usize), self.digits(after));
        }
        if self.below(2) == 0 {
            let letter = self.pick(&["e", "E"]);
            let sign = self.pick(&["", "+", "-"]);
            text += &format!("{letter}{sign}{}{}", self.pick(&["", "0"]), self.below(330));
        }
        text
    }

    /// Halfway between two floats, or very close to it: parsers that round twice get these wrong.
    fn tie(&mut self) -> String {
        let odd = (1 << 53 | self.below(1 << 53)) | 1;
        let whole = u128::from(odd) << self.below(60);
        let beside = self.pick(&[".0", ".0000000000000000000001", "e0", ".5"]);
        match self.below(3) {
            0 => format!("{whole}{beside}"),
            1 => format!("{}.9999999999999999999999", whole - 1),
            _ => {
                // The first digits of the exact value of a float.
                let exact = format!("{:.60e}", self.finite());
                let (digits, exponent) = exact.split_once('e').unwrap();
                let kept = 18 + self.below(40) as usize;
                format!("{}e{exponent}", &digits[..kept.min(digits.len())])
            }
        }
    }

    /// Powers of two and ten and their neighbours: where the notation or the spacing of floats
    /// changes.
    fn round(&mut self) -> String {
        let power = match self.below(2) {
            0 => 2f64.powi(self.below(2098) as i32 - 1074),
            _ => format!("1e{}", self.below(632) as i32 - 323).parse().unwrap(),
        };
        let float = match self.below(3) {
            0 => power,
            1 => power.next_up(),
            _ => power.next_down(),
        };
        format!("{:?}", if float.is_finite() { float } else { f64::MAX })
    }

    fn integer(&mut self) -> String {
        const EDGES: [&str; 12] = [
            "0",
            "-0",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "-9223372036854775809",
            "18446744073709551615",
            "18446744073709551616",
            "170141183460469231731687303715884105727",
            "170141183460469231731687303715884105728",
            "-170141183460469231731687303715884105729",
            "340282366920938463463374607431768211456",
        ];
        let sign = self.pick(&["", "-"]);
        let most = [18, 22, 45, 400][self.below(4) as usize];
        let count = 1 + self.below(most);
        match self.below(8) {
            0 => self.pick(&EDGES).to_owned(),
            _ => format!("{sign}{}", self.digits(count)),
        }
    }

    /// Close to or beyond the range of a float.
    fn extreme(&mut self) -> String {
        let sign = self.pick(&["", "-"]);
        match self.below(6) {
            0 => format!("{sign}{}e{}", self.digits(3), 290 + self.below(200)),
            1 => format!("{sign}{}e-{}", self.digits(3), 290 + self.below(200)),
            2 => format!("{sign}0.{}1e{}", "0".repeat(400), 380 + self.below(400)),
            3 => format!("{sign}{}.5", self.digits(305 + 6)),
            4 => format!("{sign}1.797693134862315{}e308", 70 + self.below(30)),
            _ => {
                format!("{sign}{}", self.pick(&["1e400", "0.0", "0e999", "1e99999999999999999999"]))
            }
        }
    }

    /// Literals that Python accepts and JSON does not have.
    fn literal(&mut self) -> String {
        match self.below(2) {
            0 => self.pick(&["NaN", "Infinity", "-Infinity"]).to_owned(),
            _ => self.double(),
        }
    }
}

type Generator = fn(&mut Random) -> String;

/// The kinds of numbers; the last only for fields with [`NumberField::is_text`]. All numbers of a
/// body are of one kind, because some kinds change how the body is parsed.
const KINDS: [Generator; 8] = [
    Random::plain,
    Random::double,
    Random::decimal,
    Random::tie,
    Random::round,
    Random::integer,
    Random::extreme,
    Random::literal,
];

fn rendered_by_python(numbers: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut python = Command::new("python3")
        .args(["-c", PYTHON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed: it renders numbers as engines do");
    let mut stdin = python.stdin.take().unwrap();
    let lines: String =
        numbers.iter().flatten().flat_map(|number| [number.as_str(), "\n"]).collect();
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
        python.wait_with_output().unwrap()
    });
    assert!(output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    let mut lines = output.lines().map(str::to_owned);
    let lists = numbers.iter().map(|list| lines.by_ref().take(list.len()).collect()).collect();
    assert_eq!(lines.next(), None);
    lists
}

#[test]
fn a_hundred_thousand_numbers_are_rendered_as_python_renders_them() {
    const SEED: u64 = 7;
    let mut random = Random(SEED);
    let mut list = |at: usize| -> Vec<String> {
        (0..LIST).map(|_| KINDS[at % KINDS.len()](&mut random)).collect()
    };
    let lists: Vec<_> = (0..NUMBERS / LIST).map(&mut list).collect();
    let expected = rendered_by_python(&lists);
    let template =
        ChatTemplate::from_jinja("numbers.jinja", TEMPLATE, &TokenizerConfig::empty()).unwrap();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (at, (numbers, expected)) in lists.iter().zip(&expected).enumerate() {
        let is_literal = at % KINDS.len() == KINDS.len() - 1;
        // The first two fields get all numbers, the others some of each kind.
        let fields = if at < 4 * KINDS.len() { &FIELDS[..] } else { &FIELDS[..2] };
        for field in fields.iter().filter(|field| field.is_text() || !is_literal) {
            let rendered = field.rendered(&template, numbers);
            for (at, (number, expected)) in numbers.iter().zip(expected).enumerate() {
                compared += 1;
                let ours = rendered.get(at).map_or("refused", String::as_str);
                if ours != expected {
                    wrong.push(format!("{}: {number}: {ours}, Python: {expected}", field.name));
                }
            }
            assert!(rendered.len() <= numbers.len(), "{}: {rendered:?}", field.name);
        }
    }
    let shown: Vec<_> = wrong.iter().step_by(wrong.len() / 20 + 1).map(String::as_str).collect();
    let shown = shown.join("\n");
    assert!(wrong.is_empty(), "seed {SEED}: {} of {compared} differ:\n{shown}", wrong.len());
    assert!(compared >= NUMBERS);
}
