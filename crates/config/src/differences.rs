//! What differs between two configurations, key by key, for the log and the dashboard.
//!
//! An entry of a list is called by its `name`, or by its address if it has none, so that an entry
//! that is put before others does not make all of them differ: `pods.a.url`, not `pods[3].url`. An
//! entry or a section that was added or removed is one difference. Where a value comes from does not
//! count, and a default that is written down is none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};

use crate::effective::{EffectiveValue, ValueSource};

/// Characters of a value that are told: enough for an address.
const VALUE_CHARS: usize = 64;
const NONE: &str = "none";

/// A key, or a file, that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The key with those of its sections, such as `pods.a.url`, or the path of the file.
    pub key: String,
    /// What became of it.
    pub change: ValueChange,
}

/// What became of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueChange {
    /// Its value; none where it is absent.
    Value {
        /// The value before.
        before: Option<String>,
        /// The value now.
        after: Option<String>,
    },
    /// A value that is not shown.
    Secret,
    /// The content of a file that the configuration names.
    Content,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = shortened(&self.key);
        match &self.change {
            ValueChange::Value { before, after } => {
                let shown = |value: &Option<String>| {
                    value.as_deref().map_or_else(|| NONE.to_owned(), shortened)
                };
                write!(f, "{key}: {} → {}", shown(before), shown(after))
            }
            ValueChange::Secret => write!(f, "{key}: changed (not shown)"),
            ValueChange::Content => write!(f, "{key}: content changed"),
        }
    }
}

/// The differences in one line of at most `limit` characters and the count of those left out.
#[must_use]
pub fn summary(differences: &[Difference], limit: usize) -> String {
    let mut text = String::new();
    for (at, difference) in differences.iter().enumerate() {
        let next = difference.to_string();
        let separator = if at == 0 { "" } else { "; " };
        if at > 0 && text.chars().count() + separator.len() + next.chars().count() > limit {
            // Writing to a string cannot fail.
            let _ = write!(text, "; and {} more", differences.len() - at);
            break;
        }
        text.push_str(separator);
        text.push_str(&next);
    }
    text
}

/// One line of at most [`VALUE_CHARS`] characters.
fn shortened(value: &str) -> String {
    let mut chars = value.chars().map(|it| if it.is_control() { ' ' } else { it });
    let mut short: String = chars.by_ref().take(VALUE_CHARS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

/// The keys whose values differ, in the order of the newer configuration; removed ones follow. A
/// section or entry that only one of them has is one difference.
pub(crate) fn differences(old: &[EffectiveValue], new: &[EffectiveValue]) -> Vec<Difference> {
    let old = NamedValues::of(old);
    let new = NamedValues::of(new);
    let mut found = Vec::new();
    let mut told = BTreeSet::new();
    for key in &new.order {
        let value = &new.values[key];
        match old.values.get(key) {
            Some(known) if known.is_same(value) => {}
            Some(known) => found.push(Difference { key: joined(key), change: known.to(value) }),
            None => {
                let Some((key, after)) = new.missing_in(&old, key, &mut told) else { continue };
                let change = ValueChange::Value { before: None, after: Some(after) };
                found.push(Difference { key, change });
            }
        }
    }
    for key in old.order.iter().filter(|key| !new.values.contains_key(*key)) {
        let Some((key, before)) = old.missing_in(&new, key, &mut told) else { continue };
        let change = ValueChange::Value { before: Some(before), after: None };
        found.push(Difference { key, change });
    }
    found
}

/// A key by its parts, each the name of a section, of an entry, or of the key itself.
type KeyParts = Vec<String>;

/// The values of a configuration by keys that do not depend on the order of lists.
#[derive(Default)]
struct NamedValues {
    values: HashMap<KeyParts, NamedValue>,
    order: Vec<KeyParts>,
    /// The sections and entries that have any value.
    sections: BTreeSet<KeyParts>,
}

struct NamedValue {
    text: String,
    /// Of the values that are not shown.
    fingerprints: Vec<u64>,
    is_default: bool,
}

impl NamedValue {
    fn is_same(&self, other: &Self) -> bool {
        self.text == other.text && self.fingerprints == other.fingerprints
    }

    fn to(&self, new: &Self) -> ValueChange {
        if self.text == new.text {
            return ValueChange::Secret;
        }
        ValueChange::Value { before: Some(self.text.clone()), after: Some(new.text.clone()) }
    }
}

impl NamedValues {
    fn of(values: &[EffectiveValue]) -> Self {
        let names = entry_names(values);
        let mut all = Self::default();
        for value in values {
            let key = parts(&value.key, &names);
            all.sections.extend((1..key.len()).map(|length| key[..length].to_vec()));
            if let Some(known) = all.values.get_mut(&key) {
                // A list of scalars is one value.
                known.text.push_str(", ");
                known.text.push_str(&value.value);
                known.fingerprints.extend(value.fingerprint());
                continue;
            }
            all.order.push(key.clone());
            let fingerprints = value.fingerprint().into_iter().collect();
            let is_default = value.source == ValueSource::Default;
            all.values
                .insert(key, NamedValue { text: value.value.clone(), fingerprints, is_default });
        }
        all
    }

    /// A key that `other` lacks, or the outermost section of it that `other` lacks, with its value;
    /// none if it is a default or was told already.
    fn missing_in(
        &self,
        other: &Self,
        key: &KeyParts,
        told: &mut BTreeSet<KeyParts>,
    ) -> Option<(String, String)> {
        if self.values[key].is_default {
            return None;
        }
        let mut sections = (1..key.len()).map(|length| &key[..length]);
        let Some(section) = sections.find(|section| !other.sections.contains(*section)) else {
            return Some((joined(key), self.values[key].text.clone()));
        };
        told.insert(section.to_vec()).then(|| (joined(section), self.content(section)))
    }

    /// The values of a section or an entry in short.
    fn content(&self, section: &[String]) -> String {
        let inner = |key: &&KeyParts| key.starts_with(section) && !self.values[*key].is_default;
        let keys = self.order.iter().filter(inner);
        let pairs = keys.map(|key| (joined(&key[section.len()..]), &self.values[key].text));
        // The entry is called by its name.
        let pairs = pairs.filter(|(key, _)| key != "name");
        let pairs: Vec<_> = pairs.map(|(key, text)| format!("{key}: {text}")).collect();
        format!("{{{}}}", pairs.join(", "))
    }
}

/// The names of list entries by their position, such as `a` for `pods[0]`.
fn entry_names(values: &[EffectiveValue]) -> BTreeMap<&str, &str> {
    let mut names = BTreeMap::new();
    // Names go before addresses.
    for field in [".name", ".url"] {
        for value in values.iter().filter(|value| value.fingerprint().is_none()) {
            let entry = value.key.strip_suffix(field).filter(|entry| entry.ends_with(']'));
            let Some(entry) = entry else { continue };
            let name = value.value.split_once("://").map_or(&*value.value, |(_, rest)| rest);
            names.entry(entry).or_insert(name);
        }
    }
    names
}

/// The parts of a key, with the names of entries instead of their positions.
fn parts(key: &str, names: &BTreeMap<&str, &str>) -> KeyParts {
    let mut parts = KeyParts::new();
    let mut from = 0;
    while let Some(open) = key[from..].find('[').map(|at| from + at) {
        let Some(close) = key[open..].find(']').map(|at| open + at + 1) else { break };
        parts.extend(sections(&key[from..open]));
        match names.get(&key[..close]) {
            Some(name) => parts.push((*name).to_owned()),
            // The last position of a list of scalars.
            None if close == key.len() => {}
            None => parts.push(key[open..close].to_owned()),
        }
        from = close;
    }
    parts.extend(sections(&key[from..]));
    parts
}

/// The key as people write it: positions stand right behind their list.
fn joined(parts: &[String]) -> String {
    parts.join(".").replace(".[", "[")
}

fn sections(text: &str) -> impl Iterator<Item = String> {
    text.split('.').filter(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::env::RelativePaths;
    use std::path::Path;

    fn read(text: &str) -> Config {
        Config::check("test", text, &RelativePaths::new(Path::new(""))).unwrap()
    }

    fn told(old: &str, new: &str) -> Vec<String> {
        read(old).differences(&read(new)).iter().map(ToString::to_string).collect()
    }

    const PODS: &str = "pods: [{url: \"http://h:1\"}]\n";
    const DIGEST: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn a_changed_value_is_told_by_the_name_of_its_entry_wherever_that_stands() {
        let old = "explained: 1\npods:\n  - {name: a, url: \"http://h:1\"}\n  - {name: b, url: \"http://h:2\"}\n";
        let new = "explained: 5\npods:\n  - {name: b, url: \"http://h:2\"}\n  - {name: a, url: \"http://h:3\"}\n";
        assert_eq!(told(old, new), ["explained: 1 → 5", "pods.a.url: http://h:1 → http://h:3"]);
        assert_eq!(told(old, old), [""; 0]);
    }

    #[test]
    fn an_entry_that_comes_or_goes_is_one_difference_and_a_written_default_is_none() {
        let old = "pods: [{name: a, url: \"http://h:1\", labels: {gpu: l4}}]\n";
        let new = "stream_usage: always\npods: [{url: \"http://h:2\", role: [serve, prefill]}]\n";
        assert_eq!(
            told(old, new),
            [
                "pods.h:2: none → {url: http://h:2, role: serve, prefill}",
                "pods.a: {url: http://h:1, labels.gpu: l4} → none",
            ]
        );
    }

    #[test]
    fn a_secret_is_told_to_have_changed_and_never_shown() {
        let tenants = |digest: &str| {
            format!("{PODS}tenants: [{{name: acme, key_digest: \"sha256:{digest}\", quota: 4}}]\n")
        };
        let other = DIGEST.replace("2bb8", "3cc9");
        let found = read(&tenants(DIGEST)).differences(&read(&tenants(&other)));
        assert_eq!(super::summary(&found, 300), "tenants.acme.key_digest: changed (not shown)");
        assert!(!format!("{found:?}").contains("2bb8"), "{found:?}");
        assert_eq!(told(&tenants(DIGEST), &tenants(DIGEST)), [""; 0]);
        let added = told(PODS, &tenants(DIGEST));
        let section = "{acme.name: acme, acme.key_digest: (not shown), acme.quota: 4}";
        assert_eq!(added, [format!("tenants: none → {section}")]);
    }

    #[test]
    fn a_summary_is_one_short_line_however_much_differs() {
        let pods = |port: usize| {
            let pod = |at| format!("  - {{name: pod-{at}, url: \"http://h:{}\"}}\n", port + at);
            format!("pods:\n{}", (1..=100).map(pod).collect::<String>())
        };
        let found = read(&pods(1000)).differences(&read(&pods(2000)));
        let text = super::summary(&found, 200);
        assert!(text.starts_with("pods.pod-1.url: http://h:1001 → http://h:2001; "), "{text}");
        assert!(text.ends_with(" more") && text.chars().count() < 220, "{text}");
        let labelled = |label: &str| {
            format!("pods: [{{name: a, url: \"http://h:1\", labels: {{gpu: \"{label}\"}}}}]\n")
        };
        let found = told(&labelled("l4"), &labelled(&"x".repeat(600)));
        assert!(found[0].ends_with("x…") && found[0].chars().count() < 100, "{found:?}");
    }
}
