//! TLS towards a server that is not a pod: the CAs to trust, the own certificate, the name to
//! expect.
//!
//! Clients of brokers take a rustls configuration and expect the host of their URL in the server's
//! certificate; none has an option for another name. So the configuration checks the name itself.

use crate::material::{ServerIdentity, TlsError, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// How a client and the server of its URL authenticate each other.
///
/// Two are equal if they were made from the same certificates, so that a configuration that is
/// loaded again changes a connection only if its files changed.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    trusted: RootCertStore,
    shown: Vec<CertificateDer<'static>>,
    server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// Trusts certificates signed by `ca` for the host of the URL, or for `server_name`, and shows
    /// `identity` if the server asks for one.
    ///
    /// # Errors
    /// If the key does not match the certificate, or the server name is not valid.
    pub fn new(
        ca: RootCertStore,
        identity: Option<ServerIdentity>,
        server_name: Option<String>,
    ) -> Result<Self, TlsError> {
        let shown = identity.as_ref().map_or_else(Vec::new, |identity| identity.chain.clone());
        let server_name = server_name
            .map(|name| ServerName::try_from(name).map_err(|_| TlsError::Name))
            .transpose()?;
        let mut config = client_config(ca.clone(), identity)?;
        if let Some(name) = server_name.clone() {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(ca.clone()), provider())
                    .build()
                    .map_err(|error| TlsError::Roots(error.to_string()))?;
            config.dangerous().set_certificate_verifier(Arc::new(FixedName { verifier, name }));
        }
        Ok(Self { config: Arc::new(config), trusted: ca, shown, server_name })
    }

    /// The configuration, which checks the server's certificate and name.
    #[must_use]
    pub const fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        self.trusted.roots == other.trusted.roots
            && self.shown == other.shown
            && self.server_name == other.server_name
    }
}

impl Eq for ClientTls {}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// A configuration that trusts certificates signed by `ca` and shows `identity`.
///
/// # Errors
/// If the key does not match the certificate.
pub fn client_config(
    ca: RootCertStore,
    identity: Option<ServerIdentity>,
) -> Result<ClientConfig, TlsError> {
    let pair = |error: Error| TlsError::Pair(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_root_certificates(ca);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(ServerIdentity { chain, key }) => {
            builder.with_client_auth_cert(chain, key).map_err(pair)
        }
    }
}

/// Verifies a server's certificate as usual, but for a name other than that of its URL.
#[derive(Debug)]
struct FixedName {
    verifier: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for FixedName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _of_url: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier.verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::material::roots;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    fn ca() -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn settings_are_equal_if_their_certificates_and_names_are() {
        let pem = ca();
        let tls = |pem: &str, name: Option<&str>| {
            ClientTls::new(roots(pem).unwrap(), None, name.map(str::to_owned)).unwrap()
        };
        assert_eq!(tls(&pem, None), tls(&pem, None));
        assert_ne!(tls(&pem, None), tls(&pem, Some("broker")));
        assert_ne!(tls(&pem, None), tls(&ca(), None));
    }

    #[test]
    fn an_invalid_server_name_is_refused() {
        let refused = ClientTls::new(roots(&ca()).unwrap(), None, Some("a b".to_owned()));
        assert_eq!(refused.unwrap_err(), TlsError::Name);
    }
}
