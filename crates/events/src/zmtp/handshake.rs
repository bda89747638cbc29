//! The greeting and the READY command.

use super::error::ZmtpError;
use super::frame;
use bytes::{BufMut, Bytes, BytesMut};

/// Version 3.0 without encryption, by which peers of a later minor version know that subscriptions
/// are sent as messages.
pub(super) const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xFF;
    bytes[8] = 1;
    bytes[9] = 0x7F;
    bytes[10] = 3;
    let name = *b"NULL";
    let mut at = 0;
    while at < name.len() {
        bytes[12 + at] = name[at];
        at += 1;
    }
    bytes
};
pub(super) const GREETING_BYTES: usize = 64;

/// The socket types that events need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// Publishes messages.
    Pub,
    /// Receives the topics that it subscribed to.
    Sub,
    /// Sends requests, and receives any number of replies.
    Dealer,
    /// Replies to requests.
    Router,
}

impl SocketKind {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    fn talks_to(self, peer: &[u8]) -> bool {
        match self {
            Self::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Self::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"DEALER" | b"REP"),
            Self::Router => matches!(peer, b"DEALER" | b"ROUTER" | b"REQ"),
        }
    }

    /// Writes our READY command.
    pub(super) fn put_ready(self, out: &mut BytesMut) {
        let mut properties = Vec::new();
        put_property(&mut properties, "Socket-Type", self.name());
        if matches!(self, Self::Dealer | Self::Router) {
            put_property(&mut properties, "Identity", "");
        }
        frame::put_command(out, "READY", &properties);
    }

    /// Checks the peer's READY command.
    pub(super) fn check_ready(self, body: &Bytes) -> Result<(), ZmtpError> {
        let (name, content) = frame::command(body).unwrap_or((body, b""));
        match name {
            b"READY" => {}
            b"ERROR" => {
                return Err(ZmtpError::unexpected("handshake", content, "READY"));
            }
            _ => return Err(ZmtpError::unexpected("handshake", name, "READY")),
        }
        match property(content, b"socket-type") {
            Some(peer) if self.talks_to(peer) => Ok(()),
            Some(peer) => {
                let found = peer[..peer.len().min(32)].escape_ascii().to_string();
                Err(ZmtpError::WrongSocket { own: self.name(), found })
            }
            None => Err(ZmtpError::unexpected("READY", content, "a Socket-Type")),
        }
    }
}

/// Refuses peers that do not speak ZMTP 3 without encryption.
pub(super) fn check_greeting(greeting: &[u8]) -> Result<(), ZmtpError> {
    if greeting.first() != Some(&0xFF) || greeting.get(9).is_none_or(|byte| byte & 1 == 0) {
        return Err(ZmtpError::unexpected("greeting", greeting, "a ZeroMQ greeting"));
    }
    if greeting.get(10).is_none_or(|major| *major < 3) {
        let version = &greeting[10..];
        return Err(ZmtpError::unexpected("greeting", version, "ZMTP 3 (libzmq 4 or later)"));
    }
    let mechanism = greeting.get(12..32).unwrap_or_default();
    if !mechanism.starts_with(b"NULL\0") {
        return Err(ZmtpError::unexpected("greeting", mechanism, "the mechanism NULL"));
    }
    Ok(())
}

fn put_property(out: &mut Vec<u8>, name: &str, value: &str) {
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
    out.put_u32(value.len() as u32);
    out.put_slice(value.as_bytes());
}

/// The value of a property. Names are case-insensitive.
fn property<'a>(mut content: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (name, rest) = frame::command(content)?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        content = rest;
    }
}
