//! Proxies of the environment, by the rules of curl: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and
//! `NO_PROXY`.
//!
//! A request without TLS is forwarded: the proxy gets its whole URL. For TLS, the proxy makes a
//! tunnel to the server, and sees neither request nor response.

use anyhow::{Context, ensure};
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use std::net::IpAddr;
use tokio::net::TcpStream;
use tower_service::Service;

/// A proxy between a command and its server.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) url: Uri,
    /// User and password, as a header.
    pub(super) authorization: Option<HeaderValue>,
}

impl Proxy {
    /// The proxy that the environment names for a server.
    pub(super) fn of_environment(server: &Uri) -> anyhow::Result<Option<Self>> {
        Self::by(&Matcher::from_env(), server)
    }

    /// This machine is called without a proxy, as by other clients: a proxy would call itself.
    fn by(rules: &Matcher, server: &Uri) -> anyhow::Result<Option<Self>> {
        let host = server.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if host == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
            return Ok(None);
        }
        let Some(proxy) = rules.intercept(server) else { return Ok(None) };
        let url = proxy.uri().clone();
        ensure!(
            url.scheme_str() == Some("http"),
            "the proxy for {server} is `{url}`; only http:// proxies are supported: change HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or add `{host}` to NO_PROXY"
        );
        Ok(Some(Self { url, authorization: proxy.basic_auth().cloned() }))
    }

    /// Connects to the proxy, which forwards requests to `peer`.
    pub(super) async fn connect(&self, peer: &str) -> anyhow::Result<TcpStream> {
        let host = self.url.host().unwrap_or_default();
        let address = format!("{host}:{}", self.url.port_u16().unwrap_or(80));
        connect(&address, || format!("cannot reach {}", self.describe(peer))).await
    }

    /// Connects to a server through the proxy.
    pub(super) async fn tunnel(&self, server: &Uri, peer: &str) -> anyhow::Result<TcpStream> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let mut tunnel = Tunnel::new(self.url.clone(), connector);
        if let Some(authorization) = &self.authorization {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        let stream = tunnel.call(server.clone()).await;
        let stream =
            stream.with_context(|| format!("no tunnel through {}", self.describe(peer)))?;
        Ok(stream.into_inner())
    }

    fn describe(&self, peer: &str) -> String {
        let url = &self.url;
        format!("the proxy {url} of {peer}; to connect without it, add the host to NO_PROXY")
    }
}

/// Connects to `host:port`, a proxy or a server.
pub(super) async fn connect(
    address: &str,
    unreachable: impl Fn() -> String,
) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).await.with_context(unreachable)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(rules: &Matcher, server: &'static str) -> anyhow::Result<Option<String>> {
        let proxy = Proxy::by(rules, &Uri::from_static(server))?;
        Ok(proxy.map(|proxy| proxy.url.to_string()))
    }

    #[test]
    fn each_scheme_has_its_proxy_and_this_machine_has_none() {
        let rules =
            Matcher::builder().http("http://one:3128").https("two:3129").no("inside.example");
        let rules = rules.build();
        let of = |server| proxy(&rules, server).unwrap();
        assert_eq!(of("http://router:8080").as_deref(), Some("http://one:3128/"));
        assert_eq!(of("https://router:8443").as_deref(), Some("http://two:3129/"));
        for direct in [
            "http://127.0.0.1:80",
            "http://localhost",
            "https://[::1]:443",
            "http://a.inside.example",
        ] {
            assert_eq!(of(direct), None, "{direct}");
        }
    }

    #[test]
    fn a_proxy_of_another_kind_is_refused_with_the_cure_and_without_its_password() {
        let rules = Matcher::builder().all("socks5://me:private@proxy:1080").build();
        let error = proxy(&rules, "https://router:8443").unwrap_err().to_string();
        assert!(error.contains("`socks5://proxy:1080/`; only http:// proxies"), "{error}");
        assert!(
            error.contains("add `router` to NO_PROXY") && !error.contains("private"),
            "{error}"
        );
    }
}
