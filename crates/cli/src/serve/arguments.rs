//! The command line of `wornpath serve`.

use crate::numbers;
use clap::Args;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Shown by `--help` after the options.
const MORE: &str = "\
Examples:
  wornpath serve --pod http://127.0.0.1:8001 --pod http://127.0.0.1:8002
  wornpath serve --pod http://a:8000 --pod http://b:8000 --policy round-robin --port 9000
  wornpath serve --pod http://a:8000,events=zmq://a:5557?replay=5657 --tokenizer ./Qwen3-8B --model Qwen/Qwen3-8B
  wornpath serve --prefill http://a:8000 --decode http://b:8000 --policy prefill-decode --tokenizer ./Qwen3-8B --model Qwen/Qwen3-8B

The router asks the engines what they are: their model, block size and cache events. It gets the model's tokenizer from
the engine's folder, the Hugging Face cache, or the hub (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE=1). Until it has one, and
without, prompts are compared by their text, and the router knows only the prompts that it has routed itself.";

/// Shown by `wornpath epp --help` after the options.
const MORE_OF_EPP: &str = "\
Examples:
  wornpath epp -c wornpath.yaml
  wornpath epp --pod http://10.0.0.1:8000 --pod http://10.0.0.2:8000
  wornpath epp --pod http://10.0.0.1:8000,events=zmq://10.0.0.1:5557 --tokenizer ./Qwen3-8B --model Qwen/Qwen3-8B

It is `wornpath serve` with an endpoint picker at 0.0.0.0:9002 and its health checks at 0.0.0.0:9003, unless --epp,
--epp-health or the file say otherwise. Metrics are at the address for clients.";

/// Pick endpoints for Envoy and other data planes (Gateway API Inference Extension)
#[derive(Args, Clone)]
#[command(after_long_help = MORE_OF_EPP)]
pub(crate) struct EppArguments {
    #[command(flatten)]
    serve: ServeArguments,
}

impl EppArguments {
    /// Where endpoint pickers listen.
    const PICKER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9002);
    const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9003);

    /// The same as arguments of `serve`.
    pub(crate) fn serve(&self) -> ServeArguments {
        let epp_default = Some((Self::PICKER, Self::HEALTH));
        ServeArguments { epp_default, ..self.serve.clone() }
    }
}

/// Serve OpenAI's and Anthropic's APIs in front of a fleet of engines
#[derive(Args, Clone)]
#[command(after_long_help = MORE)]
pub(crate) struct ServeArguments {
    /// Configuration file; options on the command line override it
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Address of an engine, in addition to those of the file; may be repeated. The engine is asked
    /// what it serves and where it publishes cache events; append
    /// `,events=zmq://host:port?replay=port` if it does not say, and `,ranks=N` before that if it
    /// has data-parallel ranks
    #[arg(long = "pod", visible_alias = "worker-urls", value_name = "URL", num_args = 1..)]
    pub(super) pods: Vec<String>,
    /// Address of an engine that prefills for others
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub(super) prefill: Vec<String>,
    /// Address of an engine that decodes after another's prefill
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub(super) decode: Vec<String>,
    /// Routing profile: the name of a built-in profile or of one in the file, or the path of a
    /// .yaml file; default:
    /// `cache-aware`. Overrides the profile of every route in the file
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<String>,
    /// Address to listen on; default: 127.0.0.1
    #[arg(long)]
    pub(super) host: Option<IpAddr>,
    /// Port to listen on, 0 for any free port; default: 8080
    #[arg(long)]
    pub(super) port: Option<u16>,
    /// Address and port of the admin plane, for operators
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) admin: Option<SocketAddr>,
    /// Address and port of the endpoint picker, for Envoy and other data planes; see `wornpath epp`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) epp: Option<SocketAddr>,
    /// Address and port of one more listener for gRPC health checks, without TLS
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) epp_health: Option<SocketAddr>,
    /// The endpoint picker names one pod, without fallbacks, as Envoy's ORIGINAL_DST clusters need
    #[arg(long)]
    pub(super) one_destination: bool,
    /// Where the endpoint picker and its health checks are, if neither the file nor an option says.
    #[arg(skip)]
    pub(super) epp_default: Option<(SocketAddr, SocketAddr)>,
    /// API key that clients must send; `NAME=KEY` also names its tenant, and overrides the key of a
    /// tenant of that name in the file; may be repeated. A key that ends in `=` can be given
    /// without a name if it is long, as base64 is. Other users of the machine see the options of a
    /// process: prefer --api-key-file, or the variable
    #[arg(long, value_name = "KEY", env = "WORNPATH_API_KEY", hide_env_values = true)]
    pub(super) api_key: Vec<String>,
    /// File with API keys that clients must send: one KEY or NAME=KEY per line; may be repeated. It
    /// is read again at every reload
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Vec<PathBuf>,
    /// File with the API key for the pods of --pod, --prefill and --decode; replaces the key of the
    /// client
    #[arg(long, value_name = "FILE")]
    pub(super) pod_key_file: Option<PathBuf>,
    /// Isolate the cached prompts of tenants from each other
    #[arg(long)]
    pub(super) isolate_tenants: bool,
    /// Folder with the model's tokenizer.json, tokenizer_config.json and chat_template.jinja;
    /// `bytes` makes every byte a token, `none` compares prompts by their text; default: found by
    /// what the engines say, in their folder, in the Hugging Face cache or at the hub
    #[arg(long, value_name = "FOLDER")]
    pub(super) tokenizer: Option<String>,
    /// Name of the model that --tokenizer belongs to, as engines list it; overrides tokenizer and
    /// block size of a model of that name in the file
    #[arg(long, value_name = "NAME", requires = "tokenizer")]
    pub(super) model: Option<String>,
    /// Tokens per cache block of the engines; default: as in the file, else as in the engines'
    /// /metrics, else 16
    #[arg(long, value_parser = numbers::block_size, requires = "tokenizer")]
    pub(super) block_size: Option<NonZeroUsize>,
    /// Worker threads; default: one per core
    #[arg(long)]
    pub(super) workers: Option<NonZeroUsize>,
    /// Timeout in seconds until the first byte of an engine's answer, streamed or not
    #[arg(long, value_name = "SECONDS")]
    pub(super) first_byte_timeout: Option<f64>,
    /// Timeout in seconds between two chunks of an answer
    #[arg(long, value_name = "SECONDS")]
    pub(super) between_bytes_timeout: Option<f64>,
    /// Limit of a request body in bytes
    #[arg(long, value_name = "BYTES")]
    pub(super) max_body: Option<usize>,
    /// Seconds from reporting not ready to accepting no more connections, at shutdown
    #[arg(long, value_name = "SECONDS")]
    pub(super) lame_duck: Option<f64>,
    /// Seconds that requests in flight get to finish at shutdown
    #[arg(long, value_name = "SECONDS")]
    pub(super) grace: Option<f64>,
    /// Add the headers x-wornpath-pod and x-wornpath-reason to answers: which pod answered, and why
    #[arg(long)]
    pub(super) reveal_pods: bool,
    /// Serve OpenAI's Files and Batches API, and store files and batches in this folder, or in a
    /// database that several gateways share, at postgres://user@host:5432/name, with the password
    /// in PGPASSWORD
    #[arg(long, value_name = "FOLDER", env = "WORNPATH_BATCHES", hide_env_values = true)]
    pub(super) batches: Option<String>,
    /// Log level: error, warn, info or debug
    #[arg(long, default_value = "info")]
    pub(super) log_level: tracing::Level,
    /// Format of the log: text, or an object per line
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    pub(super) log_format: Option<String>,
}
