//! One HTTP/1.1 connection to an engine, driven by the task that uses it.
//!
//! hyper's connection is a future that some task must poll. A task of its own would cost two more
//! wakeups for every chunk, often on another thread. So the task that waits for the response polls
//! it. An idle connection is not polled; whether the engine closed it meanwhile shows when it is
//! taken out of the pool.

use crate::io::{ConnectionIo, Socket};
use crate::io_waker::{DriveFlag, IoWaker};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const MAX_RESPONSE_HEAD_BYTES: usize = 64 << 10;
const MAX_RESPONSE_HEADERS: usize = 128;

type ConnectionDriver = http1::Connection<TokioIo<ConnectionIo>, Full<Bytes>>;

pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// The endpoint's policy epoch when it was opened.
    pub(crate) policy_epoch: u64,
    /// None once it has ended. Boxed, because it is large and every request moves it a dozen times.
    driver: Option<Box<ConnectionDriver>>,
    io_waker: Arc<IoWaker>,
    /// The count of `io_waker` when it was last driven.
    wakeups: u64,
    drive_flag: Arc<DriveFlag>,
    /// Sets `drive_flag`; hyper gets it while the connection is driven.
    drive_waker: Waker,
}

impl Connection {
    pub(crate) async fn open(stream: Socket, policy_epoch: u64) -> hyper::Result<Self> {
        let io_waker = Arc::new(IoWaker::default());
        let drive_flag = Arc::new(DriveFlag::default());
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_RESPONSE_HEAD_BYTES)
            .max_headers(MAX_RESPONSE_HEADERS)
            .handshake(TokioIo::new(ConnectionIo::new(stream, &io_waker)))
            .await?;
        let driver = Some(Box::new(driver));
        let drive_waker = Waker::from(Arc::clone(&drive_flag));
        Ok(Self { sender, policy_epoch, driver, io_waker, wakeups: 0, drive_flag, drive_waker })
    }

    /// Lets the connection read and write what it can. Wakes the task when it can do more.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        let Some(driver) = &mut self.driver else { return };
        let wakeups = self.io_waker.register(context.waker());
        if !self.drive_flag.take() && wakeups == self.wakeups {
            return;
        }
        self.wakeups = wakeups;
        let mut flagging = Context::from_waker(&self.drive_waker);
        if let Poll::Ready(_ended) = Pin::new(&mut **driver).poll(&mut flagging) {
            // The response or its body reports how it ended.
            self.driver = None;
        } else if self.drive_flag.is_set() {
            // It has more to do, and yields to other tasks first.
            context.waker().wake_by_ref();
        }
    }

    /// Whether another request can be sent. Notices if the engine has closed it meanwhile.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("open", &self.driver.is_some()).finish()
    }
}
