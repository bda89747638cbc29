//! The routes of the Files and Batches APIs.

use crate::batches::Batches;
use crate::download::Download;
use crate::error::BatchError;
use crate::lists::{ListQuery, OF_BATCHES, OF_FILES};
use crate::new_batch::{expires_after, identical_once, metadata, window};
use crate::quota::{check_batch_quota, check_entry_quota};
use crate::{explained, retry, task, upload};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use wornpath_gateway::Api;
use wornpath_gateway::local_api::{LocalApi, LocalResponse};
use wornpath_gateway::proxy::body::{BodyError, BodyRules, BodySender, ReceivedBody, read};
use wornpath_gateway::proxy::body_pace::PaceError;
use wornpath_gateway::proxy::ingress::tenant;
use wornpath_gateway::proxy::unix_time;
use wornpath_gateway::reply::ClientReply;
use wornpath_index::Moment;
use wornpath_jobs::{
    Batch, BatchStatus, ByteCheck, FileEntry, Interface, NewBatch, RecordKind, RunControl, Store,
    StoreError,
};
use wornpath_routing::Name;

/// Maximum body size of a call other than an upload.
const MOST_BYTES: usize = 1 << 20;

impl LocalApi for Batches {
    fn serves(&self, path: &str) -> bool {
        ["/v1/files", "/v1/batches"].iter().any(|prefix| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn respond(self: Arc<Self>, request: Request<Incoming>, address: IpAddr) -> LocalResponse {
        Box::pin(async move {
            let settings = self.worker.gateway().settings();
            let tenant = match tenant(request.headers(), &settings) {
                Ok(tenant) => tenant.map(|tenant| &tenant.name),
                Err(refusal) => return refusal.response(Api::OTHER),
            };
            let answered = answer(&self, BodySender { tenant, address }, request).await;
            answered.unwrap_or_else(|error| error.response())
        })
    }

    fn overview(&self, now: Moment) -> Value {
        let running: Vec<String> = self.running().keys().cloned().collect();
        self.overview.list(&running, &*self.store, now).into()
    }

    fn forest(&self, batch: &str) -> Option<Value> {
        self.overview.forest(batch).map(|forest| Value::clone(&forest))
    }
}

async fn answer(
    batches: &Arc<Batches>,
    sender: BodySender<'_>,
    request: Request<Incoming>,
) -> Result<Response<ClientReply>, BatchError> {
    let owner = sender.tenant.map_or("", Name::as_str);
    let path = request.uri().path().to_owned();
    let query = ListQuery::of(request.uri().query());
    let parts: Vec<_> = path.trim_matches('/').split('/').skip(1).collect();
    match (request.method(), &parts[..]) {
        (&Method::POST, ["files"]) => {
            Ok(json_response(&upload::upload(batches, owner, request).await?.to_json()))
        }
        (&Method::GET, ["files"]) => {
            let own = owner.to_owned();
            let all = batches.with_store(move |store| store.files(&own)).await?;
            Ok(json_response(&query.page(&query.chosen(all)?, OF_FILES)?))
        }
        (&Method::GET, ["files", id]) => {
            Ok(json_response(&file(batches, owner, id).await?.to_json()))
        }
        (&Method::DELETE, ["files", id]) => {
            let FileEntry { id, bytes, .. } = file(batches, owner, id).await?;
            let deleted = id.clone();
            batches.with_store(move |store| store.remove_file(&deleted)).await?;
            batches.storage_quotas.freed(owner, bytes);
            Ok(json_response(&json!({"id": id, "object": "file", "deleted": true})))
        }
        (&Method::GET, ["files", id, "content"]) => {
            let entry = file(batches, owner, id).await?;
            let check = ByteCheck::file(&entry);
            let read = move |store: &dyn Store, offset: u64, buffer: &mut [u8]| {
                store.read_file(&entry.id, offset, buffer)
            };
            let download = Download { read, check, from: 0 };
            Ok(lines_response(download.start(batches).await?))
        }
        (&Method::POST, ["batches"]) => {
            let body = whole(batches, sender, request.into_body()).await?;
            create(batches, owner, &body.bytes).await
        }
        (&Method::GET, ["batches"]) => {
            let own = owner.to_owned();
            let all = batches.with_store(move |store| store.batches(&own)).await?;
            Ok(json_response(&query.page(&all, OF_BATCHES)?))
        }
        (&Method::GET, ["batches", id]) => {
            Ok(json_response(&batch(batches, owner, id).await?.to_json()))
        }
        (&Method::POST, ["batches", id, "cancel"]) => cancel(batches, owner, id).await,
        (&Method::POST, ["batches", id, "retry"]) => {
            let old = batch(batches, owner, id).await?;
            let permit = batches.acquire_reader().await;
            check_batch_quota(batches, owner).await?;
            check_entry_quota(batches, owner).await?;
            Ok(json_response(&retry::retry(batches, old, permit).await?.to_json()))
        }
        (&Method::GET, ["batches", id, "plan"]) => {
            let batch = batch(batches, owner, id).await?;
            Ok(json_response(&explained::explained(batches, batch).await?))
        }
        (&Method::GET, ["batches", id, "results"]) => results(batches, owner, id, &query).await,
        (_, _) => Err(BatchError::not_found(format!("invalid URL ({} {path})", request.method()))),
    }
}

async fn file(batches: &Arc<Batches>, owner: &str, id: &str) -> Result<FileEntry, BatchError> {
    let wanted = id.to_owned();
    match batches.with_store(move |store| store.file(&wanted)).await {
        Ok(file) if file.owner == owner => Ok(file),
        // A file of another owner does not exist for this one.
        Ok(_) | Err(StoreError::Missing(_)) => {
            Err(BatchError::not_found(format!("no such file: `{id}`")))
        }
        Err(error) => Err(error.into()),
    }
}

async fn batch(batches: &Arc<Batches>, owner: &str, id: &str) -> Result<Batch, BatchError> {
    let wanted = id.to_owned();
    match batches.with_store(move |store| store.batch(&wanted)).await {
        Ok(batch) if batch.owner == owner => Ok(batch),
        Ok(_) | Err(StoreError::Missing(_)) => {
            Err(BatchError::not_found(format!("no batch found with id `{id}`")))
        }
        Err(error) => Err(error.into()),
    }
}

async fn create(
    batches: &Arc<Batches>,
    owner: &str,
    body: &[u8],
) -> Result<Response<ClientReply>, BatchError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        BatchError::invalid(&format!("could not parse the JSON body of the request: {error}"), None)
    })?;
    let text = |field: &'static str| {
        value[field].as_str().ok_or_else(|| {
            BatchError::invalid(&format!("missing required parameter: `{field}`"), Some(field))
        })
    };
    let endpoint = text("endpoint")?;
    let interface = Interface::at(endpoint).ok_or_else(|| {
        let known: Vec<_> = Interface::ALL.iter().map(|known| known.path()).collect();
        let message =
            format!("invalid value: `{endpoint}`; supported values are: {}", known.join(", "));
        BatchError::invalid(&message, Some("endpoint"))
    })?;
    let window = window(text("completion_window")?)?;
    let input = file(batches, owner, text("input_file_id")?).await?;
    if input.purpose != "batch" {
        return Err(BatchError::invalid(
            "invalid `input_file_id`: the purpose of the file must be `batch`",
            Some("input_file_id"),
        ));
    }
    let new = NewBatch {
        id: batches.new_id("batch_"),
        owner: owner.to_owned(),
        interface,
        input_file_id: input.id,
        window,
        metadata: metadata(&value["metadata"])?,
    };
    let mut batch = Batch::new(new, unix_time());
    batch.output_expires_after = expires_after(&value["output_expires_after"])?;
    batch.identical_once = identical_once(&value["identical_once"])?;
    let kept = batch.clone();
    // One after another, so that no two batches share the rest of a quota.
    let creating = batches.creating.lock().await;
    check_batch_quota(batches, owner).await?;
    check_entry_quota(batches, owner).await?;
    batches.with_store(move |store| store.add_batch(kept)).await?;
    drop(creating);
    task::start(batches, &batch);
    Ok(json_response(&batch.to_json()))
}

/// Reads the body of a call.
async fn whole(
    batches: &Batches,
    sender: BodySender<'_>,
    mut body: Incoming,
) -> Result<ReceivedBody, BatchError> {
    let gateway = batches.worker.gateway();
    let settings = gateway.settings();
    let limits = &settings.limits;
    let rules = BodyRules { budget: gateway.bodies(), limits, most: MOST_BYTES, sender };
    read(&mut body, &rules).await.map_err(|error| match error {
        BodyError::Pace(PaceError::Timeout(time)) => BatchError::timeout("request body", time),
        BodyError::Pace(PaceError::TooSlow(_)) => BatchError::too_slow("request body"),
        BodyError::TooLarge(_) | BodyError::Pace(PaceError::Closed(_)) => {
            BatchError::invalid("request body is too large or incomplete", None)
        }
        BodyError::Full(shortage) => {
            BatchError::new(StatusCode::SERVICE_UNAVAILABLE, shortage.to_string())
        }
    })
}

async fn cancel(
    batches: &Arc<Batches>,
    owner: &str,
    id: &str,
) -> Result<Response<ClientReply>, BatchError> {
    let id = batch(batches, owner, id).await?.id;
    let wanted = id.clone();
    let cancelled = batches
        .with_store(move |store| {
            store.change(&wanted, &mut |batch| match batch.status() {
                BatchStatus::Cancelling => Ok(()),
                _ => batch.reach(BatchStatus::Cancelling, unix_time()),
            })
        })
        .await?;
    if let Some(running) = batches.running().get(&id) {
        running.send_replace(RunControl::Finish);
    }
    Ok(json_response(&cancelled.to_json()))
}

/// The results so far, from byte `after` on.
async fn results(
    batches: &Arc<Batches>,
    owner: &str,
    id: &str,
    query: &ListQuery,
) -> Result<Response<ClientReply>, BatchError> {
    let id = batch(batches, owner, id).await?.id;
    let wrong =
        || BatchError::invalid("invalid `after`: it must be a number of bytes", Some("after"));
    let after: u64 = match &query.after {
        None => 0,
        Some(after) => after.parse().map_err(|_| wrong())?,
    };
    let of = id.clone();
    let check =
        batches.with_store(move |store| store.check_results(&of, RecordKind::Output, after));
    let check = check.await?;
    let read = move |store: &dyn Store, offset: u64, buffer: &mut [u8]| {
        store.read_results(&id, RecordKind::Output, offset, buffer)
    };
    Ok(lines_response(Download { read, check, from: after }.start(batches).await?))
}

fn json_response(value: &Value) -> Response<ClientReply> {
    let mut response = Response::new(ClientReply::whole(Bytes::from(value.to_string())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn lines_response(reply: ClientReply) -> Response<ClientReply> {
    let mut response = Response::new(reply);
    let kind = HeaderValue::from_static("application/jsonl");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
