//! What a failed handshake means: what is wrong, and the key of the configuration that cures it.

use rustls::CertificateError as Certificate;
use rustls::{AlertDescription, Error};

/// The TLS error among an error and its sources.
#[must_use]
pub fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    let of_this = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    of_this.and_then(|inner| inner.downcast_ref()).or_else(|| error.source().and_then(tls_error))
}

/// Whether a server was refused because its own certificate is that of a CA, as
/// `openssl req -x509` makes it unless told otherwise. Browsers and OpenSSL accept it, rustls does
/// not.
#[must_use]
pub fn is_ca_as_server(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(Certificate::Other(other))
        if other.to_string().contains("CaUsedAsEndEntity"))
}

/// What is wrong with the TLS of a server, and the cure, if an error or one of its sources is a TLS
/// error. The cure names the keys of a `tls` section.
#[must_use]
pub fn explain(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    Some(match tls_error(error)? {
        // A bad signature is that of another CA of the same name.
        Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            "the server's certificate is not signed by a CA in `ca`; \
             give the CA that signed it, or call another server"
                .to_owned()
        }
        Error::InvalidCertificate(Certificate::NotValidForNameContext { expected, presented }) => {
            format!(
                "the server's certificate is for {}, not for `{}`; write one of its names in the \
                 URL, or set `server_name`",
                presented.join(", "),
                expected.to_str()
            )
        }
        Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            "the server's certificate has expired; renew it, or correct this machine's clock"
                .to_owned()
        }
        error if is_ca_as_server(error) => {
            "the server's certificate is that of a CA; give the server one that this CA signed, \
             with `basicConstraints=CA:FALSE`"
                .to_owned()
        }
        Error::InvalidCertificate(other) => {
            format!("the server's certificate is refused: {other}; give it another one")
        }
        Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::HandshakeFailure),
        ) => format!(
            "the server refuses the client's certificate ({alert:?}); give one that it accepts with \
             `certificate` and `key`"
        ),
        Error::InvalidMessage(_) => {
            "the server does not speak TLS at this address; enable TLS there, or remove `tls`"
                .to_owned()
        }
        other => format!("TLS handshake failed: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;
    use std::io;

    #[test]
    fn an_error_says_what_is_wrong_and_the_cure() {
        let expected = ServerName::try_from("db.internal").unwrap();
        let presented = vec!["DnsName(\"other\")".to_owned()];
        let name = Certificate::NotValidForNameContext { expected, presented };
        for (error, words) in [
            (Error::InvalidCertificate(Certificate::UnknownIssuer), ["CA in `ca`", "give the CA"]),
            (Error::InvalidCertificate(Certificate::BadSignature), ["CA in `ca`", "give the CA"]),
            (Error::InvalidCertificate(name), ["not for `db.internal`", "set `server_name`"]),
            (Error::InvalidCertificate(Certificate::Expired), ["has expired", "renew it"]),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                ["refuses the client's certificate", "`certificate` and `key`"],
            ),
            (
                Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                ["does not speak TLS", "enable TLS"],
            ),
        ] {
            let text = explain(&io::Error::other(error)).unwrap();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert_eq!(explain(&io::Error::other("reset")), None);
    }
}
