//! The entry of a stored file: what the API shows of it, and what its bytes must be.

use crate::batch::UnixTime;
use crate::record::RecordKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The metadata of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file id.
    pub id: String,
    /// The tenant; empty without tenants.
    pub owner: String,
    /// The file name of the upload.
    pub filename: String,
    /// The purpose in OpenAI's sense, such as `batch`.
    pub purpose: String,
    /// The length.
    pub bytes: u64,
    /// The time of the upload.
    pub created_at: UnixTime,
    /// When it expires.
    pub expires_at: Option<UnixTime>,
    /// The CRC-32 of its bytes; none if an older version stored it, or it is a result in a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc: Option<u32>,
    /// Set if it is a result file: its batch, and which of the two files.
    pub of: Option<(String, RecordKind)>,
}

impl FileEntry {
    /// The file object of the API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}
