//! Engines that a run calls directly, without a gateway in between, and inputs in local files.

use crate::answer_budget::{AnswerBudget, AnswerHold};
use crate::assemble::{Assembler, streaming, whole};
use crate::engines::{EngineHealth, LineDispatch, LineSource, Outgoing, Prefilled};
use crate::input::LineSpan;
use crate::reply::{LineReply, ReplyError};
use crate::store_error::StoreError;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wornpath_execution::{
    BreakerRules, CallError, EgressPolicy, Endpoint, EndpointError, EngineResponse, Timeouts,
    WorkerNumber, call, retry_after, splice,
};
use wornpath_planner::PodLoad;

/// The memory for metrics pages.
const PROBE_BYTES: usize = 32 << 20;
/// The timeout of a health query.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Parses the metrics page of an engine.
pub type ReadLoad = fn(&str) -> Option<PodLoad>;

/// Engines, each at its own URL.
pub struct BatchPods {
    endpoints: Vec<Arc<Endpoint>>,
    timeouts: Timeouts,
    authorization: Option<HeaderValue>,
    read_load: ReadLoad,
    answers: AnswerBudget,
    probes: AnswerBudget,
}

struct CallTarget<'a> {
    method: Method,
    path: &'a str,
}

impl std::fmt::Debug for BatchPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.endpoints.iter().map(|at| at.url())).finish()
    }
}

impl BatchPods {
    /// Pods at these URLs, under an egress policy.
    ///
    /// # Errors
    /// If a URL is invalid, or the policy denies it.
    pub fn at(
        urls: &[String],
        policy: EgressPolicy,
        timeouts: Timeouts,
        authorization: Option<HeaderValue>,
        read_load: ReadLoad,
    ) -> Result<Self, EndpointError> {
        let policy = Arc::new(policy);
        let rules = BreakerRules::default();
        let endpoint =
            |url: &String| Endpoint::new(url, rules, 1)?.with_egress_policy(&policy).map(Arc::new);
        let endpoints = urls.iter().map(endpoint).collect::<Result<_, _>>()?;
        let answers = AnswerBudget::default();
        let probes = AnswerBudget::new(PROBE_BYTES);
        Ok(Self { endpoints, timeouts, authorization, read_load, answers, probes })
    }

    async fn call(
        &self,
        pod: usize,
        target: CallTarget<'_>,
        body: Bytes,
        timeouts: Timeouts,
    ) -> Result<EngineResponse, CallError> {
        let endpoint = &self.endpoints[pod];
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = target.method;
        *request.uri_mut() = format!("{}{}", endpoint.prefix(), target.path)
            .parse()
            .expect("the prefix of a checked URL and a constant path make a path");
        let headers = request.headers_mut();
        headers.insert(HOST, endpoint.authority().clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        call(endpoint, WorkerNumber(0), request, timeouts).await
    }

    async fn send_line(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> Result<LineReply, ReplyError> {
        let streamed =
            request.is_awaited.then(|| streaming(request.interface, &request.body)).flatten();
        let body = match &streamed {
            Some(edits) => splice(&request.body, edits),
            None => splice(&request.body, &whole()),
        };
        let body = body.map_err(|error| ReplyError::Broken(error.to_string()))?;
        let target = CallTarget { method: Method::POST, path: request.interface.path() };
        let answer = self
            .call(pod, target, body, self.timeouts)
            .await
            .map_err(|error| reply_error(&error))?;
        prefilled();
        let header = |name: &str| {
            answer.head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let mut reply = LineReply {
            status: answer.head.status.as_u16(),
            request_id: header("x-request-id"),
            body: Bytes::new(),
            retry_after: retry_after(&answer.head.headers),
            held: AnswerHold::default(),
        };
        let headers = answer.head.headers;
        (reply.body, reply.held) = read_whole(&headers, answer.body, &self.answers).await?;
        Ok(reply)
    }
}

impl LineDispatch for BatchPods {
    async fn send(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> Result<LineReply, ReplyError> {
        self.send_line(pod, request, prefilled).await
    }

    async fn health(&self, pod: usize) -> Option<EngineHealth> {
        let timeouts = Timeouts {
            connect: PROBE_TIMEOUT,
            first_byte: PROBE_TIMEOUT,
            between_bytes: PROBE_TIMEOUT,
            total: PROBE_TIMEOUT,
        };
        let target = CallTarget { method: Method::GET, path: "/metrics" };
        let page = self.call(pod, target, Bytes::new(), timeouts).await.ok()?;
        let (page, _) = read_whole(&page.head.headers, page.body, &self.probes).await.ok()?;
        let pod_state = (self.read_load)(&String::from_utf8_lossy(&page));
        Some(EngineHealth { pod_state, ceiling: usize::MAX })
    }
}

fn reply_error(error: &CallError) -> ReplyError {
    match error.is_unsent() {
        true => ReplyError::Unreachable(error.to_string()),
        false => ReplyError::Broken(error.to_string()),
    }
}

/// Reads a response to its end; a stream is assembled to what it would be without streaming. Its
/// bytes come from a budget: it waits for some while others have them.
///
/// # Errors
/// If the connection is lost, the response is too large, or the stream is invalid or incomplete.
pub async fn read_whole<B>(
    headers: &HeaderMap,
    body: B,
    budget: &AnswerBudget,
) -> Result<(Bytes, AnswerHold), ReplyError>
where
    B: Body<Data = Bytes, Error = CallError> + Unpin,
{
    let mut body = body;
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let mut stream = kind.starts_with(b"text/event-stream").then(Assembler::default);
    let broken = |error: crate::StreamError| ReplyError::Broken(error.to_string());
    let mut answer = budget.begin();
    // A body of known length takes all its bytes before it has any memory: many blocks that wait
    // half filled would each be touched and freed at another time, and allocators keep freed pages.
    let mut length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut taken: usize = 0;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| reply_error(&error))?.into_data() else { continue };
        let known = length.take().filter(|_| stream.is_none());
        let more = known.unwrap_or(0).max(data.len().saturating_sub(taken));
        let grown = answer.grow(more).await;
        grown.map_err(|error| ReplyError::TooLarge(error.to_string()))?;
        taken = (taken + more).saturating_sub(data.len());
        if let Some(length) = known {
            all.reserve(length);
        }
        match &mut stream {
            Some(stream) => stream.feed(&data).map_err(broken)?,
            None => all.extend_from_slice(&data),
        }
    }
    let whole = match stream {
        Some(stream) => stream.finish().map_err(broken)?,
        None => all.freeze(),
    };
    let held = answer.finish(whole.len());
    Ok((whole, held))
}

/// An input in a file, with the spans of its lines.
#[derive(Debug)]
pub struct InputFile {
    path: PathBuf,
    file: File,
    spans: Vec<LineSpan>,
}

impl InputFile {
    /// The lines of a file, which was opened at that path.
    #[must_use]
    pub const fn new(path: PathBuf, file: File, spans: Vec<LineSpan>) -> Self {
        Self { path, file, spans }
    }

    /// The number of a line in its file, from 1.
    #[must_use]
    pub fn number(&self, line: u32) -> u32 {
        self.spans[line as usize].number
    }
}

impl LineSource for InputFile {
    fn line(&self, line: u32) -> Result<Bytes, StoreError> {
        let span = self.spans[line as usize];
        let mut bytes = vec![0; span.bytes as usize];
        let read = self.file.read_exact_at(&mut bytes, span.offset);
        read.map_err(StoreError::io("read", &self.path))?;
        Ok(bytes.into())
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path)
    }
}
