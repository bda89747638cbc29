//! Keys that still work and are going to be removed: `check` and the log name each use with its
//! successor. Once a key is removed it is an unknown key, which is refused.

use std::fmt;

use wornpath_yaml::{Node, Yaml};

/// A key that is going to be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeprecatedKey {
    /// Its place, such as `batch.file` or `pods[].engine`.
    pub(crate) place: &'static str,
    /// The version that deprecated it.
    pub(crate) since: &'static str,
    /// What to do instead, as an imperative.
    pub(crate) cure: &'static str,
}

/// The version that deprecates a key adds its line, and the one that removes the key deletes it.
pub(crate) const DEPRECATED: &[DeprecatedKey] = &[];

/// A deprecated key in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeprecatedUse {
    key: DeprecatedKey,
    line: usize,
}

impl fmt::Display for DeprecatedUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeprecatedKey { place, since, cure } = self.key;
        let line = self.line;
        write!(f, "line {line}: `{place}` is deprecated since {since} and will be removed; {cure}")
    }
}

/// Every use of these keys, in the order of the file.
pub(crate) fn uses(root: &Node, keys: &[DeprecatedKey]) -> Vec<DeprecatedUse> {
    let mut found = Vec::new();
    if !keys.is_empty() {
        collect(root, "", keys, &mut found);
    }
    found
}

/// `place` is that of `node`.
fn collect(node: &Node, place: &str, keys: &[DeprecatedKey], found: &mut Vec<DeprecatedUse>) {
    match &node.value {
        Yaml::Map(entries) => {
            for (name, value) in entries {
                let name_text = name.text().unwrap_or_default();
                let inner = match place {
                    "" => name_text.to_owned(),
                    place => format!("{place}.{name_text}"),
                };
                let uses = keys.iter().filter(|key| key.place == inner);
                found.extend(uses.map(|key| DeprecatedUse { key: *key, line: name.span.line }));
                collect(value, &inner, keys, found);
            }
        }
        Yaml::List(items) => {
            let inner = format!("{place}[]");
            items.iter().for_each(|item| collect(item, &inner, keys, found));
        }
        Yaml::Null | Yaml::Scalar { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_yaml::parse;

    const KEYS: &[DeprecatedKey] = &[
        DeprecatedKey { place: "batch.file", since: "0.2", cure: "write `batch.upload`" },
        DeprecatedKey { place: "pods[].engine", since: "0.3", cure: "remove it" },
    ];

    #[test]
    fn every_use_is_named_with_its_line_and_the_cure() {
        let text = "batch: {folder: b, file: 1GiB}\npods:\n  - url: a\n    engine: vllm\n  - engine: sglang\n";
        let root = parse(text).unwrap();
        let said: Vec<_> = uses(&root, KEYS).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "line 1: `batch.file` is deprecated since 0.2 and will be removed; write `batch.upload`",
                "line 4: `pods[].engine` is deprecated since 0.3 and will be removed; remove it",
                "line 5: `pods[].engine` is deprecated since 0.3 and will be removed; remove it",
            ]
        );
    }

    #[test]
    fn a_key_of_the_same_name_elsewhere_is_not_meant() {
        let root = parse("file: a\nbatch: {folder: file}\npods: [{batch: {file: b}}]\n").unwrap();
        assert_eq!(uses(&root, KEYS), []);
    }
}
