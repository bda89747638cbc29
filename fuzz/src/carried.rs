//! What carries cache events: ZeroMQ's own protocol, reports over gRPC, and the list of an engine's publishers. What
//! Redis, NATS and Kafka carry is an envelope each, which `wire` has.

use crate::wire::translate;
use prost::Message as _;
use tokio::io::{join, sink};
use wornpath_events::grpc::PushReport;
use wornpath_events::wire::{WireBatch, WireLimits, WireMessage, decode};
use wornpath_events::zmtp::{SocketKind, ZmtpConnection};
use wornpath_events::{SourceMessage, ZmqAddress};

/// All bytes that a peer sends over one connection; the first says which socket we are.
pub fn zmtp_stream(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let own = [SocketKind::Sub, SocketKind::Dealer, SocketKind::Router, SocketKind::Pub]
        [usize::from(kind % 4)];
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without timers and sockets").block_on(async {
        let stream = join(bytes, sink());
        let Ok(mut connection) = ZmtpConnection::handshake(stream, own).await else { return };
        let mut batch = WireBatch::default();
        // Ends, since a stream that has ended is an error.
        while let Ok(frames) = connection.receive().await {
            let Ok(WireMessage::Batch { payload, .. }) = WireMessage::parse(&frames) else {
                continue;
            };
            if decode(payload, &WireLimits::default(), &mut batch).is_ok() {
                translate(&batch);
            }
        }
    });
}

/// One report of a stream: what is read is written again as it was meant.
pub fn grpc_report(bytes: &[u8]) {
    let Ok(report) = PushReport::decode(bytes) else { return };
    let again = PushReport::decode(&report.encode_to_vec()[..]).expect("what we encode, we decode");
    assert_eq!(report, again);
    if let Some(SourceMessage::Batch { batch, .. } | SourceMessage::Snapshot { batch, .. }) =
        report.message()
    {
        translate(&batch);
    }
}

/// An engine's answer to `GET /kv_event_sources`: what is listed can be written down and read again.
pub fn event_sources(json: &[u8]) {
    let Ok(listed) = ZmqAddress::listed(json, "10.0.0.1") else { return };
    for address in listed.values() {
        assert!(address.publisher.contains(':'), "{address}");
    }
}
