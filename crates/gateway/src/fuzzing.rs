//! Entry points for the fuzz targets: the parsers of the bytes that clients and engines send.
//!
//! The server feeds the same parsers chunk by chunk as the bytes arrive; here the caller chooses
//! the chunks.

use crate::dialect::Api;
use crate::observe::summary::Usage;
use crate::proxy::continuation;
use crate::proxy::isolation;
use crate::proxy::multipart::{Multipart, MultipartEvent};
use crate::proxy::parse::read;
use crate::proxy::usage::UsageScan;
use bytes::Bytes;
use wornpath_routing::Request;

/// A part of a form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormPart {
    /// The name of the form field.
    pub name: String,
    /// The file name, if the part is a file.
    pub filename: Option<String>,
    /// The bytes of the part that have arrived.
    pub content: Vec<u8>,
}

/// The model that a body names, and the input of routing; none if the body is refused.
#[must_use]
pub fn client_body(api: Api, body: &Bytes) -> Option<(String, Request)> {
    read(api, body).ok().map(|parsed| (parsed.model, parsed.request))
}

/// The body that an engine gets at a path from an isolated tenant under the default key; none if
/// the body is refused.
#[must_use]
pub fn isolated_body(path: &str, body: &Bytes, tenant: &str) -> Option<Bytes> {
    isolation::isolated_body(path, body, tenant).ok()
}

/// What a client gets of an engine's stream in these chunks, and then of another that continues it.
pub fn continued_stream<'a>(
    api: Api,
    first: impl Iterator<Item = &'a [u8]>,
    second: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    continuation::passed(api, first, second)
}

/// The token usage that an answer in these chunks reports.
pub fn usage<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Usage {
    let mut scan = UsageScan::default();
    chunks.for_each(|chunk| scan.feed(chunk));
    scan.usage()
}

/// The parts of a form with this boundary, parsed from these chunks; the last part may be
/// incomplete.
///
/// # Errors
/// If the form is malformed.
pub fn form<'a>(
    boundary: &str,
    chunks: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<FormPart>, &'static str> {
    let kind = format!("multipart/form-data; boundary={boundary}");
    let mut parser = Multipart::of(&kind).ok_or("no boundary")?;
    let mut events = Vec::new();
    for chunk in chunks {
        parser.feed(chunk, &mut events)?;
    }
    let mut parts: Vec<FormPart> = Vec::new();
    for event in events {
        match (event, parts.last_mut()) {
            (MultipartEvent::Part { name, filename }, _) => {
                parts.push(FormPart { name, filename, content: Vec::new() });
            }
            (MultipartEvent::Data(data), Some(part)) => part.content.extend(data),
            (MultipartEvent::Data(_), None) | (MultipartEvent::PartEnd, _) => {}
        }
    }
    Ok(parts)
}
