//! The engine's HTTP port: the routes and their handlers.

use super::answer::AnswerScript;
use super::call::{
    CallDelivery, CallKind, CallPhase, CallReader, CallRefusal, EngineCall, FinishReason,
};
use super::clock::unix_seconds;
use super::driver::{DriverCommand, Submission, SubmissionProgress};
use super::engine_site::EngineSite;
use super::events::PromptScope;
use super::faults::KvLoadFailure;
use super::load_failure;
use super::metrics::{self, EngineIdentity};
use super::response::{self, Cut, SimBody, SimStream, SimTicket, error_response, json_response};
use super::text::{GeneratedText, mix};
use super::transfer::{self, Fetched};
use crate::request::{PromptSource, RequestId, SimRequest as EngineRequest};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const MAX_BODY_BYTES: usize = 64 << 20;

/// How long a prefill engine leases blocks to a decode engine: vLLM's default.
const LEASE: Duration = Duration::from_secs(30);

/// The length of an embedding.
const DIMENSIONS: usize = 64;

/// Answers one request.
pub(super) async fn respond(
    site: Arc<EngineSite>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Cut> {
    let faults = site.faults();
    if faults.hang {
        std::future::pending::<()>().await;
    }
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if let (Some(status), true) =
        (faults.refuse, path.starts_with("/v1/") && head.method == Method::POST)
    {
        return Ok(refuse_by_fault(status));
    }
    let body = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Ok(error_response(&too_large(error.as_ref()))),
    };
    let result = match (&head.method, path) {
        (&Method::POST, "/v1/chat/completions") => {
            generate(&site, CallKind::Chat, &body, &head.headers).await?
        }
        (&Method::POST, "/v1/completions") => {
            generate(&site, CallKind::Completion, &body, &head.headers).await?
        }
        (&Method::POST, "/v1/messages") => {
            generate(&site, CallKind::Messages, &body, &head.headers).await?
        }
        (&Method::POST, "/v1/responses") => {
            generate(&site, CallKind::Responses, &body, &head.headers).await?
        }
        (&Method::POST, "/v1/embeddings") => embed(&site, &body).await,
        (&Method::POST, "/v1/rerank" | "/rerank") => rerank(&site, &body),
        (&Method::POST, "/tokenize") => tokenize(&site, &body),
        (&Method::POST, "/reset_prefix_cache") => reset_cache(&site).await,
        (&Method::POST, transfer::PATH) => release_lease(&site, &body).await,
        (&Method::GET, "/v1/models") => Ok(json_response(&models(&site))),
        (&Method::GET, "/metrics") => metrics_page(&site).await,
        (&Method::GET, "/version") => {
            Ok(json_response(&json!({"version": env!("CARGO_PKG_VERSION")})))
        }
        (&Method::GET, "/kv_event_sources") if !faults.no_discovery => {
            Ok(json_response(&site.event_sources()))
        }
        (&Method::GET, "/tokenizer_info") if !faults.no_discovery => {
            Ok(json_response(&site.text().info()))
        }
        (&Method::GET, "/health" | "/ping") => Ok(Response::new(SimBody::Whole(None))),
        _ => Err(CallRefusal {
            status: StatusCode::NOT_FOUND,
            message: format!("unknown route {} {path}; see `wornpath engine --help`", head.method),
        }),
    };
    let mut response = result.unwrap_or_else(|error| error_response(&error));
    if let Some(id) = head.headers.get("x-request-id") {
        response.headers_mut().insert("x-request-id", id.clone());
    }
    Ok(response)
}

async fn generate(
    site: &Arc<EngineSite>,
    kind: CallKind,
    body: &[u8],
    headers: &HeaderMap,
) -> Result<Result<Response<SimBody>, CallRefusal>, Cut> {
    let call = CallReader::object(body).and_then(|object| site.reader().call(kind, &object));
    let mut call = match call {
        Ok(call) => call,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let fetched = match &call.phase {
        CallPhase::Decode(remote) => transfer::fetch(remote).await,
        CallPhase::Both | CallPhase::Prefill => Fetched::Prompt,
    };
    let id = site.next_request();
    if fetched == Fetched::Failed {
        match site.faults().kv_load_failure {
            KvLoadFailure::Fail => {
                return Ok(Ok(load_failure::answer(&script(
                    site,
                    id,
                    call,
                    GeneratedText::default(),
                    headers,
                ))));
            }
            KvLoadFailure::Recompute => call.phase = CallPhase::Both,
            KvLoadFailure::Hang => std::future::pending().await,
        }
    }
    let mut generated = site.text().generate(&call.prompt, call.output_tokens);
    if generated.stop_at(&call.stops) {
        call.reason = FinishReason::Stop;
    }
    if fetched == Fetched::Stale {
        generated.pieces.fill(" wrong".to_owned());
    }
    let lease = (call.phase == CallPhase::Prefill).then_some(LEASE);
    let tokens = [&call.prompt[..], &generated.tokens].concat();
    let ticket = match submit(site, id, &call, tokens, lease).await {
        Ok(ticket) => ticket,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let script = script(site, id, call, generated, headers);
    Ok(Ok(match script.call.delivery {
        CallDelivery::Whole => {
            let mut response = json_response(&response::collect(ticket, &script).await?);
            if script.call.phase == CallPhase::Prefill
                && let Some(crash) = site.count_prefill()
                && let SimBody::Whole(bytes) = response.body_mut()
            {
                *response.body_mut() = SimBody::BeforeCrash(bytes.take(), crash);
            }
            response
        }
        CallDelivery::Stream | CallDelivery::StreamWithUsage => {
            let mut response =
                Response::new(SimBody::Stream(Box::new(SimStream::new(ticket, script))));
            let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
    }))
}

fn script(
    site: &EngineSite,
    id: RequestId,
    call: EngineCall,
    generated: GeneratedText,
    headers: &HeaderMap,
) -> AnswerScript {
    let name = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let prefix = match call.kind {
        CallKind::Chat => "chatcmpl",
        CallKind::Completion => "cmpl",
        CallKind::Messages => "msg",
        CallKind::Responses => "resp",
    };
    // Ends with the request's number, by which a decode engine requests its blocks.
    let id_text = format!("{prefix}-{}-{}", name.unwrap_or(site.engine_id()), id.0);
    let blocks = call.prompt.len().div_ceil(site.block_size());
    let transfer = json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_engine_id": site.engine_id(),
        "remote_block_ids": [(1..=blocks).collect::<Vec<_>>()],
        "remote_request_id": id_text,
        "remote_host": site.address().ip().to_string(),
        "remote_port": site.address().port(),
        "tp_size": 1,
    });
    let created = unix_seconds() as u64;
    let GeneratedText { tokens, pieces } = generated;
    AnswerScript { id: id_text, created, call, pieces, tokens, faults: site.faults(), transfer }
}

/// Submits a call to the engine.
async fn submit(
    site: &EngineSite,
    id: RequestId,
    call: &EngineCall,
    tokens: Vec<u32>,
    lease: Option<Duration>,
) -> Result<SimTicket, CallRefusal> {
    let lora = site.lora(&call.model);
    let request = EngineRequest {
        id,
        prompt_tokens: call.prompt.len(),
        output_tokens: tokens.len() - call.prompt.len(),
        chain: site.chain(&tokens, call.salt.as_deref(), lora),
        source: call.source(),
        lease,
    };
    let scope = PromptScope {
        tokens: tokens.into(),
        salt: call.salt.clone(),
        lora: lora.map(str::to_owned),
    };
    submit_request(site, request, scope, call.reason).await
}

async fn submit_request(
    site: &EngineSite,
    request: EngineRequest,
    scope: PromptScope,
    reason: FinishReason,
) -> Result<SimTicket, CallRefusal> {
    let (sender, progress) = mpsc::unbounded_channel();
    let id = request.id;
    let commands = site.commands().clone();
    let submission = Submission { request, scope, reason: reason.name(), progress: sender };
    // A stopped engine drops the sender, and the receiver ends.
    let _ = commands.send(DriverCommand::Submit(Box::new(submission)));
    let mut ticket = SimTicket { id, progress, commands };
    match ticket.progress.recv().await {
        Some(SubmissionProgress::Refused(refused)) => Err(CallRefusal::bad(refused.to_string())),
        _ => Ok(ticket),
    }
}

async fn embed(site: &EngineSite, body: &[u8]) -> Result<Response<SimBody>, CallRefusal> {
    let object = CallReader::object(body)?;
    let reader = site.reader();
    let model = reader.model(&object)?;
    let inputs = reader.inputs(object.get("input").unwrap_or(&Value::Null), "input")?;
    let mut tickets = Vec::new();
    let mut data = Vec::new();
    let mut prompt_tokens = 0;
    for (index, tokens) in inputs.into_iter().enumerate() {
        prompt_tokens += tokens.len();
        data.push(json!({"object": "embedding", "index": index, "embedding": embedding(&tokens)}));
        let id = site.next_request();
        let lora = site.lora(&model);
        let request = EngineRequest {
            id,
            prompt_tokens: tokens.len(),
            output_tokens: 0,
            chain: site.chain(&tokens, None, lora),
            source: PromptSource::Computed,
            lease: None,
        };
        let scope =
            PromptScope { tokens: tokens.into(), salt: None, lora: lora.map(str::to_owned) };
        tickets.push(submit_request(site, request, scope, FinishReason::Stop).await?);
    }
    for mut ticket in tickets {
        while ticket
            .progress
            .recv()
            .await
            .is_some_and(|progress| progress != SubmissionProgress::Finished)
        {}
    }
    let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens});
    Ok(json_response(&json!({"object": "list", "model": model, "data": data, "usage": usage})))
}

/// Ranks documents by the dot product of their embeddings with the query's.
fn rerank(site: &EngineSite, body: &[u8]) -> Result<Response<SimBody>, CallRefusal> {
    let object = CallReader::object(body)?;
    let reader = site.reader();
    let model = reader.model(&object)?;
    let embeddings = |field: &'static str| {
        reader
            .inputs(object.get(field).unwrap_or(&Value::Null), field)
            .map(|inputs| inputs.iter().map(|tokens| embedding(tokens)).collect::<Vec<_>>())
    };
    let queries = embeddings("query")?;
    let documents = embeddings("documents")?;
    let score = |document: &Vec<f64>| -> f64 {
        queries[0].iter().zip(document).map(|(one, other)| one * other).sum()
    };
    let mut results: Vec<_> = documents.iter().map(score).enumerate().collect();
    results.sort_by(|one, other| other.1.total_cmp(&one.1));
    let result = |(index, score): (usize, f64)| json!({"index": index, "relevance_score": score});
    let results: Vec<_> = results.into_iter().map(result).collect();
    Ok(json_response(&json!({"model": model, "results": results})))
}

/// A unit vector that depends only on the tokens.
fn embedding(tokens: &[u32]) -> Vec<f64> {
    let mut seed = tokens.iter().fold(1, |seed, token| mix(seed ^ u64::from(*token)));
    let mut draw = || {
        seed = mix(seed);
        seed as f64 / u64::MAX as f64 - 0.5
    };
    let numbers: Vec<f64> = (0..DIMENSIONS).map(|_| draw()).collect();
    let length = numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
    numbers.iter().map(|number| number / length).collect()
}

fn tokenize(site: &EngineSite, body: &[u8]) -> Result<Response<SimBody>, CallRefusal> {
    let object = CallReader::object(body)?;
    let kind = if object.contains_key("messages") { CallKind::Chat } else { CallKind::Completion };
    let tokens = site.reader().tokens(kind, &object)?;
    let body = json!({"count": tokens.len(), "max_model_len": site.max_tokens(), "tokens": tokens});
    Ok(json_response(&body))
}

async fn reset_cache(site: &EngineSite) -> Result<Response<SimBody>, CallRefusal> {
    match query_driver(site, DriverCommand::ClearCache).await? {
        Ok(()) => Ok(Response::new(SimBody::Whole(None))),
        Err(blocks) => Err(CallRefusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: format!("{blocks} blocks are in use; wait for running requests to end"),
        }),
    }
}

async fn release_lease(site: &EngineSite, body: &[u8]) -> Result<Response<SimBody>, CallRefusal> {
    let faults = site.faults();
    let is_disabled = faults.no_kv_transfer || faults.crash_after_prefills.is_some();
    let object = CallReader::object(body)?;
    let engine = object.get("remote_engine_id").and_then(Value::as_str);
    if is_disabled || engine.is_some_and(|engine| engine != site.engine_id()) {
        let message =
            "KV blocks cannot be loaded: disabled by a fault, or of another engine".to_owned();
        return Err(CallRefusal { status: StatusCode::SERVICE_UNAVAILABLE, message });
    }
    let name = object.get("remote_request_id").and_then(Value::as_str).unwrap_or_default();
    let number = name.rsplit('-').next().and_then(|number| number.parse().ok());
    let number = number
        .ok_or_else(|| CallRefusal::bad("`remote_request_id` is not an id of this engine"))?;
    let release = |reply| DriverCommand::ReleaseLease(RequestId(number), reply);
    match query_driver(site, release).await? {
        true => Ok(json_response(&json!({"handed_over": name}))),
        false => Err(CallRefusal {
            status: StatusCode::NOT_FOUND,
            message: format!(
                "no blocks are leased for {name}; the lease lasts {} s",
                LEASE.as_secs()
            ),
        }),
    }
}

async fn metrics_page(site: &EngineSite) -> Result<Response<SimBody>, CallRefusal> {
    let report = query_driver(site, DriverCommand::Report).await?;
    let identity = EngineIdentity {
        model: site.model(),
        block_size: site.block_size(),
        started: site.started(),
    };
    let mut response =
        Response::new(SimBody::Whole(Some(metrics::page(&identity, &report).into())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn models(site: &EngineSite) -> Value {
    let card = |(index, name): (usize, &String)| {
        let parent = if index == 0 { Value::Null } else { json!(site.model()) };
        json!({
            "id": name,
            "object": "model",
            "created": site.started() as u64,
            "owned_by": "wornpath",
            "root": if index == 0 { site.root() } else { name },
            "parent": parent,
            "max_model_len": site.max_tokens(),
        })
    };
    let cards: Vec<_> = site.models().iter().enumerate().map(card).collect();
    json!({"object": "list", "data": cards})
}

/// Sends a command to the engine's task and waits for the reply.
async fn query_driver<T>(
    site: &EngineSite,
    command: impl FnOnce(oneshot::Sender<T>) -> DriverCommand,
) -> Result<T, CallRefusal> {
    let (sender, reply) = oneshot::channel();
    let stopped = || CallRefusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        message: "the engine has stopped".to_owned(),
    };
    site.commands().send(command(sender)).map_err(|_| stopped())?;
    reply.await.map_err(|_| stopped())
}

fn too_large(error: &(dyn std::error::Error + Send + Sync)) -> CallRefusal {
    let message = format!("cannot read the body: {error}; the limit is {MAX_BODY_BYTES} bytes");
    CallRefusal { status: StatusCode::PAYLOAD_TOO_LARGE, message }
}

fn refuse_by_fault(status: u16) -> Response<SimBody> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let message = "refused by the fault `refuse`".to_owned();
    let mut response = error_response(&CallRefusal { status, message });
    if matches!(status.as_u16(), 429 | 503) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
