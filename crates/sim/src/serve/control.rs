//! The control port: faults, crashes and restarts of all engines of a process.

use super::call::CallRefusal;
use super::faults::Faults;
use super::response::{Cut, SimBody, error_response, json_response};
use super::{EnginePort, EngineServeError, ServedEngine, bind_error, listen};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const MAX_BODY_BYTES: usize = 64 << 10;

/// A bound control port. Dropping it closes it.
pub struct Control {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Control {
    /// Listens at `address`; port 0 is any free one.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(
        address: SocketAddr,
        engines: Arc<[ServedEngine]>,
    ) -> Result<Self, EngineServeError> {
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|cause| bind_error(EnginePort::Control, address, cause))?;
        let address = listener
            .local_addr()
            .map_err(|cause| bind_error(EnginePort::Control, address, cause))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, move |request| respond(Arc::clone(&engines), request)));
        Ok(Self { address, _tasks: tasks })
    }

    /// The address that it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn respond(
    engines: Arc<[ServedEngine]>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Cut> {
    Ok(match execute(&engines, request).await {
        Ok(value) => json_response(&value),
        Err(refusal) => error_response(&refusal),
    })
}

async fn execute(
    engines: &[ServedEngine],
    request: Request<Incoming>,
) -> Result<Value, CallRefusal> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let unknown = || CallRefusal {
        status: StatusCode::NOT_FOUND,
        message: format!(
            "unknown route {method} {path}; available: GET /engines, GET and PUT /engines/<number>/faults, \
             POST /engines/<number>/crash and /engines/<number>/restart"
        ),
    };
    let (number, action) = match parts[..] {
        ["engines"] if method == Method::GET => return Ok(list(engines).await),
        ["engines", number, action] => (number, action),
        _ => return Err(unknown()),
    };
    let engine = number.parse().ok().and_then(|number: usize| engines.get(number));
    let engine = engine.ok_or_else(|| CallRefusal {
        status: StatusCode::NOT_FOUND,
        message: format!(
            "unknown engine {number}; engines are numbered 0 to {}",
            engines.len() - 1
        ),
    })?;
    match (&method, action) {
        (&Method::GET, "faults") => {}
        (&Method::PUT, "faults") => {
            let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
            let body = body.map_err(|error| CallRefusal::bad(error.to_string()))?.to_bytes();
            let faults = Faults::from_json(&body);
            engine.set_faults(faults.map_err(|error| CallRefusal::bad(error.to_string()))?);
        }
        (&Method::POST, "crash") => engine.crash().await,
        (&Method::POST, "restart") => engine.restart().await.map_err(|error| CallRefusal {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: error.to_string(),
        })?,
        _ => return Err(unknown()),
    }
    Ok(describe(engine).await)
}

async fn list(engines: &[ServedEngine]) -> Value {
    let mut described = Vec::new();
    for engine in engines {
        described.push(describe(engine).await);
    }
    json!({"engines": described})
}

async fn describe(engine: &ServedEngine) -> Value {
    let addresses = engine.addresses();
    json!({
        "url": format!("http://{}", addresses.http),
        "events": format!("tcp://{}", addresses.events),
        "replay": format!("tcp://{}", addresses.replay),
        "running": engine.is_running().await,
        "faults": engine.faults(),
    })
}
