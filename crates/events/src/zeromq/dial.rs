//! Connecting to a place that may be a name. What a name stands for is known only when it is resolved, and it may
//! stand for something else each time: so that is when addresses are judged.

use crate::zmtp::{SocketKind, ZmtpConnection, ZmtpError, in_time};
use std::io::{Error, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::{TcpStream, lookup_host};

/// Says of an address why nobody may connect to it, if so.
pub type DialPolicy = Arc<dyn Fn(IpAddr) -> Result<(), String> + Send + Sync>;

/// Connects where it may.
#[derive(Clone, Default)]
pub(super) struct Dialer(pub(super) Option<DialPolicy>);

impl Dialer {
    pub(super) async fn connect(
        self,
        place: String,
        own: SocketKind,
    ) -> Result<ZmtpConnection<TcpStream>, ZmtpError> {
        let Some(judge) = self.0 else { return ZmtpConnection::connect(place, own).await };
        let named = in_time(async { Ok(lookup_host(&place).await?) }).await?;
        let (mut allowed, mut forbidden) = (Vec::new(), None);
        for address in named {
            match judge(address.ip()) {
                Ok(()) => allowed.push(address),
                Err(why) => forbidden = Some(why),
            }
        }
        match forbidden {
            Some(why) if allowed.is_empty() => {
                let why = format!("{place}: {why}");
                Err(Error::new(ErrorKind::PermissionDenied, why).into())
            }
            _ => ZmtpConnection::connect(&allowed[..], own).await,
        }
    }
}
