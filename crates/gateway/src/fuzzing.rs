//! What reads the bytes of clients and engines, so that any bytes can be tried on it: the face of the fuzz targets.
//! Whoever serves takes them as they come, piece by piece, by the same code.

use crate::dialect::Api;
use crate::observe::summary::Usage;
use crate::proxy::multipart::{Multipart, MultipartEvent};
use crate::proxy::parse::read;
use crate::proxy::usage::UsageScan;
use bytes::Bytes;
use wornpath_routing::Request;

/// A part of a form: its name, the name of its file if it is one, and its content.
pub type FormPart = (String, Option<String>, Vec<u8>);

/// The model that a body names, and what routing is told of it; none if the body is refused.
#[must_use]
pub fn client_body(api: Api, body: &Bytes) -> Option<(String, Request)> {
    read(api, body).ok().map(|read| (read.model, read.request))
}

/// What an answer says of its tokens, if it comes in these pieces.
pub fn usage<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Usage {
    let mut scan = UsageScan::default();
    pieces.for_each(|piece| scan.feed(piece));
    scan.usage()
}

/// The parts of a form with this boundary that comes in these pieces, the last perhaps not whole.
///
/// # Errors
/// If it is no form.
pub fn form<'a>(
    boundary: &str,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<FormPart>, &'static str> {
    let kind = format!("multipart/form-data; boundary={boundary}");
    let mut parser = Multipart::of(&kind).ok_or("no boundary")?;
    let mut events = Vec::new();
    for piece in pieces {
        parser.feed(piece, &mut events)?;
    }
    let mut parts: Vec<FormPart> = Vec::new();
    for event in events {
        match (event, parts.last_mut()) {
            (MultipartEvent::Part { name, filename }, _) => {
                parts.push((name, filename, Vec::new()))
            }
            (MultipartEvent::Data(data), Some((_, _, content))) => content.extend(data),
            (MultipartEvent::Data(_), None) | (MultipartEvent::PartEnd, _) => {}
        }
    }
    Ok(parts)
}
