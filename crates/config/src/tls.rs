//! Certificates: what a listener shows, whom it believes, and how pods are recognised.
//!
//! Files are read and checked with the configuration. What was made of them is looked up for every new
//! connection, so certificates that are renewed take effect when the configuration is read again.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use std::fmt;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use wornpath_execution::PodTls;

/// Certificates that cannot be used. The message names the file's part in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate in a file.
    #[error("it contains no certificate; it must contain PEM blocks `BEGIN CERTIFICATE`")]
    NoCertificate,
    /// Something in a file is not PEM.
    #[error("invalid PEM: {0}")]
    NotPem(String),
    /// No key in a file.
    #[error("it contains no private key; it must contain a PEM block `BEGIN PRIVATE KEY`")]
    NoKey,
    /// Certificate and key do not belong together, or are of a kind that is not known.
    #[error("certificate and key do not match, or are not supported: {0}")]
    Pair(String),
    /// What is to be believed cannot be.
    #[error("invalid CA certificate: {0}")]
    Roots(String),
    /// No name that a certificate can have.
    #[error("it is not a valid server name")]
    Name,
}

/// Minimum TLS version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Oldest {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// What a listener shows and whom it believes.
#[derive(Clone)]
pub struct ListenerTls {
    config: Arc<ServerConfig>,
    is_mutual: bool,
}

/// A certificate chain and its key.
pub struct ServerIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ServerIdentity {
    /// The certificates of a chain, our own first.
    ///
    /// # Errors
    /// If there is none, or something else.
    pub fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| TlsError::NotPem(error.to_string()))?;
        if chain.is_empty() { Err(TlsError::NoCertificate) } else { Ok(chain) }
    }

    /// A private key.
    ///
    /// # Errors
    /// If there is none.
    pub fn key(pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| TlsError::NoKey)
    }

    /// Both together.
    #[must_use]
    pub const fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }
}

/// Those whose signature counts.
///
/// # Errors
/// If there is no certificate, or one that cannot sign.
pub fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in ServerIdentity::chain(pem)? {
        roots.add(certificate).map_err(|error| TlsError::Roots(error.to_string()))?;
    }
    Ok(roots)
}

impl ListenerTls {
    /// Shows `identity`; with `clients`, lets in only whom they signed.
    ///
    /// # Errors
    /// If certificate and key do not go together.
    pub fn new(
        identity: ServerIdentity,
        clients: Option<RootCertStore>,
        oldest: Oldest,
    ) -> Result<Self, TlsError> {
        let is_mutual = clients.is_some();
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
        Ok(Self { config: Arc::new(config), is_mutual })
    }

    /// Offers HTTP/2 too, over which gRPC goes.
    #[must_use]
    pub(crate) fn with_http2(mut self) -> Self {
        let config = Arc::make_mut(&mut self.config);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        self
    }

    /// Whether callers must show a certificate.
    #[must_use]
    pub const fn is_mutual(&self) -> bool {
        self.is_mutual
    }

    /// Greets whoever has connected.
    ///
    /// # Errors
    /// If they cannot agree, or the caller shows no certificate that counts.
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

/// Believes pods that `ca` signed, and shows them `identity`.
///
/// # Errors
/// If certificate and key do not go together, or the name is none.
pub fn pod_tls(
    ca: RootCertStore,
    identity: Option<ServerIdentity>,
    server_name: Option<String>,
) -> Result<PodTls, TlsError> {
    let pair = |error: rustls::Error| TlsError::Pair(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(Oldest::Tls12.versions())
        .map_err(pair)?
        .with_root_certificates(ca);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(ServerIdentity { chain, key }) => {
            builder.with_client_auth_cert(chain, key).map_err(pair)?
        }
    };
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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
