//! Split points: where a text may be split so that the tokens of its parts are the tokens of the
//! whole.
//!
//! Two kinds of split point are proven, and only these are used:
//!
//! - **Hard: after an added token.** Hugging Face extracts added tokens first, from left to right,
//!   and processes the text between them piece by piece. So the tokens on one side never depend on
//!   the other, if (1) no part of the pipeline depends on its position in the text, and (2) whether
//!   an added token matches does not depend on the text after it: none contains another except at
//!   its end, none strips spaces around it or requires a word boundary, and all are matched on the
//!   same text, either before normalization or without any.
//! - **Soft: between a letter and a space or line feed**, for the splitting rules listed here. In
//!   all of them a piece with a letter in it ends before white space, no rule looks back, and only
//!   runs of white space look ahead. Normalization does not interfere: neither a space nor a line
//!   feed ever composes with the character before it. Such a split point is known only together
//!   with the white space after it, and no added token may contain white space, so that none
//!   crosses it.
//!
//! A tokenizer for which this does not hold has no split points, and its texts are not cached.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde_json::Value;

/// The rules for which soft split points are proven: Qwen 2 and 3; Llama 3 and cl100k; GPT-2, which
/// is also the built-in rule of `ByteLevel`.
const KNOWN_SPLITS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

/// An added token in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddedToken {
    /// Where it starts.
    pub(crate) start: usize,
    /// Where it ends.
    pub(crate) end: usize,
    /// Its token id.
    pub(crate) id: u32,
}

/// Finds the split points of one tokenizer.
pub(crate) struct SplitPoints {
    added: Option<AhoCorasick>,
    ids: Vec<u32>,
    longest: usize,
    before_space: bool,
}

impl SplitPoints {
    /// The split points of a `tokenizer.json`, if any are proven.
    pub(crate) fn of(json: &Value) -> Option<Self> {
        let model = &json["model"];
        let fixed = model["type"] == "BPE" && model["dropout"].is_null();
        let normalizer = &json["normalizer"];
        let local = normalizer.is_null() || normalizer["type"] == "NFC";
        if !fixed || !local || !splitter_is_local(&json["pre_tokenizer"]) {
            return None;
        }
        let tokens = json["added_tokens"].as_array()?;
        let mut texts = Vec::new();
        let mut ids = Vec::new();
        for token in tokens {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            let plain = !(flag("single_word") || flag("lstrip") || flag("rstrip"));
            let raw = normalizer.is_null() || !flag("normalized");
            if !plain || !raw || token["normalized"] != tokens[0]["normalized"] {
                return None;
            }
            texts.push(token["content"].as_str().filter(|text| !text.is_empty())?);
            ids.push(u32::try_from(token["id"].as_u64()?).ok()?);
        }
        let before_space = split_is_known(&json["pre_tokenizer"])
            && texts.iter().all(|text| !text.contains(char::is_whitespace));
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let added = match texts.as_slice() {
            [] => None,
            texts if each_stands_alone(texts)? => {
                let mut builder = AhoCorasick::builder();
                Some(builder.match_kind(MatchKind::LeftmostLongest).build(texts).ok()?)
            }
            _ => return None,
        };
        Some(Self { added, ids, longest, before_space })
    }

    /// The first added token at or after `from`.
    pub(crate) fn next_added(&self, text: &str, from: usize) -> Option<AddedToken> {
        let found = self.added.as_ref()?.find(Input::new(text).range(from..))?;
        let id = self.ids[found.pattern().as_usize()];
        Some(AddedToken { start: found.start(), end: found.end(), id })
    }

    /// The end of the first added token that starts before `limit` and ends at `from` or later.
    ///
    /// All that start before `limit`, up to and with that one, are appended to `passed`.
    pub(crate) fn hard_split(
        &self,
        text: &str,
        from: usize,
        limit: usize,
        passed: &mut Vec<AddedToken>,
    ) -> Option<usize> {
        let window = &text[..text.floor_char_boundary(limit.saturating_add(self.longest))];
        let mut at = 0;
        while let Some(added) = self.next_added(window, at).filter(|added| added.start < limit) {
            at = added.end;
            passed.push(added);
            if at >= from {
                return Some(at);
            }
        }
        None
    }

    /// The first soft split point at or after `from` and before `limit`.
    pub(crate) fn soft_split(&self, text: &str, from: usize, limit: usize) -> Option<usize> {
        (from.max(1)..limit.min(text.len())).find(|&at| self.is_soft(text, at))
    }

    /// The last split point of either kind; 0 if there is none.
    pub(crate) fn last(&self, text: &str) -> usize {
        let mut hard = 0;
        while let Some(added) = self.next_added(text, hard) {
            hard = added.end;
        }
        let soft = (hard + 1..text.len()).rev().find(|&at| self.is_soft(text, at));
        soft.unwrap_or(hard)
    }

    fn is_soft(&self, text: &str, at: usize) -> bool {
        self.before_space
            && matches!(text.as_bytes()[at], b' ' | b'\n')
            && text[..at].chars().next_back().is_some_and(is_plain_letter)
    }
}

/// Letters in every version of Unicode that are their own composed form; a subset of `\p{L}`
/// suffices.
fn is_plain_letter(c: char) -> bool {
    c.is_ascii_alphabetic()
        || matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}')
        || matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{410}'..='\u{44f}')
}

/// The bytes of the longest token of a `tokenizer.json` whose rule keeps every byte of a text, so
/// that a text has at least its length divided by this many tokens.
pub(super) fn longest_token(json: &Value) -> Option<usize> {
    if json["model"]["type"] != "BPE" || !split_is_known(&json["pre_tokenizer"]) {
        return None;
    }
    // Such a vocabulary has one character for every byte.
    let own = json["model"]["vocab"].as_object()?.keys().map(|token| token.chars().count());
    let added = json["added_tokens"].as_array()?.iter();
    own.chain(added.filter_map(|token| token["content"].as_str().map(str::len)))
        .max()
        .filter(|longest| *longest > 0)
}

/// Whether a splitter treats a piece alike at every position.
fn splitter_is_local(splitter: &Value) -> bool {
    match splitter["type"].as_str() {
        Some("Sequence") => splitter["pretokenizers"]
            .as_array()
            .is_some_and(|all| all.iter().all(splitter_is_local)),
        Some("ByteLevel") => splitter["add_prefix_space"] == false,
        Some("Split" | "Digits" | "Punctuation") => true,
        _ => false,
    }
}

fn split_is_known(splitter: &Value) -> bool {
    if splitter["type"] == "ByteLevel" {
        return splitter["use_regex"] != false;
    }
    let Some([split, bytes]) = splitter["pretokenizers"].as_array().map(Vec::as_slice) else {
        return false;
    };
    let rule = split["pattern"]["Regex"].as_str();
    split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] == false
        && rule.is_some_and(|rule| KNOWN_SPLITS.contains(&rule))
        && bytes["type"] == "ByteLevel"
        && bytes["use_regex"] == false
}

/// Whether no text occurs twice, or inside another except at its end.
fn each_stands_alone(texts: &[&str]) -> Option<bool> {
    let distinct: HashSet<_> = texts.iter().collect();
    let finder = AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts).ok()?;
    let alone =
        |text: &&str| finder.find_overlapping_iter(text).all(|found| found.end() == text.len());
    Some(distinct.len() == texts.len() && texts.iter().all(alone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer(added: &[&str]) -> Value {
        let added: Vec<_> = added
            .iter()
            .enumerate()
            .map(|(id, text)| json!({"id": id, "content": text, "normalized": false}))
            .collect();
        json!({
            "added_tokens": added, "normalizer": null, "model": {"type": "BPE"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        })
    }

    #[test]
    fn split_points_are_after_added_tokens_and_before_white_space_after_letters() {
        let points = SplitPoints::of(&tokenizer(&["<a>", "<bb>"])).unwrap();
        let a = AddedToken { start: 0, end: 3, id: 0 };
        let b = AddedToken { start: 5, end: 9, id: 1 };
        let mut passed = Vec::new();
        assert_eq!(points.hard_split("<a>..<bb>z", 4, 6, &mut passed), Some(9));
        assert_eq!(passed, [a, b]);
        passed.clear();
        assert_eq!(points.hard_split("<a>..<bb>z", 4, 5, &mut passed), None);
        assert_eq!(passed, [a]);
        assert_eq!(points.soft_split("1 . a b", 0, 7), Some(5));
        assert_eq!(points.soft_split("1 . a b", 0, 5), None);
        assert_eq!(points.soft_split("ab  c", 3, 5), None);
        assert_eq!(points.last("a b<a>c d e"), 9);
        assert_eq!(points.last("<a>1 2"), 3);
        assert_eq!(points.last("文\n"), 3);
    }

    #[test]
    fn a_tokenizer_outside_the_proof_has_no_split_points() {
        assert!(SplitPoints::of(&tokenizer(&["<a>", "<a><b>"])).is_none(), "one begins another");
        assert!(SplitPoints::of(&tokenizer(&["<a>", "x<a>y"])).is_none(), "one contains another");
        assert!(SplitPoints::of(&tokenizer(&["<a>", "x<a>"])).is_some(), "one ends another");
        assert!(SplitPoints::of(&tokenizer(&["<a>", "<a>"])).is_none(), "one occurs twice");
        for (pointer, value) in [
            ("/added_tokens/0/lstrip", json!(true)),
            ("/added_tokens/0/single_word", json!(true)),
            ("/normalizer", json!({"type": "Prepend", "prepend": "_"})),
            ("/pre_tokenizer", json!({"type": "Metaspace"})),
            ("/pre_tokenizer/add_prefix_space", json!(true)),
            ("/model/dropout", json!(0.1)),
            ("/model/type", json!("Unigram")),
        ] {
            let mut json = tokenizer(&["<a>"]);
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[name] = value;
            assert!(SplitPoints::of(&json).is_none(), "{pointer}");
        }
        let spaced = SplitPoints::of(&tokenizer(&["<a b>"])).unwrap();
        assert_eq!(spaced.soft_split("a b", 0, 3), None, "an added token might cross it");
    }
}
