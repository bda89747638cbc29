//! Fields that vary from prompt to prompt: how to recognize them, and the text without them.

/// A kind of field that varies.
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
    /// All kinds, the most specific first.
    pub(super) const ALL: [Self; 4] = [Self::Time, Self::Identifier, Self::Number, Self::KeyOrder];

    /// The name for reports.
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

    /// The text without fields of this kind.
    pub(super) fn remove_from(self, text: &str) -> String {
        if self == Self::KeyOrder {
            return sort_keys(text);
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

/// The text with the members of its first JSON object sorted, without parsing their values;
/// unchanged if it contains no object.
fn sort_keys(text: &str) -> String {
    let Some(start) = text.find('{') else { return text.to_owned() };
    let Some(mut object) = JsonObject::at_start(&text[start..]) else { return text.to_owned() };
    object.members.sort_unstable();
    let rest = &text[start + object.end..];
    format!("{}{{{}}}{rest}", &text[..start], object.members.join(","))
}

struct JsonObject<'a> {
    /// The trimmed members, each a key with its value.
    members: Vec<&'a str>,
    /// The first byte after the object.
    end: usize,
}

impl<'a> JsonObject<'a> {
    /// The object at the start of `text`.
    fn at_start(text: &'a str) -> Option<Self> {
        let mut members = Vec::new();
        let mut depth = 0_usize;
        let mut start = 1;
        let mut quoted = false;
        let mut escaped = false;
        for (at, byte) in text.bytes().enumerate() {
            if quoted {
                quoted = escaped || byte != b'"';
                escaped = !escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'"' => quoted = true,
                b'{' | b'[' => depth += 1,
                b',' if depth == 1 => {
                    members.push(text[start..at].trim());
                    start = at + 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        members.push(text[start..at].trim());
                        let is_object = members.iter().all(|member| member.starts_with('"'));
                        return is_object.then_some(Self { members, end: at + 1 });
                    }
                }
                _ => {}
            }
        }
        None
    }
}
