//! Things in a text that vary from prompt to prompt: how they look, and the text without them.

use super::keys;

/// What varies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldKind {
    /// A date or a time.
    Time,
    /// A UUID, a hash, or a name with a number in it.
    Identifier,
    /// A number.
    Number,
    /// The order of the keys of a JSON object.
    KeyOrder,
}

impl FieldKind {
    /// All kinds, the most telling first.
    pub(super) const ALL: [Self; 4] = [Self::Time, Self::Identifier, Self::Number, Self::KeyOrder];

    /// How a person calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "a timestamp",
            Self::Identifier => "an identifier",
            Self::Number => "a number",
            Self::KeyOrder => "the order of JSON keys",
        }
    }

    /// What the author can do about it.
    #[must_use]
    pub const fn cure(self) -> &'static str {
        match self {
            Self::KeyOrder => "writing the keys in one order",
            _ => "moving it behind the common part",
        }
    }

    pub(super) fn taken_out_of(self, text: &str) -> String {
        if self == Self::KeyOrder {
            return keys::in_one_order(text);
        }
        let mut rest = String::with_capacity(text.len());
        for word in text.split_inclusive(|letter: char| !is_word_letter(letter)) {
            let end = word.trim_end_matches(|letter: char| !is_word_letter(letter)).len();
            if !self.matches(word[..end].trim_matches(['.', ':', '-'])) {
                rest.push_str(&word[..end]);
            }
            rest.push_str(&word[end..]);
        }
        rest
    }

    fn matches(self, word: &str) -> bool {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let number = digits > 0 && digits == word.len();
        let dated = word.as_bytes().get(4) == Some(&b'-') && digits >= 8;
        let clock = digits >= 4 && word.bytes().filter(|byte| *byte == b':').count() >= 1;
        let epoch = number && matches!(digits, 10 | 13) && word.starts_with('1');
        match self {
            Self::Time => {
                dated && !word.bytes().any(|byte| byte == b'_') && !is_uuid(word) || clock || epoch
            }
            Self::Identifier => is_uuid(word) || (!number && word.len() >= 8 && digits >= 3),
            Self::Number => number,
            Self::KeyOrder => false,
        }
    }
}

fn is_word_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | ':' | '.' | '+')
}

fn is_uuid(word: &str) -> bool {
    word.len() == 36 && word.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}
