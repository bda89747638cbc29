//! Dialing a host that may be a DNS name. A name may resolve to another address each time, so the
//! policy checks the addresses of every attempt.

use crate::zmtp::{SocketKind, ZmtpConnection, ZmtpError, with_timeout};
use std::io::{Error, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::{TcpStream, lookup_host};

/// Returns why an address must not be dialed, if so.
pub type DialPolicy = Arc<dyn Fn(IpAddr) -> Result<(), String> + Send + Sync>;

/// Connects to addresses that the policy allows; to all without one.
#[derive(Clone, Default)]
pub(super) struct Dialer(pub(super) Option<DialPolicy>);

impl Dialer {
    pub(super) async fn connect(
        self,
        host: String,
        own: SocketKind,
    ) -> Result<ZmtpConnection<TcpStream>, ZmtpError> {
        let Some(policy) = self.0 else { return ZmtpConnection::connect(host, own).await };
        let resolved = with_timeout(async { Ok(lookup_host(&host).await?) }).await?;
        let mut allowed = Vec::new();
        let mut forbidden = None;
        for address in resolved {
            match policy(address.ip()) {
                Ok(()) => allowed.push(address),
                Err(why) => forbidden = Some(why),
            }
        }
        match forbidden {
            Some(why) if allowed.is_empty() => {
                let why = format!("{host}: {why}");
                Err(Error::new(ErrorKind::PermissionDenied, why).into())
            }
            _ => ZmtpConnection::connect(&allowed[..], own).await,
        }
    }
}
