//! Transports of cache events: the ZeroMQ protocol, gRPC reports, and the list of an engine's
//! publishers. Redis, NATS and Kafka carry envelopes, which `wire` covers.

use crate::wire::translate;
use prost::Message as _;
use tokio::io::{join, sink};
use wornpath_events::grpc::Report;
use wornpath_events::wire::{WireBatch, WireLimits, WireMessage, decode};
use wornpath_events::zmtp::{SocketKind, ZmtpConnection};
use wornpath_events::{SourceMessage, ZmqAddress};

/// All bytes that a peer sends over one connection; the first chooses our socket type.
pub fn zmtp_stream(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let own = [SocketKind::Sub, SocketKind::Dealer, SocketKind::Router, SocketKind::Pub]
        [usize::from(kind % 4)];
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without timers and sockets").block_on(async {
        let stream = join(bytes, sink());
        let Ok(mut connection) = ZmtpConnection::handshake(stream, own).await else { return };
        let mut batch = WireBatch::default();
        // Terminates: the end of the stream is an error.
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

/// A gRPC report: a report that decodes is equal after encoding and decoding it again.
pub fn grpc_report(bytes: &[u8]) {
    let Ok(report) = Report::decode(bytes) else { return };
    let again = Report::decode(&report.encode_to_vec()[..]).expect("what we encode, we decode");
    assert_eq!(report, again);
    if let Some(SourceMessage::Batch { batch, .. } | SourceMessage::Snapshot { batch, .. }) =
        report.message()
    {
        translate(&batch);
    }
}

/// An engine's answer to `GET /kv_event_sources`: every listed address has a port.
pub fn event_sources(json: &[u8]) {
    let Ok(listed) = ZmqAddress::listed(json, "10.0.0.1") else { return };
    for address in listed.values() {
        assert!(address.publisher.contains(':'), "{address}");
    }
}
