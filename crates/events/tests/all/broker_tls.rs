//! TLS to brokers: a trusted certificate, one of another CA, and one for another name.

use crate::brokers::POD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::time::Duration;
use tokio::time::timeout;
use wornpath_events::{BrokerStream, BrokerTransport, Sink, SourceMessage, SourceSignal};
use wornpath_tls::{ClientTls, roots};

/// A CA, and a certificate for `localhost` that it signed, as PEM.
struct Certificates {
    ca: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap().pem();
        Self { ca: ca.pem(), certificate, key: key.serialize_pem() }
    }

    /// A stream of a broker that these are trusted for.
    fn stream(&self, url: &str, server_name: Option<&str>) -> BrokerStream {
        let name = server_name.map(str::to_owned);
        let tls = ClientTls::new(roots(&self.ca).unwrap(), None, name).unwrap();
        BrokerStream { url: url.to_owned(), stream: "kv".to_owned(), login: None, tls: Some(tls) }
    }
}

/// Why a router, and a relay, cannot use a broker.
async fn refusals<T: BrokerTransport>(address: &BrokerStream) -> [String; 2] {
    let mut transport = T::open(address, &[POD.into()]).unwrap();
    let signal = timeout(Duration::from_secs(10), transport.next()).await;
    let SourceSignal::Pod(_, SourceMessage::Unreachable(router)) = signal.unwrap() else {
        panic!("the broker was accepted");
    };
    let relay = T::open_sink(address).unwrap().last(POD).await.unwrap_err();
    [router, relay.to_string()]
}

/// A broker at `url`, which is at 127.0.0.1, is refused for the right reason.
#[cfg(any(feature = "redis", feature = "nats"))]
async fn refuse<T: BrokerTransport>(url: &str, certificates: &Certificates) {
    for refusal in refusals::<T>(&Certificates::new().stream(url, Some("localhost"))).await {
        assert_eq!(
            refusal,
            "the server's certificate is not signed by a CA in `ca`; give the CA that signed it, \
             or call another server"
        );
    }
    for refusal in refusals::<T>(&certificates.stream(url, None)).await {
        assert!(refusal.contains("localhost"), "{refusal}");
        assert!(
            refusal.ends_with(
                "not for `127.0.0.1`; write one of its names in the URL, or set `server_name`"
            ),
            "{refusal}"
        );
    }
}

#[cfg(any(feature = "redis", feature = "nats"))]
async fn use_and_refuse<T: BrokerTransport>(server: Option<crate::server::Server>) {
    use crate::brokers::{fill, is_connected, receive};
    let Some(mut server) = server else { return };
    let certificates = Certificates::new();
    server.put("ca.crt", &certificates.ca);
    server.put("server.crt", &certificates.certificate);
    server.put("server.key", &certificates.key);
    server.start();
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    for address in
        [certificates.stream(&by_name, None), certificates.stream(&by_address, Some("localhost"))]
    {
        let mut sink = T::open_sink(&address).unwrap();
        fill(&mut sink, 1, 1).await;
        let mut transport = T::open(&address, &[POD.into()]).unwrap();
        assert_eq!(transport.name(), format!("{}/kv", address.url));
        while !is_connected(&transport.next().await) {}
        fill(&mut sink, 1, 3).await;
        assert_eq!(receive(&mut transport, 3).await, [0, 1, 2]);
    }
    refuse::<T>(&by_address, &certificates).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_is_used_over_tls_only_if_its_certificate_is_trusted_and_has_its_name() {
    use_and_refuse::<wornpath_events::RedisStreams>(crate::server::Server::tls_redis()).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_is_used_over_tls_only_if_its_certificate_is_trusted_and_has_its_name() {
    use_and_refuse::<wornpath_events::Nats>(crate::server::Server::tls_nats()).await;
}

/// Against a server that completes the handshake and no more: the test broker has no TLS.
#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_kafka_is_called_over_tls_only_if_its_certificate_is_trusted_and_has_its_name() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;
    let certificates = Certificates::new();
    let chain = vec![CertificateDer::from_pem_slice(certificates.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(certificates.key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (received, mut requests) = tokio::sync::mpsc::channel(16);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 6];
            if stream.read_exact(&mut head).await.is_ok() {
                let _ = received.try_send(head);
            }
        }
    });
    let url = format!("kafka+ssl://127.0.0.1:{port}");
    // The client has flattened the error to a text, so there is no cure in it.
    for address in
        [Certificates::new().stream(&url, Some("localhost")), certificates.stream(&url, None)]
    {
        for refusal in refusals::<wornpath_events::Kafka>(&address).await {
            assert!(refusal.contains("invalid peer certificate"), "{refusal}");
        }
    }
    assert!(requests.try_recv().is_err(), "nothing was sent to a server that is not trusted");
    let trusted = certificates.stream(&url, Some("localhost"));
    let mut sink = wornpath_events::Kafka::open_sink(&trusted).unwrap();
    sink.last(POD).await.unwrap_err();
    // The key of an `ApiVersions` request, behind its length.
    assert_eq!(requests.try_recv().unwrap()[4..], [0, 18]);
}
