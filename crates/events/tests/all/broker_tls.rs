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

/// A broker at a URL with an address is used by its name, and by its address.
#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
async fn use_it<T: BrokerTransport>(by_address: &str, certificates: &Certificates) {
    use crate::brokers::{fill, is_connected, receive};
    let by_name = by_address.replace("127.0.0.1", "localhost");
    for address in
        [certificates.stream(&by_name, None), certificates.stream(by_address, Some("localhost"))]
    {
        let mut sink = T::open_sink(&address).unwrap();
        fill(&mut sink, 1, 1).await;
        let mut transport = T::open(&address, &[POD.into()]).unwrap();
        assert_eq!(transport.name(), format!("{}/kv", address.url));
        while !is_connected(&transport.next().await) {}
        fill(&mut sink, 1, 3).await;
        assert_eq!(receive(&mut transport, 3).await, [0, 1, 2]);
    }
}

#[cfg(any(feature = "redis", feature = "nats"))]
async fn use_and_refuse<T: BrokerTransport>(server: Option<crate::server::Server>) {
    let Some(mut server) = server else { return };
    let certificates = Certificates::new();
    server.put("ca.crt", &certificates.ca);
    server.put("server.crt", &certificates.certificate);
    server.put("server.key", &certificates.key);
    server.start();
    let by_address = server.url();
    use_it::<T>(&by_address, &certificates).await;
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

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_that_demands_tls_at_an_address_without_is_refused() {
    let Some(mut server) = crate::server::Server::tls_nats() else { return };
    let certificates = Certificates::new();
    server.put("server.crt", &certificates.certificate);
    server.put("server.key", &certificates.key);
    server.start();
    let url = server.url().replace("tls://", "nats://");
    let address = BrokerStream { url, stream: "kv".to_owned(), login: None, tls: None };
    // Until the server has started, it is unreachable.
    let refused = async {
        loop {
            let refusals = refusals::<wornpath_events::Nats>(&address).await;
            if refusals.iter().all(|refusal| refusal.contains("the server demands TLS")) {
                return;
            }
            let is_expected =
                |text: &String| text.contains("refused") || text.contains("demands TLS");
            assert!(refusals.iter().all(is_expected), "{refusals:?}");
        }
    };
    timeout(Duration::from_secs(20), refused).await.unwrap();
}

/// A listener with TLS before a broker without: the test broker for Kafka has none.
#[cfg(feature = "kafka")]
struct TlsProxy {
    port: u16,
    /// Where clients' requests begin to arrive.
    requests: tokio::sync::mpsc::Receiver<()>,
    _tasks: tokio::task::JoinSet<()>,
}

#[cfg(feature = "kafka")]
impl TlsProxy {
    async fn start(certificates: &Certificates, broker: u16) -> Self {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        use tokio::net::{TcpListener, TcpStream};
        let chain = CertificateDer::from_pem_slice(certificates.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(certificates.key.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![chain], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (received, requests) = tokio::sync::mpsc::channel(16);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(client) = acceptor.accept(stream).await else { continue };
                let Ok(server) = TcpStream::connect(("127.0.0.1", broker)).await else { continue };
                let received = received.clone();
                connections.spawn(async move {
                    let (mut from_client, to_client) = tokio::io::split(client);
                    let (from_server, mut to_server) = server.into_split();
                    let responses = Self::relay_responses(from_server, to_client, broker, port);
                    let requests = async {
                        use tokio::io::{AsyncReadExt, AsyncWriteExt};
                        let mut chunk = vec![0; 1 << 16];
                        while let Ok(length @ 1..) = from_client.read(&mut chunk).await {
                            let _ = received.try_send(());
                            if to_server.write_all(&chunk[..length]).await.is_err() {
                                break;
                            }
                        }
                    };
                    tokio::select! {
                        () = responses => {}
                        () = requests => {}
                    }
                });
            }
        });
        Self { port, requests, _tasks: tasks }
    }

    /// Relays responses, in which the broker's address is replaced by that of the proxy: clients
    /// go on to the address that a broker tells them.
    async fn relay_responses(
        mut from: impl tokio::io::AsyncRead + Unpin,
        mut to: impl tokio::io::AsyncWrite + Unpin,
        broker: u16,
        port: u16,
    ) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let address =
            |host: &str, port: u16| [host.as_bytes(), &i32::from(port).to_be_bytes()].concat();
        let told = address("127.0.0.1", broker);
        // Of the same length.
        let own = address("localhost", port);
        while let Ok(length) = from.read_u32().await {
            let mut response = vec![0; length as usize];
            if from.read_exact(&mut response).await.is_err() {
                return;
            }
            let found = response.windows(told.len()).position(|window| window == told);
            if let Some(at) = found {
                response[at..at + own.len()].copy_from_slice(&own);
            }
            let framed = [&length.to_be_bytes()[..], &response].concat();
            if to.write_all(&framed).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_kafka_is_used_over_tls_only_if_its_certificate_is_trusted_and_has_its_name() {
    let Some(mut server) = crate::server::Server::kafka() else { return };
    server.start();
    let certificates = Certificates::new();
    let mut proxy = TlsProxy::start(&certificates, server.advertised()).await;
    let url = format!("kafka+ssl://127.0.0.1:{}", proxy.port);
    // The client has flattened the error to a text, so there is no cure in it.
    for address in
        [Certificates::new().stream(&url, Some("localhost")), certificates.stream(&url, None)]
    {
        for refusal in refusals::<wornpath_events::Kafka>(&address).await {
            assert!(refusal.contains("invalid peer certificate"), "{refusal}");
        }
    }
    assert!(proxy.requests.try_recv().is_err(), "a server that is not trusted got a request");
    use_it::<wornpath_events::Kafka>(&url, &certificates).await;
    proxy.requests.try_recv().expect("it was used over TLS");
}
