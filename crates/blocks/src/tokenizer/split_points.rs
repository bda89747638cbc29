//! Split points: where a text may be split so that the tokens of its parts are the tokens of the
//! whole.
//!
//! Two kinds of split point are proven, and only these are used:
//!
//! - **Hard: after an added token.** Hugging Face extracts added tokens first, from left to right,
//!   and processes the text between them piece by piece. So the tokens on one side never depend on
//!   the other, if (1) no part of the pipeline depends on its position in the text, and (2) whether
//!   that token matches does not depend on the text after it: no other token begins with it or
//!   contains it other than at its end. None of all may strip spaces around it or require a word
//!   boundary, and all are matched on the same text, either before normalization or without any.
//! - **Soft: between a letter and a space or line feed**, for the splitting rules listed here. In
//!   all of them a piece with a letter in it ends before white space, no rule looks back, and only
//!   runs of white space look ahead. Normalization does not interfere: neither a space nor a line
//!   feed ever composes with the character before it. Such a split point is known only together
//!   with the white space after it, and no added token may have a letter and then that character,
//!   so that none crosses it. A tokenizer that splits nothing but merges over the whole text has
//!   the same points if no token of its vocabulary has a letter and then that character: a merge
//!   across the point would make such a token, so the two sides are merged independently.
//!
//! A tokenizer for which this does not hold has no split points, and its texts are not cached.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde_json::Value;

/// The rules for which soft split points are proven.
const KNOWN_SPLITS: [&str; 7] = [
    // Qwen 2, 2.5 and 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Said to be of Qwen 3.5; not tried with its tokenizer
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Llama 3, GLM 4 and Phi 4, as GPT-4 (cl100k)
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // GPT-4o (o200k), whose vocabulary gpt-oss has
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Mistral (tekken)
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // DeepSeek V3
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    // GPT-2, which is also the built-in rule of `ByteLevel`
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];
/// Rules that may come before one of these: they cut out digits, or Chinese and Japanese, and
/// neither a letter before white space nor the white space is inside such a piece with the other.
const KNOWN_FIRST: [&str; 3] = [r"\p{N}{1,3}", r"\p{N}", "[一-龥\u{3040}-ゟ゠-ヿ]+"];
/// What takes the place of a space in vocabularies of SentencePiece.
const SPACE: char = '▁';

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
    /// Whether a text may be split after each added token.
    ends: Vec<bool>,
    longest: usize,
    before_space: bool,
    before_line_feed: bool,
}

impl SplitPoints {
    /// The split points of a `tokenizer.json`, if any are proven.
    pub(crate) fn of(json: &Value) -> Option<Self> {
        let model = &json["model"];
        let fixed = model["type"] == "BPE" && model["dropout"].is_null();
        let normalizer = Normalizer::of(&json["normalizer"])?;
        if !fixed || !splitter_is_local(&json["pre_tokenizer"]) {
            return None;
        }
        let tokens = json["added_tokens"].as_array()?;
        let mut texts = Vec::new();
        let mut ids = Vec::new();
        let mut normalized = Vec::new();
        for token in tokens {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            let plain = !(flag("single_word") || flag("lstrip") || flag("rstrip"));
            if !plain || normalizer != Normalizer::None && flag("normalized") {
                return None;
            }
            texts.push(token["content"].as_str().filter(|text| !text.is_empty())?);
            ids.push(u32::try_from(token["id"].as_u64()?).ok()?);
            normalized.push(flag("normalized"));
        }
        let distinct: HashSet<_> = texts.iter().collect();
        if distinct.len() != texts.len() || !are_matched_at_once(&texts, &normalized) {
            return None;
        }
        let is_split = split_is_known(&json["pre_tokenizer"]);
        let keeps_apart = |white: char| {
            let known = is_split || merges_keep_apart(json, normalizer, white);
            known && !texts.iter().any(|text| has_letter_before(text, white))
        };
        let before_space = keeps_apart(' ');
        let before_line_feed = keeps_apart('\n');
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let ends = ends(&texts)?;
        let added = match texts.as_slice() {
            [] => None,
            texts => {
                let mut builder = AhoCorasick::builder();
                Some(builder.match_kind(MatchKind::LeftmostLongest).build(texts).ok()?)
            }
        };
        Some(Self { added, ids, ends, longest, before_space, before_line_feed })
    }

    /// The first added token at or after `from`.
    pub(crate) fn next_added(&self, text: &str, from: usize) -> Option<AddedToken> {
        self.next_with_end(text, from).map(|(added, _)| added)
    }

    /// The first added token at or after `from`, and whether a text may be split after it.
    fn next_with_end(&self, text: &str, from: usize) -> Option<(AddedToken, bool)> {
        let found = self.added.as_ref()?.find(Input::new(text).range(from..))?;
        let pattern = found.pattern().as_usize();
        let added = AddedToken { start: found.start(), end: found.end(), id: self.ids[pattern] };
        Some((added, self.ends[pattern]))
    }

    /// The end of the first added token that starts before `limit`, ends at `from` or later, and after
    /// which the text may be split.
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
        while let Some((added, is_end)) =
            self.next_with_end(window, at).filter(|(added, _)| added.start < limit)
        {
            at = added.end;
            passed.push(added);
            if at >= from && is_end {
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
        let mut at = 0;
        while let Some((added, is_end)) = self.next_with_end(text, at) {
            at = added.end;
            if is_end {
                hard = at;
            }
        }
        let soft = (hard + 1..text.len()).rev().find(|&at| self.is_soft(text, at));
        soft.unwrap_or(hard)
    }

    fn is_soft(&self, text: &str, at: usize) -> bool {
        let is_split = match text.as_bytes()[at] {
            b' ' => self.before_space,
            b'\n' => self.before_line_feed,
            _ => false,
        };
        is_split && text[..at].chars().next_back().is_some_and(is_plain_letter)
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

/// What a normalizer does to a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Normalizer {
    None,
    /// Unicode's composed form.
    Composed,
    /// Every space becomes [`SPACE`].
    Spaces,
}

impl Normalizer {
    /// None if it is another one, which may depend on positions.
    fn of(json: &Value) -> Option<Self> {
        match json["type"].as_str() {
            None if json.is_null() => Some(Self::None),
            Some("NFC") => Some(Self::Composed),
            Some("Sequence") => match json["normalizers"].as_array()?.as_slice() {
                [] => Some(Self::None),
                [only] => Self::of(only),
                _ => None,
            },
            Some("Replace") => {
                let is_space = json["pattern"]["String"] == " " && json["content"] == "▁";
                is_space.then_some(Self::Spaces)
            }
            _ => None,
        }
    }
}

/// Whether a splitter treats a piece alike at every position.
fn splitter_is_local(splitter: &Value) -> bool {
    match splitter["type"].as_str() {
        None => splitter.is_null(),
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
    let Some((bytes, splits)) =
        splitter["pretokenizers"].as_array().and_then(|all| all.split_last())
    else {
        return false;
    };
    if bytes["type"] != "ByteLevel" {
        return false;
    }
    let (first, has_main) = match splits {
        first if bytes["use_regex"] != false => (first, true),
        [first @ .., main] => (first, is_split_by(main, &KNOWN_SPLITS)),
        [] => (splits, false),
    };
    let is_harmless = |split: &Value| split["type"] == "Digits" || is_split_by(split, &KNOWN_FIRST);
    has_main && first.iter().all(is_harmless)
}

/// Whether a splitter cuts out what one of these rules matches. The rules match every character, so
/// to drop what none matches drops nothing.
fn is_split_by(split: &Value, rules: &[&str]) -> bool {
    let rule = split["pattern"]["Regex"].as_str();
    let is_isolated = split["behavior"] == "Isolated" && split["invert"] == false;
    let is_kept =
        split["behavior"] == "Removed" && split["invert"] == true && rules == KNOWN_SPLITS;
    split["type"] == "Split"
        && (is_isolated || is_kept)
        && rule.is_some_and(|rule| rules.contains(&rule))
}

/// Whether no merge joins a letter and the white space after it, in a tokenizer that splits nothing.
fn merges_keep_apart(json: &Value, normalizer: Normalizer, white: char) -> bool {
    let splitter = &json["pre_tokenizer"];
    // A splitter at spaces finds none where the normalizer has replaced them.
    let finds_nothing = splitter["type"] == "Split"
        && splitter["pattern"]["String"] == " "
        && normalizer == Normalizer::Spaces;
    let model = &json["model"];
    if !(splitter.is_null() || finds_nothing) || model["ignore_merges"] == true {
        return false;
    }
    let written = if white == ' ' && normalizer == Normalizer::Spaces { SPACE } else { white };
    let Some(vocabulary) = model["vocab"].as_object() else { return false };
    !vocabulary.keys().any(|token| has_letter_before(token, written))
}

fn has_letter_before(text: &str, white: char) -> bool {
    text.match_indices(white)
        .any(|(at, _)| text[..at].chars().next_back().is_some_and(is_plain_letter))
}

/// Whether added tokens that are matched in two passes, those that are not normalized first, are
/// found as in one.
fn are_matched_at_once(texts: &[&str], normalized: &[bool]) -> bool {
    let of = |wanted: bool| {
        let both = texts.iter().zip(normalized);
        both.filter(move |(_, is)| **is == wanted).map(|(text, _)| *text)
    };
    if of(true).next().is_none() || of(false).next().is_none() {
        return true;
    }
    // A token of one pass may neither contain nor overlap one of the other.
    let overlaps = |own: bool| {
        let starts: HashSet<&str> = of(!own)
            .flat_map(|text| text.char_indices().map(|(at, c)| &text[..at + c.len_utf8()]))
            .collect();
        let others: Vec<_> = of(!own).collect();
        let Ok(finder) = AhoCorasick::new(&others) else { return true };
        let mut all = of(own);
        all.any(|text| {
            let mut ends = text.char_indices().skip(1).map(|(at, _)| &text[at..]);
            finder.is_match(text) || ends.any(|end| starts.contains(end))
        })
    };
    !overlaps(true) && !overlaps(false)
}

/// For each text whether no other begins with it or contains it other than at its end.
fn ends(texts: &[&str]) -> Option<Vec<bool>> {
    let mut ends = vec![true; texts.len()];
    let finder = AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts).ok()?;
    for text in texts {
        for found in finder.find_overlapping_iter(text) {
            ends[found.pattern().as_usize()] &= found.end() == text.len();
        }
    }
    Some(ends)
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

    /// Tokens of two passes: the first is matched before the second.
    fn two_passes(first: &str, second: &str) -> Option<SplitPoints> {
        let mut json = tokenizer(&[first, second]);
        json["added_tokens"][1]["normalized"] = json!(true);
        SplitPoints::of(&json)
    }

    #[test]
    fn tokens_of_two_passes_may_not_meet() {
        assert!(two_passes("<a>", "<b>").is_some());
        for (first, second) in [("<a>", "x<a>"), ("<a", "a>"), ("a>", "<a"), ("<a>", "a")] {
            assert!(two_passes(first, second).is_none(), "{first} {second}");
        }
    }

    #[test]
    fn merges_over_a_whole_text_keep_sides_apart_that_no_token_joins() {
        let whole = |vocabulary: Value| {
            let mut json = tokenizer(&["\n", "\n\n"]);
            json["model"]["vocab"] = vocabulary;
            json["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
            json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
            json
        };
        let points = |json: &Value| {
            let points = SplitPoints::of(json).unwrap();
            [points.soft_split("a b", 0, 3), points.soft_split("a\nb", 0, 3)]
        };
        assert_eq!(points(&whole(json!({"▁a": 0, "▁▁": 1, "1▁": 2}))), [Some(1), Some(1)]);
        assert_eq!(points(&whole(json!({"a▁": 0}))), [None, Some(1)]);
        assert_eq!(points(&whole(json!({"a\n": 0}))), [Some(1), None]);
        let mut looked_up = whole(json!({}));
        looked_up["model"]["ignore_merges"] = json!(true);
        assert_eq!(points(&looked_up), [None, None]);
        let mut unsplit = whole(json!({"▁a": 0}));
        unsplit["pre_tokenizer"] = Value::Null;
        assert_eq!(points(&unsplit), [Some(1), Some(1)]);
    }

    #[test]
    fn a_tokenizer_outside_the_proof_has_no_split_points() {
        let last =
            |added: &[&str], text: &str| SplitPoints::of(&tokenizer(added)).unwrap().last(text);
        assert_eq!(last(&["<a>", "<a><b>"], "..<a>"), 0, "one begins another");
        assert_eq!(last(&["<a>", "<a><b>"], "..<a><b>"), 8);
        assert_eq!(last(&["<a>", "x<a>y"], "..<a>"), 0, "one contains another");
        assert_eq!(last(&["<a>", "x<a>"], "..<a>"), 5, "one ends another");
        assert_eq!(last(&["\n", "\n\n", "<a>"], "<a>\n"), 3);
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
