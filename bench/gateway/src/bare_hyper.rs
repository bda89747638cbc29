//! A reverse proxy of hyper's server and client and nothing else: round-robin, one connection to
//! each pod for every client, only the header `host` is changed. Its cost is the floor of every
//! proxy on hyper.
//!
//! As in the gateway, the task that answers a client also drives the connection to the pod.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self as client, SendRequest};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context as Waking, Poll, Waker};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

type Driver = client::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection to a pod.
struct PodConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
}

/// One client's connections, one for each pod, and the next pod.
struct Upstreams {
    pods: Rc<[SocketAddr]>,
    idle: RefCell<Vec<Option<PodConnection>>>,
    next: RefCell<usize>,
}

/// Listens at a free port with a thread for each core, and forwards.
pub(crate) fn run(pods: &[SocketAddr]) -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores {
            let listener = listener.try_clone();
            scope.spawn(move || -> anyhow::Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let listener = listener.context("the listener can be shared")?;
                LocalSet::new().block_on(&runtime, accept(listener, pods.into()))
            });
        }
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    })
}

async fn accept(listener: std::net::TcpListener, pods: Rc<[SocketAddr]>) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let idle = RefCell::new((0..pods.len()).map(|_| None).collect());
        let upstreams = Rc::new(Upstreams { pods: Rc::clone(&pods), idle, next: RefCell::new(0) });
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| forward(Rc::clone(&upstreams), request));
            // The client notices a broken connection itself.
            let _ = server::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn forward(
    upstreams: Rc<Upstreams>,
    request: Request<Incoming>,
) -> Result<Response<Relay>, anyhow::Error> {
    let pod = upstreams.next.replace_with(|next| (*next + 1) % upstreams.pods.len());
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(TRANSFER_ENCODING);
    head.headers.insert(HOST, HeaderValue::from_static("pod"));
    let idle = upstreams.idle.borrow_mut()[pod].take();
    let mut connection = match idle {
        Some(connection) => connection,
        None => {
            let stream = TcpStream::connect(upstreams.pods[pod]).await?;
            stream.set_nodelay(true)?;
            let (sender, driver) = client::handshake(TokioIo::new(stream)).await?;
            PodConnection { sender, driver }
        }
    };
    let response = {
        let PodConnection { sender, driver } = &mut connection;
        let mut response = pin!(sender.send_request(Request::from_parts(head, Full::new(body))));
        poll_fn(|context| {
            let _ = Pin::new(&mut *driver).poll(context);
            response.as_mut().poll(&mut Waking::from_waker(Waker::noop()))
        })
        .await?
    };
    let (head, incoming) = response.into_parts();
    Ok(Response::from_parts(head, Relay { incoming, connection: Some(connection), upstreams, pod }))
}

/// A response body in flight.
struct Relay {
    incoming: Incoming,
    connection: Option<PodConnection>,
    upstreams: Rc<Upstreams>,
    pod: usize,
}

impl Relay {
    fn end(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            let _ = Pin::new(&mut connection.driver).poll(&mut Waking::from_waker(Waker::noop()));
            if connection.sender.is_ready() {
                self.upstreams.idle.borrow_mut()[self.pod] = Some(connection);
            }
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Waking<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut no_waker = Waking::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut self.incoming).poll_frame(&mut no_waker);
        if frame.is_pending()
            && let Some(connection) = &mut self.connection
        {
            let _ = Pin::new(&mut connection.driver).poll(context);
            frame = Pin::new(&mut self.incoming).poll_frame(&mut no_waker);
        }
        if matches!(frame, Poll::Ready(None)) || self.incoming.is_end_stream() {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
