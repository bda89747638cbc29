//! What an endpoint picker costs behind Envoy: Envoy alone, with a picker that answers at once, and
//! with wornpath.
//!
//! The same Envoy, engines and load in turns, so that a busy machine blurs all of them alike. CPU
//! is that of the processes, by the kernel; engines and load are in this process and do not count.

mod empty_picker;
mod engines;
mod envoy;
mod load;
#[path = "../../../crates/gateway/src/ext_proc/proto.rs"]
#[allow(unreachable_pub, clippy::all, reason = "generated")]
#[rustfmt::skip]
mod proto;

use anyhow::{Context, bail, ensure};
use envoy::Envoy;
use load::{Load, Prompts};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ENGINES: usize = 8;
/// The tokenizer of the tests, of 2,048 tokens; those of models have 32,000 and more.
const SMALL_TOKENIZER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/blocks/tests/models/tiny-llama");

/// Who picks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Alone,
    Empty,
    Wornpath,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Alone, Self::Empty, Self::Wornpath];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "Envoy alone",
            Self::Empty => "Envoy + empty picker",
            Self::Wornpath => "Envoy + wornpath epp",
        }
    }
}

/// A process that is ended when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Self(command.spawn().with_context(|| format!("cannot run {program}"))?))
    }

    /// CPU time that it has used, in microseconds.
    fn cpu(&self) -> anyhow::Result<f64> {
        let mut nanos = 0.0;
        for task in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            nanos += text.split(' ').next().context("schedstat")?.parse::<f64>()?;
        }
        Ok(nanos / 1e3)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One contestant: Envoy and its picker.
struct Setup {
    kind: Kind,
    envoy: Envoy,
    picker: Option<Process>,
}

/// Medians of the rounds, per request.
#[derive(Clone, Debug, Default)]
struct Figures {
    envoy: Vec<f64>,
    picker: Vec<f64>,
    p50: Vec<f64>,
    rate: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for(port: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(Instant::now() < deadline, "nothing listens at port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The options of the command line.
struct Arguments {
    rounds: usize,
    measured: Duration,
    is_raw: bool,
    binary: PathBuf,
    tokenizer: PathBuf,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let binary = std::env::var("WORNPATH_BENCH_BINARY");
        let mut parsed = Self {
            rounds: 7,
            measured: Duration::from_secs(5),
            is_raw: false,
            binary: binary.context("WORNPATH_BENCH_BINARY is not set")?.into(),
            tokenizer: SMALL_TOKENIZER.into(),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => {
                    parsed.rounds = 3;
                    parsed.measured = Duration::from_secs(2);
                }
                "--raw" => parsed.is_raw = true,
                "--tokenizer" => {
                    let folder = words.next().context("--tokenizer needs a folder")?;
                    parsed.tokenizer = folder.into();
                }
                other => bail!("unknown option {other}; known: --quick, --raw, --tokenizer FOLDER"),
            }
        }
        let file = parsed.tokenizer.join("tokenizer.json");
        ensure!(file.is_file(), "no {}; --tokenizer takes a folder that has it", file.display());
        Ok(parsed)
    }

    fn tokenizer_name(&self) -> String {
        self.tokenizer.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

fn picker(
    kind: Kind,
    pods: &[SocketAddr],
    arguments: &Arguments,
    has_tokenizer: bool,
) -> anyhow::Result<(Option<Process>, u16)> {
    let port = free_port()?;
    let process = match kind {
        Kind::Alone => return Ok((None, port)),
        Kind::Empty => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["empty-picker", &port.to_string()]);
            command.args(pods.iter().map(ToString::to_string));
            Process::start(&mut command)?
        }
        Kind::Wornpath => {
            let mut command = Command::new(&arguments.binary);
            command.args(["epp", "--port", "0", "--epp", &format!("127.0.0.1:{port}")]);
            command.args(["--epp-health", "127.0.0.1:0", "--log-level", "error"]);
            for pod in pods {
                command.args(["--pod", &format!("http://{pod}")]);
            }
            if has_tokenizer {
                command.arg("--tokenizer").arg(&arguments.tokenizer);
                command.args(["--model", "bench-model"]);
            }
            Process::start(command.stdout(Stdio::null()))?
        }
    };
    wait_for(port)?;
    Ok((Some(process), port))
}

/// One table.
#[derive(Clone, Copy, Debug)]
struct Case {
    prompts: Prompts,
    has_tokenizer: bool,
}

impl Case {
    /// A short request; a turn of a long conversation; a long document that is half new.
    const ALL: [Self; 3] = [
        Self { prompts: Prompts { bytes: 1 << 10, new: 1 << 9 }, has_tokenizer: false },
        Self { prompts: Prompts { bytes: 32 << 10, new: 1 << 10 }, has_tokenizer: true },
        Self { prompts: Prompts { bytes: 32 << 10, new: 16 << 10 }, has_tokenizer: true },
    ];
}

async fn compare(
    arguments: &Arguments,
    pods: &[SocketAddr],
    Case { prompts, has_tokenizer }: Case,
) -> anyhow::Result<Vec<Figures>> {
    let mut setups = Vec::new();
    for kind in Kind::ALL {
        let (picker, port) = picker(kind, pods, arguments, has_tokenizer)?;
        let envoy = Envoy::start(pods, (kind != Kind::Alone).then_some(port))?;
        setups.push(Setup { kind, envoy, picker });
    }
    for setup in &setups {
        // Pods must be up, and caches filled.
        load::until_served(setup.envoy.address, prompts).await?;
        load::run(setup.envoy.address, prompts, Duration::from_secs(2)).await?;
    }
    let mut all = vec![Figures::default(); setups.len()];
    for round in 0..arguments.rounds {
        for turn in 0..setups.len() {
            let at = (round + turn) % setups.len();
            let setup = &setups[at];
            let cpu = |process: Option<&Process>| process.map_or(Ok(0.0), Process::cpu);
            let before = (setup.envoy.process.cpu()?, cpu(setup.picker.as_ref())?);
            let Load { requests, p50, seconds } =
                load::run(setup.envoy.address, prompts, arguments.measured).await?;
            let figures = &mut all[at];
            let requests = requests as f64;
            figures.envoy.push((setup.envoy.process.cpu()? - before.0) / requests);
            figures.picker.push((cpu(setup.picker.as_ref())? - before.1) / requests);
            figures.p50.push(p50);
            figures.rate.push(requests / seconds);
            if !arguments.is_raw {
                continue;
            }
            let Prompts { bytes, new } = prompts;
            println!(
                "raw {bytes} B, {new} new, round {round} {}: {requests} requests, Envoy {:.1} us, picker {:.1} us, p50 {p50:.0} us",
                setup.kind.name(),
                figures.envoy[round],
                figures.picker[round]
            );
        }
    }
    Ok(all)
}

fn report(case: Case, arguments: &Arguments, all: &[Figures]) {
    let Prompts { bytes, new } = case.prompts;
    let how = match case.has_tokenizer {
        true => format!("with the tokenizer {}", arguments.tokenizer_name()),
        false => "by text".to_owned(),
    };
    println!("\n{bytes} bytes, {new} of them new, {how}\n");
    println!(
        "| | CPU of Envoy, us/request | CPU of the picker, us/request | p50, us | requests/s |"
    );
    println!("|---|---:|---:|---:|---:|");
    for (kind, figures) in Kind::ALL.iter().zip(all) {
        println!(
            "| {} | {:.1} | {:.1} | {:.0} | {:.0} |",
            kind.name(),
            median(&figures.envoy),
            median(&figures.picker),
            median(&figures.p50),
            median(&figures.rate)
        );
    }
    let [alone, empty, ours] = all else { return };
    let envoys_own = median(&empty.envoy) - median(&alone.envoy);
    let [of_empty, of_ours] = [empty, ours].map(|figures| median(&figures.picker));
    println!("\nwornpath / empty picker: {:.2}", of_ours / of_empty);
    println!(
        "wornpath beyond the empty picker / empty picker: {:.2}",
        (of_ours - of_empty) / of_empty
    );
    println!(
        "wornpath / what ext_proc costs Envoy ({envoys_own:.1} us): {:.2}",
        of_ours / envoys_own
    );
    println!(
        "added p50: {:.0} us, of which the empty picker: {:.0} us\n",
        median(&ours.p50) - median(&alone.p50),
        median(&empty.p50) - median(&alone.p50)
    );
}

fn main() -> anyhow::Result<ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("empty-picker") {
        let port = words.next().context("a port")?.parse()?;
        empty_picker::run(port, words.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let pods = engines::start(ENGINES)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for case in Case::ALL {
        let all = runtime.block_on(compare(&arguments, &pods, case))?;
        report(case, &arguments, &all);
    }
    Ok(ExitCode::SUCCESS)
}
