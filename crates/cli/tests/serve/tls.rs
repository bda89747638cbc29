//! TLS on every listener and towards pods, with certificates made for the purpose.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::{Recorder, Stream};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, both as PEM.
pub(crate) struct Pair {
    certificate: String,
    key: String,
}

pub(crate) fn signed(by: &Authority, name: &str, last_year: i32) -> Pair {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(last_year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, by).unwrap();
    Pair { certificate: certificate.pem(), key: key.serialize_pem() }
}

impl Pair {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(self.certificate.as_bytes()).map(Result::unwrap).collect()
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    pub(crate) fn write(&self, folder: &Path, name: &str) {
        fs::write(folder.join(format!("{name}.pem")), &self.certificate).unwrap();
        fs::write(folder.join(format!("{name}.key")), &self.key).unwrap();
    }
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    Arc::new(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What a caller believes in, shows, and speaks.
struct Caller<'a> {
    trusts: &'a Authority,
    shows: Option<&'a Pair>,
    calls_it: &'static str,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
}

static ALL: [&rustls::SupportedProtocolVersion; 2] =
    [&rustls::version::TLS13, &rustls::version::TLS12];

impl<'a> Caller<'a> {
    fn trusting(trusts: &'a Authority) -> Self {
        Self { trusts, shows: None, calls_it: "localhost", versions: &ALL }
    }

    /// The answer's head and body, or what went wrong.
    fn get(&self, address: &str, path: &str) -> Result<String, String> {
        self.send(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n"))
    }

    /// The same for a whole head.
    fn send(&self, address: &str, head: &str) -> Result<String, String> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots(self.trusts));
        let config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.private()).unwrap(),
        };
        let name = ServerName::try_from(self.calls_it).unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        let request = format!("{head}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => Ok(answer),
            Err(error) if answer.is_empty() => Err(error.to_string()),
            Err(_) => Ok(answer),
        }
    }
}

/// A folder with a server's certificate, the callers' authority, and what else a test needs.
pub(crate) fn workshop(test: &str, ours: &Authority) -> PathBuf {
    let folder = folder(test);
    signed(ours, "localhost", 2100).write(&folder, "server");
    fs::write(folder.join("ca.pem"), ours.pem()).unwrap();
    folder
}

#[test]
fn every_listener_accepts_only_certificates_of_its_ca() {
    let ours = authority("ours");
    let foreign = authority("foreign");
    let folder = workshop("mutual", &ours);
    let engines = Engines::start(&["--model", "m"]);
    let tls = "tls: {certificate: server.pem, key: server.key, client_ca: ca.pem, oldest: \"1.3\"}";
    let events = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "listen:\n  client: {{address: \"127.0.0.1:0\", {tls}}}\n  admin: {{address: \"127.0.0.1:0\", {tls}}}\n  \
         events: {{address: \"{events}\", {tls}}}\npods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let admin = gateway.admin.clone().unwrap();
    let good = signed(&ours, "operator", 2100);
    let stranger = signed(&foreign, "operator", 2100);
    let expired = signed(&ours, "operator", 2021);
    for (address, path, found) in [
        (&gateway.address, "/v1/models", "HTTP/1.1 200"),
        (&admin, "/pods", "HTTP/1.1 200"),
        // Only posting is answered there; what counts is that it answers.
        (&events.to_string(), "/events/register", "HTTP/1.1 405"),
    ] {
        let known = Caller { shows: Some(&good), ..Caller::trusting(&ours) };
        let answer = known.get(address, path).unwrap();
        assert!(answer.starts_with(found), "{path}: {answer}");
        for (what, caller) in [
            ("no certificate", Caller::trusting(&ours)),
            ("another authority's", Caller { shows: Some(&stranger), ..Caller::trusting(&ours) }),
            ("an expired one", Caller { shows: Some(&expired), ..Caller::trusting(&ours) }),
            (
                "an old version",
                Caller { shows: Some(&good), versions: &ALL[1..], ..Caller::trusting(&ours) },
            ),
            ("it trusts another CA", Caller { shows: Some(&good), ..Caller::trusting(&foreign) }),
            (
                "it wants another name",
                Caller { shows: Some(&good), calls_it: "other", ..Caller::trusting(&ours) },
            ),
        ] {
            let told = caller.get(address, path);
            assert!(told.is_err(), "{path} with {what}: {told:?}");
        }
        // Neither plain HTTP nor a greeting of TLS 1.1 gets an answer.
        let plain =
            crate::sockets::exchange(address, b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(!plain.contains("HTTP/1.1 200"), "{plain}");
        let mut old = TcpStream::connect(address).unwrap();
        old.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        old.write_all(&hello_of_tls_1_1()).unwrap();
        let mut alert = Vec::new();
        let _ = old.read_to_end(&mut alert);
        assert!(alert.starts_with(&[0x15, 3]) && alert[5] == 2, "no fatal alert: {alert:?}");
    }
}

/// A greeting that offers TLS 1.1 and one cipher.
fn hello_of_tls_1_1() -> Vec<u8> {
    let mut body = vec![0x03, 0x02];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x13, 1, 0]);
    let mut message = vec![1, 0, 0, body.len() as u8];
    message.extend(body);
    let mut record = vec![0x16, 0x03, 0x01, 0, message.len() as u8];
    record.extend(message);
    record
}

#[test]
fn renewed_certificates_are_shown_when_the_configuration_is_read_again() {
    let ours = authority("ours");
    let next = authority("next");
    let folder = workshop("renewed", &ours);
    let engines = Engines::start(&["--model", "m"]);
    let path = folder.join("wornpath.yaml");
    let text = format!(
        "listen: {{client: {{address: \"127.0.0.1:0\", tls: {{certificate: server.pem, key: server.key}}}}}}\n\
         pods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    assert!(Caller::trusting(&ours).get(&gateway.address, "/health").is_ok());
    assert!(Caller::trusting(&next).get(&gateway.address, "/health").is_err());
    fs::write(folder.join("server.pem"), "no certificate").unwrap();
    gateway.signal("-HUP");
    eventually("the bad file is refused", || gateway.log().contains("it contains no certificate"));
    assert!(Caller::trusting(&ours).get(&gateway.address, "/health").is_ok(), "the old one stays");
    signed(&next, "localhost", 2100).write(&folder, "server");
    gateway.signal("-HUP");
    eventually("the new one is shown", || {
        Caller::trusting(&next).get(&gateway.address, "/health").is_ok()
    });
}

#[test]
fn a_listener_with_client_certificates_requires_them_after_any_reload() {
    let ours = authority("ours");
    let folder = workshop("doors", &ours);
    let engines = Engines::start(&["--model", "m"]);
    let events = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = folder.join("wornpath.yaml");
    let write = |listen: &str| {
        let pods = format!("pods: [{{url: \"http://{}\"}}]\n", engines.engines[0].http);
        fs::write(&path, format!("{listen}{pods}")).unwrap();
    };
    let both = |tls: &str| {
        format!(
            "listen:\n  admin: {{address: \"127.0.0.1:0\", {tls}}}\n  events: {{address: \"{events}\", {tls}}}\n"
        )
    };
    let certificate = "certificate: server.pem, key: server.key";
    write(&both(&format!("tls: {{{certificate}, client_ca: ca.pem}}")));
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let admin = gateway.admin.clone().unwrap();
    let good = signed(&ours, "operator", 2100);
    let token = format!("token_digest: \"sha256:{}\"", "0".repeat(64));
    for (times, listen) in
        [both(&format!("{token}, tls: {{{certificate}}}")), both(&token), String::new()]
            .into_iter()
            .enumerate()
    {
        write(&listen);
        gateway.signal("-HUP");
        eventually("it was read again", || {
            gateway.log().matches("wants_restart=[\"listen\"]").count() > times
        });
        for (address, asked) in [(&admin, "/pods"), (&events.to_string(), "/events/register")] {
            assert!(Caller::trusting(&ours).get(address, asked).is_err(), "{listen}: {asked}");
            let head = format!("GET {asked} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let plain = crate::sockets::exchange(address, head.as_bytes());
            assert!(!plain.contains("HTTP/1.1 "), "{listen}: {plain}");
            let known = Caller { shows: Some(&good), ..Caller::trusting(&ours) };
            assert!(known.get(address, asked).is_ok(), "{listen}: {asked}");
        }
    }
}

#[test]
fn a_page_in_the_browser_of_an_operator_with_a_certificate_is_refused() {
    let ours = authority("ours");
    let folder = workshop("operators_browser", &ours);
    signed(&ours, "router.example", 2100).write(&folder, "server");
    let tls = "tls: {certificate: server.pem, key: server.key, client_ca: ca.pem}";
    let text = format!(
        "listen: {{client: \"127.0.0.1:0\", admin: {{address: \"127.0.0.1:0\", {tls}}}}}\n\
         pods: [{{url: \"http://127.0.0.1:1\"}}]\n"
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 0);
    let admin = gateway.admin.clone().unwrap();
    let good = signed(&ours, "operator", 2100);
    let operator =
        Caller { shows: Some(&good), calls_it: "router.example", ..Caller::trusting(&ours) };
    for (headers, found) in [
        ("host: router.example", "HTTP/1.1 200"),
        ("host: 127.0.0.1", "HTTP/1.1 200"),
        ("host: router.example\r\norigin: https://router.example", "HTTP/1.1 200"),
        ("host: router.example\r\norigin: https://evil.example", "HTTP/1.1 401"),
        ("host: router.example\r\nsec-fetch-site: cross-site", "HTTP/1.1 401"),
        ("host: evil.example\r\norigin: https://evil.example", "HTTP/1.1 401"),
        ("host: evil.example", "HTTP/1.1 401"),
    ] {
        let head = format!("GET /pods HTTP/1.1\r\n{headers}\r\n");
        let answer = operator.send(&admin, &head).unwrap();
        assert!(answer.starts_with(found), "{headers}: {answer}");
    }
}

#[test]
fn certificates_that_cannot_be_used_are_refused_at_the_start_with_the_file_and_the_cure() {
    let ours = authority("ours");
    let folder = workshop("unusable", &ours);
    signed(&ours, "localhost", 2100).write(&folder, "other");
    fs::write(folder.join("empty.pem"), "").unwrap();
    for (tls, told) in [
        ("{certificate: server.pem}", "requires `key`"),
        ("{certificate: none.pem, key: server.key}", "cannot read file `none.pem`"),
        ("{certificate: empty.pem, key: server.key}", "it contains no certificate"),
        ("{certificate: server.pem, key: server.pem}", "it contains no private key"),
        ("{certificate: server.pem, key: other.key}", "certificate and key do not match"),
        (
            "{certificate: server.pem, key: server.key, client_ca: empty.pem}",
            "it contains no certificate",
        ),
        ("{certificate: server.pem, key: server.key, oldest: \"1.1\"}", "give one of `1.2`, `1.3`"),
    ] {
        let path = folder.join("wornpath.yaml");
        let text = format!(
            "listen: {{client: {{address: \"127.0.0.1:0\", tls: {tls}}}}}\npods: [{{url: \"http://127.0.0.1:1\"}}]\n"
        );
        fs::write(&path, text).unwrap();
        let (code, shown) = crate::support::gateway::refused(&["-c", path.to_str().unwrap()]);
        assert_eq!(code, Some(78), "{tls}: {shown}");
        assert!(shown.contains(told), "{tls}: {shown}");
        assert!(!shown.contains("PRIVATE KEY-----"), "{shown}");
    }
}

/// An engine behind TLS that wants to see a certificate of `callers`.
fn engine(shows: &Pair, callers: &Authority) -> Recorder {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(callers), provider());
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(shows.chain(), shows.private())
        .unwrap();
    let config = Arc::new(config);
    Recorder::greeting(Arc::new(move |stream| {
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).ok()?;
        Some(Box::new(StreamOwned::new(connection, stream)) as Box<dyn Stream>)
    }))
}

#[test]
fn a_pod_is_called_only_if_its_certificate_is_valid_and_gets_ours() {
    let ours = authority("ours");
    let foreign = authority("foreign");
    let folder = workshop("pods", &ours);
    signed(&ours, "gateway", 2100).write(&folder, "gateway");
    signed(&foreign, "gateway", 2100).write(&folder, "stranger");
    let own = "certificate: gateway.pem, key: gateway.key";
    let cases = [
        ("good", signed(&ours, "127.0.0.1", 2100), format!("ca: ca.pem, {own}"), true),
        (
            "another name that is expected",
            signed(&ours, "engine", 2100),
            format!("ca: ca.pem, {own}, server_name: engine"),
            true,
        ),
        ("expired", signed(&ours, "127.0.0.1", 2021), format!("ca: ca.pem, {own}"), false),
        (
            "another authority",
            signed(&foreign, "127.0.0.1", 2100),
            format!("ca: ca.pem, {own}"),
            false,
        ),
        ("another name", signed(&ours, "engine", 2100), format!("ca: ca.pem, {own}"), false),
        ("we show nothing", signed(&ours, "127.0.0.1", 2100), "ca: ca.pem".to_owned(), false),
        (
            "we show a stranger's",
            signed(&ours, "127.0.0.1", 2100),
            "ca: ca.pem, certificate: stranger.pem, key: stranger.key".to_owned(),
            false,
        ),
    ];
    for (what, shows, tls, is_good) in cases {
        let pod = engine(&shows, &ours);
        let path = folder.join("wornpath.yaml");
        let text = format!("pod_tls: {{{tls}}}\npods: [{{url: \"https://{}\"}}]\n", pod.address);
        fs::write(&path, text).unwrap();
        let gateway = Gateway::start(&["-c", path.to_str().unwrap()], usize::from(is_good));
        let ask = || gateway.post("/v1/completions", &serde_json::json!({"prompt": "a"}));
        if is_good {
            assert_eq!(ask().status, 200, "{what}");
            assert_eq!(pod.posted().len(), 1, "{what}");
        } else {
            // The pod is never up, so it gets no request; nor does it when the gateway probes it.
            eventually("the gateway has tried to connect", || pod.connections() > 0);
            assert_ne!(ask().status, 200, "{what}");
            assert!(pod.posted().is_empty(), "{what}");
        }
    }
}

#[test]
fn with_ca_system_pods_may_have_certificates_of_cas_that_the_system_trusts() {
    let ours = authority("ours");
    let folder = workshop("system", &ours);
    signed(&ours, "gateway", 2100).write(&folder, "gateway");
    let pod = engine(&signed(&ours, "127.0.0.1", 2100), &ours);
    let path = folder.join("wornpath.yaml");
    let text = format!(
        "pod_tls: {{ca: system, certificate: gateway.pem, key: gateway.key}}\npods: [{{url: \"https://{}\"}}]\n",
        pod.address
    );
    fs::write(&path, text).unwrap();
    let arguments = ["-c", path.to_str().unwrap()];
    let with = |ca: &Path| {
        let mut command = crate::support::gateway::command(&arguments);
        command.env("SSL_CERT_FILE", ca).env_remove("SSL_CERT_DIR");
        command
    };
    let gateway = Gateway::spawn(with(&folder.join("ca.pem")), &arguments, 1);
    let answer = gateway.post("/v1/completions", &serde_json::json!({"prompt": "a"}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let refused = with(&folder.join("none.pem")).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(said.contains("this system has no CA certificates"), "{said}");
}
