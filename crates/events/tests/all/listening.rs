//! A listener for pushed events; the gateway has its own.

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use wornpath_events::{PushAccess, PushService};

/// Serves every connection, until it is dropped.
pub(crate) async fn listen(service: PushService, listener: TcpListener, access: PushAccess) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(service.clone().serve_connection(stream, access.clone(), || ()));
    }
}
