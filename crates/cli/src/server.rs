//! The other end of a client's command: a gateway or its admin plane, with or without TLS.

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
use wornpath_execution::PodTls;
use wornpath_gateway::tls::{Identity, TlsError, pod_tls, roots};

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
    pub(crate) fn read(&self) -> anyhow::Result<Option<PodTls>> {
        let own = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Identity::new(
                read("--certificate", chain, Identity::chain)?,
                read("--key", key, Identity::key)?,
            )),
            _ => bail!("--certificate and --key belong together; give both or neither"),
        };
        let Some(ca) = &self.ca else {
            ensure!(own.is_none(), "--certificate is for https://, which needs --ca too");
            return Ok(None);
        };
        Ok(Some(pod_tls(read("--ca", ca, roots)?, own, None).context("--certificate and --key")?))
    }

    /// The same, where `url` may need it.
    pub(crate) fn read_for(&self, option: &str, url: &str) -> anyhow::Result<Option<PodTls>> {
        let tls = self.read()?;
        ensure!(
            tls.is_some() || !url.starts_with("https://"),
            "{option} is `{url}`; say with --ca FILE whose signature its certificate has"
        );
        Ok(tls)
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

/// A gateway or its admin plane.
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
        let is_secret = scheme == "https";
        let tls = certificates.read_for(option, url)?.filter(|_| is_secret);
        let tls = tls.map(|tls| {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host)
                .with_context(|| format!("{option} is `{url}`, whose host no certificate names"))?;
            anyhow::Ok((TlsConnector::from(tls.config), name))
        });
        let port = uri.port_u16().unwrap_or(if is_secret { 443 } else { 80 });
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
        answer.with_context(|| {
            let cure = if self.tls.is_none() { "; if it speaks TLS, write https://" } else { "" };
            format!("{who} at {address} did not answer in HTTP{cure}")
        })
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
        let stream = connector.connect(name.clone(), stream).await;
        let stream = stream.with_context(|| format!("{who} at {address} is not trusted"))?;
        begin(stream, connection).await
    }
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
