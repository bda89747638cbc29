//! Interfaces of a broker: the sink that a relay publishes to, and how a broker's sink and
//! transport are opened.

use crate::login::BrokerLogin;
use crate::transport::{PodName, Transport};
use crate::wire::Envelope;
use wornpath_tls::ClientTls;

/// Why a broker did not accept an entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SinkError {
    /// It is unreachable, or failed for now. A retry may help.
    #[error("{0}")]
    Unreachable(String),
    /// It never accepts one of the entries. It has those before it.
    #[error(
        "batch {sequence} exceeds the broker's limit with {bytes} bytes and is omitted; raise {cure}"
    )]
    TooLarge {
        /// Its position among the entries to publish.
        at: usize,
        /// Its sequence number.
        sequence: u64,
        /// The size of the entry.
        bytes: usize,
        /// The broker's setting to raise.
        cure: &'static str,
    },
}

/// The broker that a relay publishes to.
pub trait Sink: Send {
    /// The last entry of a pod that the broker has. Connects if needed, and reconnects after an
    /// error.
    fn last(
        &mut self,
        pod: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Appends entries of one pod in their order, and returns when the broker has all of them.
    /// After an error it may have some.
    fn publish(
        &mut self,
        envelopes: &[Envelope<'_>],
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Sends a heartbeat to the current readers: an envelope without a payload that has the number
    /// of the next batch. It is not stored for long.
    fn heartbeat(
        &mut self,
        envelope: Envelope<'_>,
    ) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// Batches of one pod that a relay and a broker keep, as many as an engine itself keeps for replay.
pub(crate) const KEPT_PER_POD: usize = 10_000;

/// A broker's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerStream {
    /// The server, with the scheme and without a user: `nats://host:port`.
    pub url: String,
    /// The stream or topic, or the prefix of the pods' streams.
    pub stream: String,
    /// How to log in, if the broker asks for it.
    pub login: Option<BrokerLogin>,
    /// Encrypts the connection; set if the scheme is one of TLS, and only then.
    pub tls: Option<ClientTls>,
}

/// A broker that is both read from and published to.
pub trait BrokerTransport: Transport + Sized + 'static {
    /// Its publishing side.
    type Sink: Sink + 'static;

    /// A transport that reads the events of `pods`. Connects later.
    ///
    /// # Errors
    /// The address is invalid.
    fn open(address: &BrokerStream, pods: &[PodName]) -> Result<Self, String>;

    /// A sink for a relay. Connects later.
    ///
    /// # Errors
    /// The address is invalid.
    fn open_sink(address: &BrokerStream) -> Result<Self::Sink, String>;
}
