//! Secrets: digests of callers' keys and tokens, files with the API keys of pods, and files with
//! secrets that other users of the machine can read.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a key. Callers' keys are compared by digest, so that none is kept in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest(pub [u8; 32]);

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

/// A text that is not a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DigestError {
    /// Without `sha256:`; it may be the secret itself.
    #[error("it does not start with `sha256:`")]
    Bare,
    /// The wrong number of digits.
    #[error("it has {0} characters after `sha256:`, not 64")]
    BodyLength(usize),
    /// Not hexadecimal.
    #[error("it contains a character that is not a hexadecimal digit")]
    Digit,
}

/// A key file without a usable key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file does not exist or is not readable.
    #[error("cannot be read: {0}")]
    Unread(#[from] std::io::Error),
    /// The content is not a key. It is not shown.
    #[error("contains no key; a key is one line of printable ASCII without spaces")]
    NoKey,
}

/// A file with a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFile {
    /// The key or option that names it.
    pub key: &'static str,
    /// Its path.
    pub path: PathBuf,
}

/// A file with a secret that group or others can read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExposedSecret {
    /// The file.
    pub file: SecretFile,
    /// Its permission bits.
    pub mode: u32,
}

impl SecretFile {
    /// Its permissions, if group or others can read it.
    #[must_use]
    pub fn exposed(&self) -> Option<ExposedSecret> {
        let mode = std::fs::metadata(&self.path).ok()?.permissions().mode() & 0o777;
        (mode & 0o044 != 0).then(|| ExposedSecret { file: self.clone(), mode })
    }
}

impl fmt::Display for ExposedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file: SecretFile { key, path }, mode } = self;
        let path = path.display();
        write!(
            f,
            "`{key}`: the file `{path}` holds a secret and has mode {mode:04o}, so that other \
             users can read it; run `chmod 600 {path}`"
        )
    }
}

/// The `authorization` header with the key in a file.
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

    /// Whether this is the digest of `secret`, compared in constant time.
    #[must_use]
    pub fn is_of(&self, secret: &[u8]) -> bool {
        self.is_same(&Self::of(secret))
    }

    /// Whether both digests are the same, compared in constant time.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
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
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| DigestError::Digit)?;
    Ok(bytes)
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_printing_and_parsing_and_matches_its_secret() {
        let digest = KeyDigest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert!(digest.is_of(b"abc") && !digest.is_of(b"abd") && !digest.is_of(b""));
    }

    #[test]
    fn a_secret_that_group_or_others_can_read_is_exposed() {
        let path = std::env::temp_dir().join(format!("wornpath-secret-{}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        let file = SecretFile { key: "key_file", path: path.clone() };
        for (mode, is_exposed) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let exposed = file.exposed();
            assert_eq!(exposed.is_some(), is_exposed, "{mode:o}");
            let Some(exposed) = exposed.map(|exposed| exposed.to_string()) else { continue };
            let cure = format!("run `chmod 600 {}`", path.display());
            assert!(exposed.contains(&format!("{mode:04o}")) && exposed.ends_with(&cure));
        }
        std::fs::remove_file(path).unwrap();
        assert_eq!(file.exposed(), None, "a missing file is another problem");
    }

    #[test]
    fn an_invalid_digest_is_refused_without_being_shown() {
        let error = |text: &str| text.parse::<KeyDigest>().unwrap_err();
        assert_eq!(error("sk-123"), DigestError::Bare);
        assert_eq!(error("sha256:12"), DigestError::BodyLength(2));
        assert_eq!(error(&format!("sha256:{}", "g0".repeat(32))), DigestError::Digit);
        assert_eq!(error(&format!("sha256:{}", "+0".repeat(32))), DigestError::Digit);
        assert_eq!(error(&format!("sha256:{}", "é".repeat(64))), DigestError::Digit);
    }
}
