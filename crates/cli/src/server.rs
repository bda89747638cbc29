//! The other end of a client's command, with or without TLS: a gateway, its admin plane, an engine.

use crate::address;
use anyhow::{Context, bail, ensure};
use clap::Args;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wornpath_config::tls::{ServerIdentity, TlsError, pod_tls, roots};
use wornpath_execution::{PodTls, tls_error};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How those at `https://` are recognised, and how they recognise us.
#[derive(Args, Default)]
pub(crate) struct CertificateArguments {
    /// For https://: a PEM file with the certificates of those who sign that side's
    #[arg(long, global = true, value_name = "FILE", env = "WORNPATH_CA")]
    ca: Option<PathBuf>,
    /// A PEM file with the certificate to show, if that side asks for one
    #[arg(long, global = true, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// A PEM file with its private key
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl CertificateArguments {
    /// What the files come to, if there are any.
    fn read(&self) -> anyhow::Result<Option<PodTls>> {
        let own = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(ServerIdentity::new(
                read("--certificate", chain, ServerIdentity::chain)?,
                read("--key", key, ServerIdentity::key)?,
            )),
            _ => bail!("--certificate and --key belong together; give both or neither"),
        };
        let Some(ca) = &self.ca else {
            ensure!(own.is_none(), "--certificate is for https://, which needs --ca too");
            return Ok(None);
        };
        Ok(Some(pod_tls(read("--ca", ca, roots)?, own, None).context("--certificate and --key")?))
    }

    /// How whoever is at `url` is recognised; not at all where that address does not ask for it.
    pub(crate) fn read_for(&self, option: &str, url: &str) -> anyhow::Result<Option<PodTls>> {
        if !url.starts_with("https://") {
            return Ok(None);
        }
        let tls = self.read()?;
        let untold = || {
            format!("{option} is `{url}`; say with --ca FILE whose signature its certificate has")
        };
        Ok(Some(tls.with_context(untold)?))
    }
}

/// Never shows what is in a file.
fn read<T>(
    option: &str,
    path: &Path,
    of_text: fn(&str) -> Result<T, TlsError>,
) -> anyhow::Result<T> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{option}: cannot read {name}"))?;
    of_text(&text).with_context(|| format!("{option} is {name}, and it cannot be used"))
}

/// Who is called.
pub(crate) struct Server {
    /// What it is called where it does not answer.
    who: &'static str,
    authority: String,
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Server {
    /// The one that `option` names.
    pub(crate) fn at(
        who: &'static str,
        (option, url): (&str, &str),
        certificates: &CertificateArguments,
    ) -> anyhow::Result<Self> {
        address::refuse_user(option, url)?;
        let uri: Uri =
            url.parse().with_context(|| format!("{option} is `{url}`, which is no URL"))?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let (Some(scheme), Some(authority), Some(host)) = (scheme, uri.authority(), uri.host())
        else {
            let meant = uri.authority().map_or("host:8080", |authority| authority.as_str());
            bail!("{option} is `{url}`; write it like http://{meant}");
        };
        ensure!(
            matches!(uri.path(), "" | "/") && uri.query().is_none(),
            "{option} is `{url}`; {who} is reached at its host alone, without a path: {scheme}://{authority}"
        );
        // The last word on what is an address: a port that is none, a scheme in capitals.
        address::check(option, url)?;
        let tls = certificates.read_for(option, url)?.map(|tls| {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host)
                .with_context(|| format!("{option} is `{url}`, whose host no certificate names"))?;
            anyhow::Ok((TlsConnector::from(tls.config), name))
        });
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Self {
            who,
            authority: authority.to_string(),
            address: format!("{host}:{port}"),
            tls: tls.transpose()?,
        })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The value of the `host` header.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Sends a request over a connection of its own, which lives in `connection`; the head of the answer comes `within`
    /// a time, if one is given.
    pub(crate) async fn send<B>(
        &self,
        request: Request<B>,
        within: Option<Duration>,
        connection: &mut JoinSet<()>,
    ) -> anyhow::Result<Response<Incoming>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let Self { who, address, .. } = self;
        let silent = || format!("{who} at {address} does not answer");
        let mut sender =
            timeout(CONNECT_WITHIN, self.connect(connection)).await.with_context(silent)??;
        let answering = sender.send_request(request);
        let answer = match within {
            None => answering.await,
            Some(time) => timeout(time, answering).await.with_context(silent)?,
        };
        answer.map_err(|error| {
            let told = match tls_error(&error) {
                Some(rustls::Error::AlertReceived(_)) => self.distrusted(),
                _ if error.is_user() => format!("what {who} was to be sent could not be"),
                _ if error.is_parse() && self.tls.is_none() => {
                    format!("{who} at {address} did not answer in HTTP; if it speaks TLS, write https://")
                }
                _ if error.is_parse() => format!("{who} at {address} did not answer in HTTP"),
                _ => format!("{who} at {address} broke off"),
            };
            anyhow::Error::new(error).context(told)
        })
    }

    fn distrusted(&self) -> String {
        let Self { who, address, .. } = self;
        format!("{who} at {address} does not trust us; it may want another --certificate and --key")
    }

    async fn connect<B>(&self, connection: &mut JoinSet<()>) -> anyhow::Result<SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let Self { who, address, .. } = self;
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("cannot reach {who} at {address}"))?;
        let Some((connector, name)) = &self.tls else {
            return begin(stream, connection).await;
        };
        let stream = connector.connect(name.clone(), stream).await.map_err(|error| {
            let told = match tls_error(&error) {
                Some(rustls::Error::InvalidCertificate(_)) => {
                    format!("{who} at {address} is not trusted")
                }
                Some(rustls::Error::AlertReceived(_)) => self.distrusted(),
                _ => format!("no TLS with {who} at {address}; if it speaks without, write http://"),
            };
            anyhow::Error::new(error).context(told)
        })?;
        begin(stream, connection).await
    }
}

/// Whether it would come to the same if it were tried again: one of both sides does not trust the other.
pub(crate) fn is_distrust(error: &anyhow::Error) -> bool {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    matches!(tls_error(error.as_ref()), Some(AlertReceived(_) | InvalidCertificate(_)))
}

async fn begin<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: &mut JoinSet<()>,
) -> anyhow::Result<SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (sender, driver) = handshake(TokioIo::new(stream)).await?;
    connection.spawn(async move {
        // What goes wrong is told to whoever waits for the answer.
        let _ = driver.await;
    });
    Ok(sender)
}
