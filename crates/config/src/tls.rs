//! TLS of listeners and of connections to pods.
//!
//! Certificates and keys are read and checked with the configuration. Every new connection uses the
//! current ones, so renewed certificates take effect when the configuration is reloaded.

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use std::fmt;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use wornpath_execution::PodTls;
pub use wornpath_tls::{ClientTls, ServerIdentity, TlsError, is_ca_as_server, roots, system_roots};
use wornpath_tls::{client_config, provider};

/// Minimum TLS version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Oldest {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The TLS settings of a listener.
#[derive(Clone)]
pub struct ListenerTls {
    config: Arc<ServerConfig>,
    /// Its own certificate.
    certificate: CertificateDer<'static>,
    is_mutual: bool,
}

impl ListenerTls {
    /// TLS with `identity`; with `clients`, callers need a certificate signed by one of those CAs.
    ///
    /// # Errors
    /// If the key does not match the certificate.
    pub fn new(
        identity: ServerIdentity,
        clients: Option<RootCertStore>,
        oldest: Oldest,
    ) -> Result<Self, TlsError> {
        let is_mutual = clients.is_some();
        let certificate = identity.chain.first().cloned().ok_or(TlsError::NoCertificate)?;
        let pair = |error: rustls::Error| TlsError::Pair(error.to_string());
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(oldest.versions())
            .map_err(pair)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier = verifier.build();
                let verifier = verifier.map_err(|error| TlsError::Roots(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(identity.chain, identity.key).map_err(pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certificate, is_mutual })
    }

    /// TLS with a new certificate that no CA has signed.
    ///
    /// # Errors
    /// If the operating system gives no randomness.
    pub fn self_signed() -> Result<Self, TlsError> {
        Self::new(ServerIdentity::self_signed("wornpath")?, None, Oldest::default())
    }

    /// Offers HTTP/2 as well, for gRPC.
    #[must_use]
    pub fn with_http2(mut self) -> Self {
        let config = Arc::make_mut(&mut self.config);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        self
    }

    /// Whether callers must present a certificate.
    #[must_use]
    pub const fn is_mutual(&self) -> bool {
        self.is_mutual
    }

    /// Whether the listener's own certificate is for this name.
    #[must_use]
    pub fn is_for(&self, name: &str) -> bool {
        let certificate = ParsedCertificate::try_from(&self.certificate);
        let name = ServerName::try_from(name);
        certificate.is_ok_and(|certificate| {
            name.is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
        })
    }

    /// Performs the TLS handshake.
    ///
    /// # Errors
    /// If the handshake fails, or the caller presents no valid certificate.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<tokio_rustls::server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await
    }
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_mutual { "ListenerTls(mutual)" } else { "ListenerTls" })
    }
}

/// TLS to pods: trusts certificates signed by `ca`, and presents `identity` if a pod requires one.
///
/// # Errors
/// If the key does not match the certificate, or the server name is not valid.
pub fn pod_tls(
    ca: RootCertStore,
    identity: Option<ServerIdentity>,
    server_name: Option<String>,
) -> Result<PodTls, TlsError> {
    let mut config = client_config(ca, identity)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server_name =
        server_name.map(|name| ServerName::try_from(name).map_err(|_| TlsError::Name));
    Ok(PodTls { config: Arc::new(config), server_name: server_name.transpose()? })
}

impl Oldest {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static ALL: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::Tls12 => &ALL,
            Self::Tls13 => &ALL[..1],
        }
    }
}
