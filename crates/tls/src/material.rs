//! Certificates and keys from the text of PEM files.

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// Unusable certificates or keys. The caller adds the name of the file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsError {
    /// The file contains no certificate.
    #[error("it contains no certificate; it must contain PEM blocks `BEGIN CERTIFICATE`")]
    NoCertificate,
    /// The file is not valid PEM.
    #[error("invalid PEM: {0}")]
    NotPem(String),
    /// The file contains no private key.
    #[error("it contains no private key; it must contain a PEM block `BEGIN PRIVATE KEY`")]
    NoKey,
    /// The key does not match the certificate, or its algorithm is not supported.
    #[error("certificate and key do not match, or are not supported: {0}")]
    Pair(String),
    /// A CA certificate cannot be used as a trust anchor.
    #[error("invalid CA certificate: {0}")]
    Roots(String),
    /// The operating system trusts no CA.
    #[error("this system has no CA certificates{0}; install its package `ca-certificates`")]
    NoSystemRoots(String),
    /// The operating system gives no randomness, or there is no room for a certificate.
    #[error("cannot make a certificate: {0}")]
    Made(String),
    /// The configured server name is not valid.
    #[error("it is not a valid server name")]
    Name,
}

/// A certificate chain and its private key.
pub struct ServerIdentity {
    /// The own certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of the own certificate.
    pub key: PrivateKeyDer<'static>,
}

impl ServerIdentity {
    /// Parses a certificate chain, the own certificate first.
    ///
    /// # Errors
    /// If there is no certificate, or the text is not PEM.
    pub fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| TlsError::NotPem(error.to_string()))?;
        if chain.is_empty() { Err(TlsError::NoCertificate) } else { Ok(chain) }
    }

    /// Parses a private key.
    ///
    /// # Errors
    /// If there is no key.
    pub fn key(pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| TlsError::NoKey)
    }

    /// A new key and a certificate for `name` that no CA has signed: for callers that encrypt
    /// without checking who answers.
    ///
    /// # Errors
    /// If the operating system gives no randomness.
    pub fn self_signed(name: &str) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]);
        let made = made.map_err(|error| TlsError::Made(error.to_string()))?;
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        Ok(Self::new(vec![made.cert.der().clone()], key))
    }

    /// An identity of chain and key. Its user checks them against each other.
    #[must_use]
    pub const fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }
}

/// Parses CA certificates.
///
/// # Errors
/// If there is no certificate, or one that cannot be a trust anchor.
pub fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in ServerIdentity::chain(pem)? {
        roots.add(certificate).map_err(|error| TlsError::Roots(error.to_string()))?;
    }
    Ok(roots)
}

/// The CA certificates that this system trusts, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
///
/// # Errors
/// If there are none.
pub fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let reasons = found.errors.iter().map(|error| format!(" ({error})")).collect();
        return Err(TlsError::NoSystemRoots(reasons));
    }
    Ok(roots)
}

/// The cryptography of all TLS connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
