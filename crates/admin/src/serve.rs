//! The HTTP server of the admin plane.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::json;
use tokio::net::TcpListener;

use crate::admin::Admin;
use crate::call::{AdminBody, AdminCall, AdminError, AdminReply, AdminResult, AdminRoute};
use crate::page::protect;
use crate::routes::ROUTES;
use crate::table::{RouteMatch, find};
use crate::viewers::LiveStream;
use wornpath_gateway::http::metrics_page::PageFormat;
use wornpath_gateway::listener::{
    Acceptor, Admission, ConnectionLimits, serve_connection, serve_connections, set_user_timeout,
};
use wornpath_gateway::watchdog::heartbeat::named;

/// Maximum body size: a request to be explained may be as long as any.
const MOST_BYTES: usize = 16 << 20;
/// Half of the connections are left to callers whose requests are allowed.
const CONNECTIONS: ConnectionLimits = ConnectionLimits { total: 64, unadmitted: 32 };
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

type AdminOutput = Response<Either<Full<Bytes>, LiveStream>>;

/// Serves connections until the future is dropped.
pub async fn serve(admin: Arc<Admin>, listener: Arc<TcpListener>) -> Infallible {
    serve_connections(Acceptor::new(listener, "admin"), CONNECTIONS, |stream, admission| {
        // A client that stops reading would hold its connection, and a viewer slot.
        let _ = set_user_timeout(&stream, WRITE_TIMEOUT);
        let tls = admin.gateway.settings().tls.admin.clone();
        let admin = Arc::clone(&admin);
        let answer = service_fn(move |request| {
            let admin = Arc::clone(&admin);
            let admission = admission.clone();
            async move { Ok::<_, Infallible>(respond(admin, request, admission).await) }
        });
        named("admin connection", serve_connection(stream, tls, answer))
    })
    .await
}

async fn respond(
    admin: Arc<Admin>,
    request: Request<Incoming>,
    admission: Admission,
) -> AdminOutput {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let routes = ROUTES.iter().map(|route| (route.method.method(), route.path, route));
    let found = find(routes, &head.method, &path);
    let is_public = matches!(&found, RouteMatch::Route(route, _) if route.is_public());
    let tls = admin.gateway.settings().tls.admin.clone();
    let is_own_name = |name: &str| tls.as_ref().is_some_and(|tls| tls.is_for(name));
    let refused = admin.access.refuses_page(&head.headers, is_own_name);
    if let Some(why) = refused {
        return shown(Err(AdminError::new(401, why)));
    }
    match admin.access.refuses_caller(&head.headers) {
        None => admission.admit(),
        Some(_) if is_public => {}
        Some(why) => return shown(Err(AdminError::new(401, why))),
    }
    let (route, name) = match found {
        RouteMatch::Route(route, name) => (route, name.unwrap_or_default()),
        RouteMatch::OtherMethods(methods) => {
            let methods: Vec<_> = methods.iter().map(hyper::Method::as_str).collect();
            let methods = methods.join(", ");
            let mut answer = shown(Err(AdminError::new(
                405,
                format!("method not allowed; {path} supports {methods}"),
            )));
            if let Ok(methods) = HeaderValue::from_str(&methods) {
                answer.headers_mut().insert(ALLOW, methods);
            }
            return answer;
        }
        RouteMatch::Nothing => {
            let message = format!("unknown path {path}; GET /openapi.json lists all paths");
            return shown(Err(AdminError::new(404, message)));
        }
    };
    if is_public {
        // Served without a token, so the body is not awaited.
        return shown((route.answer)(&AdminCall {
            admin: &admin,
            name: &name,
            query: "",
            page_format: PageFormat::Text,
            body: b"",
        }));
    }
    if !body.is_end_stream()
        && let Err(refusal) = check_content_type(&head.headers, route)
    {
        return shown(Err(refusal));
    }
    let body = Limited::new(body, MOST_BYTES).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return shown(Err(AdminError::new(
                413,
                format!("request body exceeds {MOST_BYTES} bytes"),
            )));
        }
        Ok(Err(error)) => {
            return shown(Err(AdminError::new(
                400,
                format!("connection closed before the end of the body: {error}"),
            )));
        }
        Err(_) => return shown(Err(AdminError::new(408, "timed out reading the request body"))),
    };
    let page_format = PageFormat::wanted(&head.headers);
    let query = head.uri.query().unwrap_or_default().to_owned();
    // Reading files, loading tokenizers and explaining long prompts block for a while.
    let answered = tokio::task::spawn_blocking(move || {
        (route.answer)(&AdminCall {
            admin: &admin,
            name: &name,
            query: &query,
            page_format,
            body: &body,
        })
    });
    shown(answered.await.unwrap_or_else(|_| {
        Err(AdminError::new(500, "internal error: the request panicked; see the log"))
    }))
}

/// Refuses a body of another content type than the route reads, or of none: any web page can post a
/// form, or bytes without a type, to any address.
fn check_content_type(headers: &HeaderMap, route: &AdminRoute) -> Result<(), AdminError> {
    let expected = match route.takes {
        Some((AdminBody::Text, _)) => "application/yaml",
        _ => "application/json",
    };
    let found = headers.get(CONTENT_TYPE).map(|found| String::from_utf8_lossy(found.as_bytes()));
    let essence = found.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let path = route.path.0;
    let found = found.map_or("missing".into(), |found| format!("`{found}`"));
    Err(AdminError::new(415, format!("content-type is {found}; {path} takes `{expected}`")))
}

fn shown(answer: AdminResult) -> AdminOutput {
    let whole = |text: String| Either::Left(Full::new(Bytes::from(text)));
    let (status, kind, body) = match answer {
        Ok(AdminReply::Json(value)) => (200, "application/json", whole(value.to_string())),
        Ok(AdminReply::Text { kind, text }) => (200, kind, whole(text)),
        Ok(AdminReply::Stream(stream)) => (200, "text/event-stream", Either::Right(stream)),
        Ok(AdminReply::Asset(asset)) => {
            (200, asset.kind, Either::Left(Full::new(Bytes::from_static(asset.text.as_bytes()))))
        }
        Err(AdminError { status, message, problems }) => {
            let mut error = json!({ "message": message });
            if let Some(problems) = problems {
                error["problems"] = problems;
            }
            (status, "application/json", whole(json!({ "error": error }).to_string()))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    protect(response.headers_mut());
    response
}
