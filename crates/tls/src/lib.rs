//! TLS that several crates need: certificates and keys, from PEM files or self-signed
//! ([`ServerIdentity`], [`roots`]), TLS towards a broker or a database ([`ClientTls`]), and what a failed handshake means
//! ([`explain`]).
//!
//! There is one TLS stack, rustls with ring, and no default: the caller says which CAs sign
//! the server's certificate.
#![forbid(unsafe_code)]

mod client;
mod explain;
mod material;

pub use client::{ClientTls, client_config};
pub use explain::{explain, is_ca_as_server, tls_error};
pub use material::{ServerIdentity, TlsError, provider, roots, system_roots};
