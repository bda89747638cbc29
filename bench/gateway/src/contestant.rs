//! The contestants, and how each is started and stopped.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine::Pace;
use crate::http_client::Client;
use crate::process_tree;
use crate::prompts::{Delivery, Prompts, Shared};

/// Timeout for a router to answer its first requests.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const NGINX: &str = include_str!("../nginx.conf");

/// The kinds of contestants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// No router at all.
    Direct,
    /// hyper and nothing else.
    Hyper,
    Nginx,
    VllmRouter,
    SglangRouter,
    Smg,
    /// Ours, by text.
    CacheAware,
    RoundRobin,
    /// Ours, with the model's tokenizer.
    Tokenizer,
    /// Ours, by text, with 256 pods.
    ManyPods,
}

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Self::Direct,
        Self::Hyper,
        Self::Nginx,
        Self::VllmRouter,
        Self::SglangRouter,
        Self::Smg,
        Self::CacheAware,
        Self::RoundRobin,
        Self::Tokenizer,
        Self::ManyPods,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Hyper => "bare hyper",
            Self::Nginx => "nginx",
            Self::VllmRouter => "vllm-router 0.1.16",
            Self::SglangRouter => "sglang-router 0.3.2",
            Self::Smg => "smg 1.13",
            Self::CacheAware => "wornpath cache-aware",
            Self::RoundRobin => "wornpath round-robin",
            Self::Tokenizer => "wornpath, tokenizer",
            Self::ManyPods => "wornpath, 256 pods",
        }
    }
}

/// Paths of binaries and of the tokenizer.
pub(crate) struct Paths {
    /// Our binary.
    pub(crate) wornpath: PathBuf,
    /// Where the peers are installed.
    pub(crate) peers: PathBuf,
    /// The model's tokenizer, if one was given.
    pub(crate) tokenizer: Option<PathBuf>,
}

/// A child process. Dropping it stops it and all its descendants.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let members = process_tree::members(self.0.id());
        let signal = |pid: &u32, signal| {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                let _ = kill_process(pid, signal);
            }
        };
        members.iter().for_each(|pid| signal(pid, Signal::TERM));
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if matches!(self.0.try_wait(), Ok(None)) {
            members.iter().for_each(|pid| signal(pid, Signal::KILL));
            let _ = self.0.wait();
        }
    }
}

/// The engines, in a process of their own.
pub(crate) struct Engines {
    process: Process,
    pub(crate) pods: Vec<SocketAddr>,
}

impl Engines {
    pub(crate) fn start(pods: usize) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["engines", &pods.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let (process, line) = start_and_read(&mut command, "")?;
        let port = |word: &str| Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, word.parse::<u16>()?)));
        let pods: anyhow::Result<_> = line.split_ascii_whitespace().map(port).collect();
        Ok(Self { process, pods: pods? })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sets the pace of later answers.
    pub(crate) async fn pace(&mut self, pace: Pace) -> anyhow::Result<()> {
        let stdin = self.process.0.stdin.as_mut().context("the engines listen")?;
        stdin.write_all(pace.line().as_bytes())?;
        stdin.flush()?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

/// A contestant that is ready to answer.
pub(crate) struct Contestant {
    pub(crate) kind: Kind,
    pub(crate) process: Option<Process>,
    /// Where clients connect, in turn.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Contestant {
    /// Starts it and waits until it answers.
    pub(crate) async fn start(
        kind: Kind,
        paths: &Paths,
        all: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        let pods = if kind == Kind::ManyPods { all } else { &all[..all.len().min(8)] };
        let (process, addresses) = match kind {
            Kind::Direct => (None, pods.to_vec()),
            _ => {
                let (process, address) = launch(kind, paths, pods)
                    .with_context(|| format!("{} does not start", kind.name()))?;
                (Some(process), vec![address])
            }
        };
        let contestant = Self { kind, process, addresses };
        contestant.wait_until_ready().await?;
        Ok(contestant)
    }

    /// Waits until eight requests in a row are answered.
    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let prompts = Prompts::new(1024, Shared::FirstHalf, Delivery::Whole);
        let until = Instant::now() + START_TIMEOUT;
        let mut request = Vec::new();
        prompts.write(u64::MAX, &mut request);
        loop {
            let attempt = async {
                let mut client = Client::connect(self.addresses[0]).await?;
                for _ in 0..8 {
                    client.request(&request).await?;
                }
                anyhow::Ok(())
            };
            match attempt.await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => {
                    return Err(error.context(format!("{} does not answer", self.kind.name())));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

fn launch(kind: Kind, paths: &Paths, pods: &[SocketAddr]) -> anyhow::Result<(Process, SocketAddr)> {
    let urls: Vec<_> = pods.iter().map(|pod| format!("http://{pod}")).collect();
    let peer = |path: &str| Command::new(paths.peers.join(path));
    match kind {
        Kind::Hyper => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("bare-hyper").args(pods.iter().map(ToString::to_string));
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let (process, line) = start_and_read(&mut command, "")?;
            Ok((process, SocketAddr::from((Ipv4Addr::LOCALHOST, line.trim().parse::<u16>()?))))
        }
        Kind::CacheAware | Kind::ManyPods | Kind::RoundRobin | Kind::Tokenizer => {
            let mut command = Command::new(&paths.wornpath);
            command.args(["serve", "--port", "0", "--log-level", "error", "--pod"]).args(&urls);
            match (kind, &paths.tokenizer) {
                (Kind::RoundRobin, _) => {
                    command.args(["--policy", "round-robin"]);
                }
                (Kind::Tokenizer, Some(folder)) => {
                    command.arg("--tokenizer").arg(folder).args(["--model", "bench-model"]);
                    // About as long as blocks of text, which have 512 bytes: these pods send no
                    // events.
                    command.args(["--block-size", "128"]);
                }
                _ => {}
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let (process, line) = start_and_read(&mut command, "listening: http://")?;
            Ok((process, line.trim().parse()?))
        }
        Kind::Nginx => start_nginx(peer("nginx/usr/sbin/nginx"), pods),
        Kind::VllmRouter => start_router(peer("vllm-router/bin/vllm-router"), &urls, "warning"),
        Kind::SglangRouter => {
            let mut command = peer("sglang-router/bin/sglang-router");
            command.arg("launch");
            start_router(command, &urls, "warn")
        }
        Kind::Smg => {
            let mut command = peer("smg/bin/smg");
            command.arg("launch");
            start_router(command, &urls, "warn")
        }
        Kind::Direct => bail!("`direct` has no process to launch"),
    }
}

/// Starts a router from PyPI; all of them share these options.
fn start_router(
    mut command: Command,
    urls: &[String],
    level: &str,
) -> anyhow::Result<(Process, SocketAddr)> {
    let port = free_port()?;
    let metrics = free_port()?;
    command.args(["--host", "127.0.0.1", "--policy", "cache_aware", "--log-level", level]);
    command.args(["--port", &port.to_string(), "--prometheus-host", "127.0.0.1"]);
    command.args(["--prometheus-port", &metrics.to_string(), "--worker-urls"]).args(urls);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Process(command.spawn().with_context(|| format!("{command:?}"))?);
    Ok((process, SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
}

fn start_nginx(mut command: Command, pods: &[SocketAddr]) -> anyhow::Result<(Process, SocketAddr)> {
    let folder = std::env::temp_dir().join(format!("wornpath-bench-nginx-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let port = free_port()?;
    let servers: Vec<_> = pods.iter().map(|pod| format!("server {pod};")).collect();
    let text = NGINX
        .replace("@PORT@", &port.to_string())
        .replace("@SERVERS@", &servers.join("\n    "))
        .replace("@FOLDER@", &folder.to_string_lossy());
    let file = folder.join("nginx.conf");
    fs::write(&file, text)?;
    command.arg("-p").arg(&folder).arg("-c").arg(&file).args(["-g", "daemon off;"]);
    let process = Process(command.spawn().with_context(|| format!("{command:?}"))?);
    Ok((process, SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
}

/// Starts a process and reads its output up to the line that begins with `prefix`. Returns the rest
/// of that line.
fn start_and_read(command: &mut Command, prefix: &str) -> anyhow::Result<(Process, String)> {
    let mut process = Process(command.spawn().with_context(|| format!("{command:?}"))?);
    let output = process.0.stdout.take().context("its output is read")?;
    for line in BufReader::new(output).lines() {
        if let Some(rest) = line?.strip_prefix(prefix) {
            return Ok((process, rest.to_owned()));
        }
    }
    bail!("{command:?} exited before it listened")
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Whether a contestant's binary is installed.
pub(crate) fn is_installed(peers: &Path, kind: Kind) -> bool {
    let file = match kind {
        Kind::Nginx => "nginx/usr/sbin/nginx",
        Kind::VllmRouter => "vllm-router/bin/vllm-router",
        Kind::SglangRouter => "sglang-router/bin/sglang-router",
        Kind::Smg => "smg/bin/smg",
        _ => return true,
    };
    peers.join(file).exists()
}
