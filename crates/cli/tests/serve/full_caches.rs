//! Engines whose caches are full and stay full: every block that comes evicts another, for
//! thousands of requests. The router's table of each engine's blocks then stays at one size while
//! all of its content changes, also at sizes just below those at which such tables grow.

use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Cache sizes in blocks.
const SIZES: [usize; 14] = [26, 50, 52, 104, 105, 188, 195, 196, 340, 354, 630, 1115, 1850, 1955];
const BLOCK: usize = 16;
const CLIENTS: usize = 8;
/// Even the smallest cache has room for one prompt and its answer.
const LONGEST_PROMPT: usize = 400;

/// One connection to the gateway that is kept for all requests.
struct Client {
    stream: BufReader<TcpStream>,
    random: u64,
}

impl Client {
    fn connect(address: &str, seed: u64) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: BufReader::new(stream), random: seed }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    /// A completion of random token ids, which no cache holds.
    fn complete(&mut self) {
        let tokens = 20 + self.random() as usize % (LONGEST_PROMPT - 20);
        let mut body =
            format!("{{\"model\":\"m\",\"max_tokens\":1,\"prompt\":[{}", self.random() % 250);
        for _ in 1..tokens {
            write!(body, ",{}", self.random() % 250).unwrap();
        }
        body.push_str("]}");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
        self.expect_success();
    }

    fn expect_success(&mut self) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the gateway answers within 30 s");
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
    }
}

#[test]
fn engines_with_full_caches_of_any_size_are_followed_for_thousands_of_requests() {
    let is_thorough = std::env::var_os("WORNPATH_THOROUGH").is_some();
    let of_each = if is_thorough { 5_000 } else { 1_500 };
    let start = |blocks: &usize| {
        let tokens = (blocks * BLOCK).to_string();
        Engines::start_at("300", &["--model", "m", "--kv-tokens", &tokens, "--block-size", "16"])
    };
    let engines: Vec<_> = SIZES.iter().map(start).collect();
    let mut text = "models: [{name: m, tokenizer: bytes, block_size: 16}]\n\
                    routes: [{profile: round-robin}]\npods:\n"
        .to_owned();
    for (served, blocks) in engines.iter().zip(SIZES) {
        let at = &served.engines[0];
        writeln!(
            text,
            "  - {{url: \"http://{}\", name: cache-of-{blocks}, model: m, events: [\"zmq://{}?replay={}\"]}}",
            at.http, at.events, at.replay
        )
        .unwrap();
    }
    let gateway = Gateway::configured("full_caches", &text, SIZES.len());
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let mut client = Client::connect(&gateway.address, seed as u64);
            scope.spawn(move || {
                for _ in 0..SIZES.len() * of_each / CLIENTS {
                    client.complete();
                }
            });
        }
    });
    let index = gateway.ask("GET", "/index", "").json();
    for pod in index["by_pod"].as_array().unwrap() {
        let size: u64 = pod["pod"].as_str().unwrap()["cache-of-".len()..].parse().unwrap();
        let known = pod["blocks"].as_u64().unwrap();
        assert!(known <= size && known * 2 > size, "{pod}");
    }
}
