//! Where a command's requests go, with or without TLS and a proxy: a gateway, its admin plane, an
//! engine.

use super::proxy::{Proxy, connect};
use crate::address;
use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::PROXY_AUTHORIZATION;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, RootCertStore};
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wornpath_config::tls::{
    ClientTls, ServerIdentity, TlsError, is_ca_as_server, pod_tls, roots, system_roots,
};
use wornpath_execution::{PodTls, tls_error};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for `https://` addresses: the CA to trust, and the client certificate.
#[derive(Args, Default)]
pub(crate) struct TlsArguments {
    /// For https:// addresses: PEM file with the CA certificates to trust; default: those of the
    /// system
    #[arg(long, global = true, value_name = "FILE", env = "WORNPATH_CA")]
    ca: Option<PathBuf>,
    /// PEM file with the client certificate, if the server requires one
    #[arg(long, global = true, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// What makes TLS settings of CAs, an own identity and the server's name.
type MakeTls<T> = fn(RootCertStore, Option<ServerIdentity>, Option<String>) -> Result<T, TlsError>;

impl TlsArguments {
    fn read<T>(&self, make: MakeTls<T>) -> anyhow::Result<T> {
        let identity = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(ServerIdentity::new(
                read("--certificate", chain, ServerIdentity::chain)?,
                read("--key", key, ServerIdentity::key)?,
            )),
            _ => bail!("--certificate and --key belong together; give both or neither"),
        };
        let roots = match &self.ca {
            Some(ca) => read("--ca", ca, roots)?,
            None => system_roots()
                .map_err(|error| anyhow!("{error}, or give the CA of the server with --ca FILE"))?,
        };
        make(roots, identity, None).context("--certificate and --key")
    }

    /// The TLS settings for `url`; none if its scheme is `http`.
    pub(crate) fn read_for(&self, url: &str) -> anyhow::Result<Option<PodTls>> {
        url.starts_with("https://").then(|| self.read(pod_tls)).transpose()
    }

    /// The TLS settings for a broker whose scheme is one of TLS.
    pub(crate) fn read_broker(&self) -> anyhow::Result<ClientTls> {
        self.read(ClientTls::new)
    }
}

/// Reads a PEM file; errors never show its content.
fn read<T>(option: &str, path: &Path, parse: fn(&str) -> Result<T, TlsError>) -> anyhow::Result<T> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{option}: cannot read {name}"))?;
    parse(&text).with_context(|| format!("{option}: invalid PEM file {name}"))
}

/// A server that requests are sent to.
pub(crate) struct Endpoint {
    /// What errors call it, such as `the gateway`.
    peer: &'static str,
    /// Scheme and authority.
    url: Uri,
    authority: String,
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    proxy: Option<Proxy>,
}

impl Endpoint {
    /// The server at the URL that a command line option gives.
    pub(crate) fn new(
        peer: &'static str,
        option: &str,
        url: &str,
        tls: &TlsArguments,
    ) -> anyhow::Result<Self> {
        address::refuse_user(option, url)?;
        let uri: Uri = url.parse().with_context(|| format!("{option} is `{url}`, not a URL"))?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let (Some(scheme), Some(authority), Some(host)) = (scheme, uri.authority(), uri.host())
        else {
            let meant = uri.authority().map_or("host:8080", |authority| authority.as_str());
            bail!("{option} is `{url}`; write it like http://{meant}");
        };
        ensure!(
            matches!(uri.path(), "" | "/") && uri.query().is_none(),
            "{option} is `{url}`; give the address of {peer} without a path: {scheme}://{authority}"
        );
        // Also refuses an invalid port and a scheme in capitals.
        address::check(option, url)?;
        let tls = tls.read_for(url)?.map(|tls| {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host)
                .with_context(|| format!("{option} is `{url}`: invalid host name for TLS"))?;
            anyhow::Ok((TlsConnector::from(tls.config), name))
        });
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Self {
            peer,
            authority: authority.to_string(),
            address: format!("{host}:{port}"),
            tls: tls.transpose()?,
            proxy: Proxy::of_environment(&uri)?,
            url: uri,
        })
    }

    /// A server without TLS at a known socket address, which is called without a proxy.
    pub(crate) fn plain(peer: &'static str, address: SocketAddr) -> Self {
        let address = address.to_string();
        let authority = address.clone();
        Self { peer, url: Uri::default(), authority, address, tls: None, proxy: None }
    }

    /// The address to connect to, as `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The value of the `host` header.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Sends a request over a new connection, which lives in `connection`. The head of the response
    /// must arrive within `response_timeout`, if one is given.
    pub(super) async fn send<B>(
        &self,
        mut request: Request<B>,
        response_timeout: Option<Duration>,
        connection: &mut JoinSet<()>,
    ) -> anyhow::Result<Response<Incoming>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let Self { peer, address, .. } = self;
        let mut sender =
            timeout(CONNECT_TIMEOUT, self.connect(connection)).await.with_context(|| {
                let seconds = CONNECT_TIMEOUT.as_secs();
                let proxy = self.proxy.as_ref().map_or_else(String::new, |proxy| {
                    let url = &proxy.url;
                    format!(
                        " through the proxy {url}; to connect without it, add the host to NO_PROXY"
                    )
                });
                format!("timeout: no connection to {peer} at {address} within {seconds} s{proxy}")
            })??;
        if let (Some(proxy), None) = (&self.proxy, &self.tls) {
            *request.uri_mut() = self.whole_url(request.uri())?;
            if let Some(authorization) = &proxy.authorization {
                request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
        let response = sender.send_request(request);
        let response = match response_timeout {
            None => response.await,
            Some(time) => timeout(time, response).await.with_context(|| {
                let seconds = time.as_secs();
                format!("timeout: no response from {peer} at {address} within {seconds} s")
            })?,
        };
        response.map_err(|error| {
            let context = match tls_error(&error) {
                Some(rustls::Error::AlertReceived(_)) => self.certificate_rejected(),
                _ if error.is_user() => format!("cannot send the request to {peer} at {address}"),
                _ if error.is_parse() && self.tls.is_none() => {
                    format!(
                        "{peer} at {address} does not speak HTTP; if it uses TLS, write https://"
                    )
                }
                _ if error.is_parse() => format!("{peer} at {address} does not speak HTTP"),
                _ => format!("{peer} at {address} closed the connection before it responded"),
            };
            anyhow::Error::new(error).context(context)
        })
    }

    /// The URL of a path of this server, which a proxy needs to forward a request.
    fn whole_url(&self, path: &Uri) -> anyhow::Result<Uri> {
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = path.path_and_query().cloned();
        Ok(Uri::from_parts(parts)?)
    }

    fn certificate_rejected(&self) -> String {
        let Self { peer, address, .. } = self;
        format!(
            "{peer} at {address} rejected our certificate; give another --certificate and --key"
        )
    }

    async fn connect<B>(&self, connection: &mut JoinSet<()>) -> anyhow::Result<SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let Self { peer, address, .. } = self;
        let Some((connector, name)) = &self.tls else {
            let stream = match &self.proxy {
                Some(proxy) => proxy.connect(peer).await?,
                None => connect(address, || format!("cannot reach {peer} at {address}")).await?,
            };
            return start_http(stream, connection).await;
        };
        let stream = match &self.proxy {
            Some(proxy) => proxy.tunnel(&self.url, peer).await?,
            None => connect(address, || format!("cannot reach {peer} at {address}")).await?,
        };
        let stream = connector.connect(name.clone(), stream).await.map_err(|error| {
            let context = match tls_error(&error) {
                Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => format!(
                    "the certificate of {peer} at {address} is not trusted; give its CA with --ca FILE"
                ),
                Some(error) if is_ca_as_server(error) => format!(
                    "the certificate of {peer} at {address} is that of a CA; give the server one that this CA signed, with `basicConstraints=CA:FALSE`"
                ),
                Some(rustls::Error::InvalidCertificate(_)) => {
                    format!("the certificate of {peer} at {address} is not trusted")
                }
                Some(rustls::Error::AlertReceived(_)) => self.certificate_rejected(),
                _ => format!(
                    "TLS handshake with {peer} at {address} failed; if it does not use TLS, write http://"
                ),
            };
            anyhow::Error::new(error).context(context)
        })?;
        start_http(stream, connection).await
    }
}

/// Whether one side rejected the certificate of the other, so that a retry would fail alike.
pub(crate) fn is_tls_rejection(error: &anyhow::Error) -> bool {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    matches!(tls_error(error.as_ref()), Some(AlertReceived(_) | InvalidCertificate(_)))
}

async fn start_http<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: &mut JoinSet<()>,
) -> anyhow::Result<SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (sender, driver) = handshake(TokioIo::new(stream)).await?;
    connection.spawn(async move {
        // The sender reports errors of the connection to the caller.
        let _ = driver.await;
    });
    Ok(sender)
}
