//! Secrets as a configuration may hold them: digests of what others must know, and files of what pods want to see.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use http::HeaderValue;
use sha2::{Digest, Sha256};

use crate::settings::KeyDigest;

/// Not a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DigestError {
    /// It may be the secret itself.
    #[error("it does not start with `sha256:`")]
    Bare,
    /// The wrong number of digits.
    #[error("it has {0} characters after `sha256:`, not 64")]
    BodyLength(usize),
    /// Not hexadecimal.
    #[error("it contains a character that is not a hexadecimal digit")]
    Digit,
}

/// Not a key that can be shown to a pod.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no such file, or nobody may read it.
    #[error("cannot be read: {0}")]
    Unread(#[from] std::io::Error),
    /// What is in it is no key. It is not repeated.
    #[error("contains no key; a key is one line of printable ASCII without spaces")]
    NoKey,
}

/// The `authorization` that shows the key in a file.
pub fn authorization(file: &Path) -> Result<HeaderValue, KeyError> {
    let text = std::fs::read_to_string(file)?;
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyError::NoKey);
    }
    HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| KeyError::NoKey)
}

impl KeyDigest {
    /// The digest of a secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Whether this is the digest of `secret`. How long that takes says nothing about the secret.
    #[must_use]
    pub fn is_of(&self, secret: &[u8]) -> bool {
        let found = Self::of(secret).0;
        found.iter().zip(self.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// Written as `sha256:` and 64 hexadecimal digits.
impl FromStr for KeyDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        bytes(text.strip_prefix("sha256:").ok_or(DigestError::Bare)?).map(Self)
    }
}

/// 32 bytes as 64 hexadecimal digits.
pub(crate) fn bytes(digits: &str) -> Result<[u8; 32], DigestError> {
    if digits.chars().count() != 64 {
        return Err(DigestError::BodyLength(digits.chars().count()));
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| DigestError::Digit)?;
        if pair.starts_with('+') {
            return Err(DigestError::Digit);
        }
        *byte = u8::from_str_radix(pair, 16).map_err(|_| DigestError::Digit)?;
    }
    Ok(bytes)
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_back_as_it_is_written_and_knows_its_secret() {
        let digest = KeyDigest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert!(digest.is_of(b"abc") && !digest.is_of(b"abd") && !digest.is_of(b""));
    }

    #[test]
    fn what_is_no_digest_is_refused_without_being_repeated() {
        let says = |text: &str| text.parse::<KeyDigest>().unwrap_err();
        assert_eq!(says("sk-123"), DigestError::Bare);
        assert_eq!(says("sha256:12"), DigestError::BodyLength(2));
        assert_eq!(says(&format!("sha256:{}", "g0".repeat(32))), DigestError::Digit);
        assert_eq!(says(&format!("sha256:{}", "+0".repeat(32))), DigestError::Digit);
        assert_eq!(says(&format!("sha256:{}", "é".repeat(64))), DigestError::Digit);
    }
}
