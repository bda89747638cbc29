//! Finds prompts that diverge early for a reason that their author can fix.
//!
//! A timestamp in the first line makes the whole prompt behind it unique to a cache. The linter
//! removes fields that vary without need (times, ids, numbers, the order of keys in JSON), one kind
//! after the other, and measures how much more the prompts would share. A finding has an example,
//! the byte where it diverges, and the sharing gained by moving the field behind the common part.
//!
//! The linter does not understand the prompts: the author decides whether a field can be moved.

mod fields;

pub use fields::FieldKind;

/// A smaller gain in sharing is not reported.
const MIN_GAIN: f64 = 0.05;

/// Bytes shown on each side of the difference.
const SHOWN: usize = 40;

/// A field that keeps prompts from sharing.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// The kind of field that varies.
    pub kind: FieldKind,
    /// Two of the prompts, by their indices.
    pub example: (usize, usize),
    /// The first byte in which the two differ.
    pub byte: usize,
    /// The text around that byte in each.
    pub texts: (String, String),
    /// The fraction of bytes that prompts share with another prompt, with all earlier findings
    /// fixed.
    pub shared_now: f64,
    /// The same fraction if this finding were fixed too.
    pub shared_then: f64,
}

/// Lints prompts, comparing chunks of `chunk` bytes as a cache does.
#[must_use]
pub fn lint(prompts: &[&str], chunk: usize) -> Vec<Finding> {
    let total: usize = prompts.iter().map(|prompt| prompt.len()).sum();
    let mut texts: Vec<String> = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
    let mut now = shared_bytes(&sorted(&texts), &texts, chunk) as f64 / total.max(1) as f64;
    let mut findings = Vec::new();
    for kind in FieldKind::ALL {
        let fixed: Vec<String> = texts.iter().map(|text| kind.remove_from(text)).collect();
        let order = sorted(&fixed);
        let then = shared_bytes(&order, &fixed, chunk) as f64 / total.max(1) as f64;
        if then - now < MIN_GAIN {
            continue;
        }
        if let Some(Example { prompts: example, byte }) = best_example(&order, &fixed, prompts) {
            let text = |index: usize| excerpt(prompts[index], byte);
            findings.push(Finding {
                kind,
                example,
                byte,
                texts: (text(example.0), text(example.1)),
                shared_now: now,
                shared_then: then,
            });
        }
        texts = fixed;
        now = then;
    }
    findings
}

fn sorted(texts: &[String]) -> Vec<usize> {
    let mut order: Vec<_> = (0..texts.len()).collect();
    order.sort_unstable_by(|one, other| texts[*one].cmp(&texts[*other]).then(one.cmp(other)));
    order
}

fn shared_bytes(order: &[usize], texts: &[String], chunk: usize) -> usize {
    let pairs = order.windows(2);
    pairs.map(|pair| common(&texts[pair[0]], &texts[pair[1]]) / chunk * chunk).sum()
}

fn common(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
}

struct Example {
    prompts: (usize, usize),
    byte: usize,
}

/// The neighbours that gain the most, and the first byte in which they differ now.
fn best_example(order: &[usize], fixed: &[String], prompts: &[&str]) -> Option<Example> {
    let gain = |pair: &[usize]| {
        let before = common(prompts[pair[0]], prompts[pair[1]]);
        common(&fixed[pair[0]], &fixed[pair[1]]).saturating_sub(before)
    };
    let best = order.windows(2).max_by_key(|pair| gain(pair)).filter(|pair| gain(pair) > 0)?;
    let one = best[0].min(best[1]);
    let other = best[0].max(best[1]);
    Some(Example { prompts: (one, other), byte: common(prompts[one], prompts[other]) })
}

/// The line around a byte, cut to a readable length. The byte may be inside a character.
fn excerpt(text: &str, byte: usize) -> String {
    let (before, behind) = text.split_at(text.floor_char_boundary(byte));
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    let start = before.floor_char_boundary(before.len().saturating_sub(SHOWN)).max(line);
    let end = behind.find('\n').unwrap_or(behind.len()).min(behind.floor_char_boundary(SHOWN));
    format!("{}{}", &before[start..], &behind[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(line: impl Fn(usize) -> String) -> Vec<String> {
        (0..50).map(line).collect()
    }

    fn findings(texts: &[String]) -> Vec<Finding> {
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        lint(&texts, 16)
    }

    #[test]
    fn a_timestamp_before_the_instructions_is_found_with_its_byte() {
        let rules = "Answer in one word. ".repeat(20);
        let texts =
            prompts(|n| format!("Now: 2026-03-0{}T10:00:{:02}Z\n{rules}Item {n}", n % 9 + 1, n));
        let all = findings(&texts);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].kind, FieldKind::Time);
        assert!((5..25).contains(&all[0].byte), "{}", all[0].byte);
        assert!(all[0].shared_now < 0.2 && all[0].shared_then > 0.8, "{:?}", all[0]);
        assert!(all[0].texts.0.starts_with("Now: 2026-03-0"), "{}", all[0].texts.0);
    }

    #[test]
    fn identifiers_and_key_order_are_found() {
        let rules = "Be brief and polite to every customer. ".repeat(12);
        let ids = prompts(|n| format!("Ticket req_{:08x}7f: {rules}", n * 77_777));
        assert_eq!(findings(&ids)[0].kind, FieldKind::Identifier);
        let keys = prompts(|n| match n % 2 {
            0 => format!("{{\"rules\": \"{rules}\", \"language\": \"en\"}} {n}"),
            _ => format!("{{\"language\": \"en\", \"rules\": \"{rules}\"}} {n}"),
        });
        // Prompts of one kind share with each other; the two kinds share nothing.
        let few: Vec<_> = keys.into_iter().take(2).collect();
        assert_eq!(findings(&few)[0].kind, FieldKind::KeyOrder);
    }

    #[test]
    fn an_excerpt_never_splits_a_character() {
        assert_eq!(excerpt("naïve\nText ä", 3), "naïve");
        assert_eq!(excerpt("ab", 9), "ab");
    }

    #[test]
    fn prompts_that_share_all_they_can_have_no_finding() {
        let rules = "Summarize the text. ".repeat(20);
        assert!(findings(&prompts(|n| format!("{rules}Text {n}"))).is_empty());
        assert!(findings(&prompts(|n| format!("{} unrelated {n}", n * 7919))).is_empty());
        assert!(lint(&[], 16).is_empty());
    }
}
