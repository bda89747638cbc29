//! The commands that call a gateway, through a proxy and with the CAs of the system.

use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use crate::tls::{authority, signed, workshop};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A proxy that takes every host for one server.
struct TinyProxy {
    address: String,
    /// The head of each request that it got.
    heads: Receiver<String>,
}

impl TinyProxy {
    fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, heads) = channel();
        let server = server.to_owned();
        let serve = move || {
            for client in listener.incoming() {
                let connection = Connection { client: client.unwrap(), heads: sender.clone() };
                let server = server.clone();
                let _ends_with_its_client =
                    std::thread::Builder::new().spawn(move || connection.relay(&server)).unwrap();
            }
        };
        let _ends_with_the_test = std::thread::Builder::new().spawn(serve).unwrap();
        Self { address, heads }
    }
}

struct Connection {
    client: TcpStream,
    heads: Sender<String>,
}

impl Connection {
    fn relay(mut self, server: &str) {
        let mut lines = BufReader::new(self.client.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if lines.read_line(&mut head).unwrap() == 0 {
                return;
            }
        }
        self.heads.send(head.clone()).unwrap();
        if !head.contains("proxy-authorization: Basic bWU6cHJpdmF0ZQ==")
            && !head.contains("Proxy-Authorization: Basic bWU6cHJpdmF0ZQ==")
        {
            let refused = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
            return self.client.write_all(refused.as_bytes()).unwrap();
        }
        let mut upstream = TcpStream::connect(server).unwrap();
        if head.starts_with("CONNECT ") {
            self.client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        } else {
            // One request a connection, in origin form.
            let path = head.split_once("http://").unwrap().1.split_once('/').unwrap().1;
            let method = head.split(' ').next().unwrap();
            write!(upstream, "{method} /{path}").unwrap();
        }
        let mut answers = upstream.try_clone().unwrap();
        let mut client = self.client;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Ends when either side has closed.
                let _ = std::io::copy(&mut lines, &mut upstream);
                let _ = upstream.shutdown(Shutdown::Write);
            });
            let _ = std::io::copy(&mut answers, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        });
    }
}

/// Whether a command succeeded, and all that it said.
fn command(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.current_dir(folder).args(arguments);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn with_login(proxy: &TinyProxy) -> String {
    format!("http://me:private@{}", proxy.address)
}

#[test]
fn requests_without_tls_are_forwarded_by_the_proxy_of_the_environment() {
    let folder = crate::support::gateway::folder("forwarded");
    let engines = Engines::start(&["--model", "m"]);
    let batches = folder.join("batches");
    let gateway = Gateway::in_front_of(&engines, &["--batches", batches.to_str().unwrap()]);
    let proxy = TinyProxy::before(&gateway.address);
    fs::write(
        folder.join("lines.jsonl"),
        "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": \"m\", \"prompt\": \"a\", \"max_tokens\": 1}}\n",
    )
    .unwrap();
    let url = with_login(&proxy);
    let submit = ["batch", "submit", "lines.jsonl", "--endpoint", "/v1/completions", "--watch"];
    let submit = [&submit[..], &["--gateway", "http://router.test:8080"]].concat();
    let (is_done, said) = command(&folder, &submit, &[("HTTP_PROXY", &url)]);
    assert!(is_done && said.contains("completed: 1 of 1 answered"), "{said}");
    let first = proxy.heads.try_recv().unwrap();
    assert!(first.starts_with("POST http://router.test:8080/v1/files HTTP/1.1\r\n"), "{first}");
    assert!(first.contains("host: router.test:8080\r\n"), "{first}");

    let list = ["batch", "list", "--gateway", "http://router.test:8080"];
    let unknown = format!("http://{}", proxy.address);
    let (is_done, said) = command(&folder, &list, &[("HTTP_PROXY", &unknown)]);
    assert!(!is_done && said.contains("407 Proxy Authentication Required"), "{said}");
    let unreachable = "http://127.0.0.1:9";
    let (is_done, said) = command(&folder, &list, &[("HTTP_PROXY", unreachable)]);
    assert!(!is_done && said.contains("cannot reach the proxy http://127.0.0.1:9/"), "{said}");
    assert!(said.contains("add the host to NO_PROXY"), "{said}");
    let direct = [("HTTP_PROXY", unreachable), ("NO_PROXY", "router.test")];
    let (is_done, said) = command(&folder, &list, &direct);
    assert!(!is_done && said.contains("cannot reach the gateway at router.test:8080"), "{said}");
    let near = format!("http://{}", gateway.address);
    let near = ["batch", "list", "--gateway", &near];
    let (is_done, said) = command(&folder, &near, &[("HTTP_PROXY", unreachable)]);
    assert!(is_done, "this machine is called without a proxy: {said}");
}

#[test]
fn tls_goes_through_a_tunnel_and_trusts_the_cas_of_the_system() {
    let ours = authority("ours");
    let folder = workshop("tunnel", &ours);
    signed(&ours, "router.test", 2100).write(&folder, "server");
    signed(&ours, "operator", 2100).write(&folder, "operator");
    let engines = Engines::start(&["--model", "m"]);
    let text = format!(
        "listen: {{client: {{address: \"127.0.0.1:0\", tls: {{certificate: server.pem, key: server.key, client_ca: ca.pem}}}}}}\n\
         pods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let batches = folder.join("batches");
    let gateway =
        Gateway::start(&["-c", path.to_str().unwrap(), "--batches", batches.to_str().unwrap()], 1);
    let proxy = TinyProxy::before(&gateway.address);
    let url = with_login(&proxy);
    let shown = ["--certificate", "operator.pem", "--key", "operator.key"];
    let list = ["batch", "list", "--gateway", "https://router.test:8443"];
    let list = [&list[..], &shown].concat();
    let trusting = [("HTTPS_PROXY", url.as_str()), ("SSL_CERT_FILE", "ca.pem")];
    let (is_done, said) = command(&folder, &list, &trusting);
    assert!(is_done, "{said}");
    let head = proxy.heads.try_recv().unwrap();
    assert!(head.starts_with("CONNECT router.test:8443 HTTP/1.1\r\n"), "{head}");
    assert!(!head.contains("authorization: Bearer"), "{head}");

    let (is_done, said) = command(&folder, &list, &[("HTTPS_PROXY", &url)]);
    assert!(!is_done && said.contains("--ca FILE"), "the system does not know our CA: {said}");
    let nothing = [("SSL_CERT_FILE", "none.pem"), ("SSL_CERT_DIR", "none")];
    let (is_done, said) = command(&folder, &list, &nothing);
    assert!(!is_done && said.contains("this system has no CA certificates ("), "{said}");
    let with_ca = [&list[..], &["--ca", "ca.pem"]].concat();
    let (is_done, said) = command(&folder, &with_ca, &[("HTTPS_PROXY", &url), nothing[0]]);
    assert!(is_done, "{said}");
    let unknown = format!("http://{}", proxy.address);
    let (is_done, said) =
        command(&folder, &with_ca, &[("HTTPS_PROXY", &unknown), ("SSL_CERT_FILE", "ca.pem")]);
    assert!(!is_done && said.contains("no tunnel through the proxy http://127.0.0.1:"), "{said}");
    assert!(said.contains("proxy authorization required"), "{said}");
    let (is_done, said) = command(&folder, &with_ca, &[("ALL_PROXY", "socks5://proxy:1080")]);
    assert!(!is_done && said.contains("only http:// proxies are supported"), "{said}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (is_done, said) = command(&folder, &with_ca, &[("HTTPS_PROXY", &url)]);
    let told =
        "timeout: no connection to the gateway at router.test:8443 within 5 s through the proxy";
    assert!(!is_done && said.contains(told), "{said}");
}
