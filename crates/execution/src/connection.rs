//! One connection to an engine, driven by whoever uses it.
//!
//! hyper's connection is a future that somebody must poll. A task of its own for it would mean two more
//! wake-ups for every chunk, on another thread as often as not. So whoever waits for the answer polls it;
//! an idle connection is polled by nobody, and looked at when it is taken out.

use crate::io::{ConnectionIo, Socket};
use crate::io_waker::{DriveFlag, IoWaker};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The most bytes that an engine's response head may have.
const MOST_HEAD_BYTES: usize = 64 << 10;
const MOST_HEADERS: usize = 128;

type ConnectionDriver = http1::Connection<TokioIo<ConnectionIo>, Full<Bytes>>;

/// A connection.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// By which of its endpoint's rules it was opened.
    pub(crate) rules: u64,
    /// None once it has ended. Boxed, because it is large and every request hands it on a dozen times.
    driver: Option<Box<ConnectionDriver>>,
    bell: Arc<IoWaker>,
    /// How often the bell had rung when it was last driven.
    rings: u64,
    wish: Arc<DriveFlag>,
    /// With which it is driven: that of `wish`.
    waker: Waker,
}

impl Connection {
    pub(crate) async fn open(stream: Socket, rules: u64) -> hyper::Result<Self> {
        let (bell, wish) = (Arc::new(IoWaker::default()), Arc::new(DriveFlag::default()));
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MOST_HEAD_BYTES)
            .max_headers(MOST_HEADERS)
            .handshake(TokioIo::new(ConnectionIo::new(stream, &bell)))
            .await?;
        let (driver, waker) = (Some(Box::new(driver)), Waker::from(Arc::clone(&wish)));
        Ok(Self { sender, rules, driver, bell, rings: 0, wish, waker })
    }

    /// Lets the connection read and write what it can. Wakes the task when it can do more.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        let Some(driver) = &mut self.driver else { return };
        let rings = self.bell.listen(context.waker());
        if !self.wish.take() && rings == self.rings {
            return;
        }
        self.rings = rings;
        let mut wishing = Context::from_waker(&self.waker);
        if let Poll::Ready(_ended) = Pin::new(&mut **driver).poll(&mut wishing) {
            // How it ended, the response or its body says.
            self.driver = None;
        } else if self.wish.is_there() {
            // It has more to do, but lets others have their turn.
            context.waker().wake_by_ref();
        }
    }

    /// Whether another request can be sent. Notices if the engine has closed it meanwhile.
    pub(crate) fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("open", &self.driver.is_some()).finish()
    }
}
