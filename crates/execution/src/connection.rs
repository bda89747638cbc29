//! One HTTP/1.1 connection to an engine, driven by the task that uses it.
//!
//! hyper's connection is a future that some task must poll. A task of its own would cost two more
//! wakeups for every chunk, often on another thread. So the task that waits for the response polls
//! it. An idle connection is not polled; whether the engine closed it meanwhile shows when it is
//! taken out of the pool.
//!
//! hyper wakes the driver of a connection when its socket is ready, and again when a piece of the
//! response body was read. Here one task does both, so it would poll everything twice for each
//! chunk of a stream. The two causes are therefore kept apart: socket readiness goes to an
//! [`IoWaker`], which wakes the task; all else only sets a [`DriveFlag`], which the task looks at
//! when it runs anyway. With neither, there is nothing to drive the connection for.
//!
//! tokio lets a task do 128 operations before it must yield. A read or a write counts as one of
//! them, however long it is: moving a prompt of half a megabyte would delay the tokens of every
//! other stream on the thread. So each kilobyte is charged to the task's cooperative budget as one
//! operation, and a long write goes out in pieces.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop;
use tokio_rustls::client::TlsStream;

const MAX_RESPONSE_HEAD_BYTES: usize = 64 << 10;
const MAX_RESPONSE_HEADERS: usize = 128;
/// The most that one write takes: the kernel copies all of it before it returns.
const MAX_WRITE: usize = 64 << 10;
/// Bytes that count as one operation.
const BYTES_PER_OPERATION: usize = 1 << 10;

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

/// With or without TLS.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The socket of a connection. Reads and writes wake the connection's [`IoWaker`], whichever task
/// polls.
struct ConnectionIo {
    socket: Socket,
    waker: Waker,
}

impl ConnectionIo {
    fn new(socket: Socket, io_waker: &Arc<IoWaker>) -> Self {
        Self { socket, waker: Waker::from(Arc::clone(io_waker)) }
    }
}

macro_rules! either {
    ($io:expr, ($stream:ident, $context:ident) => $call:expr) => {{
        let ConnectionIo { socket, waker } = $io.get_mut();
        let $context = &mut Context::from_waker(waker);
        match socket {
            Socket::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Socket::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    }};
}

impl AsyncRead for ConnectionIo {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for ConnectionIo {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(MAX_WRITE)];
        either!(self, (stream, context) => {
            ready!(poll_spend(context, bytes.len()));
            stream.poll_write(context, bytes)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut first = [io::IoSlice::new(&[]); 8];
        let mut count = 0;
        let mut bytes = 0;
        for piece in pieces.iter().take(first.len()) {
            let length = piece.len().min(MAX_WRITE - bytes);
            first[count] = io::IoSlice::new(&piece[..length]);
            count += 1;
            bytes += length;
        }
        either!(self, (stream, context) => {
            ready!(poll_spend(context, bytes));
            stream.poll_write_vectored(context, &first[..count])
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

/// Wakes the registered task when the socket is ready, and counts the wakeups.
struct IoWaker {
    wakeups: AtomicU64,
    task: Mutex<Waker>,
}

impl Default for IoWaker {
    fn default() -> Self {
        Self { wakeups: AtomicU64::new(0), task: Mutex::new(Waker::noop().clone()) }
    }
}

impl IoWaker {
    /// Registers the task to wake, and returns the number of wakeups so far: a later one wakes the
    /// task.
    fn register(&self, waker: &Waker) -> u64 {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
        self.wakeups.load(Ordering::Relaxed)
    }
}

impl Wake for IoWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        self.wakeups.fetch_add(1, Ordering::Relaxed);
        task.wake_by_ref();
    }
}

/// Set while a connection needs to be driven for another reason than its socket.
struct DriveFlag(AtomicBool);

impl Default for DriveFlag {
    /// A new connection needs to be driven.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl DriveFlag {
    /// Clears the flag, and returns whether it was set.
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for DriveFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Charges the task for so many bytes; pending if its budget is spent. More than 128 KiB never fit.
fn poll_spend(context: &mut Context<'_>, bytes: usize) -> Poll<()> {
    for _ in 0..bytes / BYTES_PER_OPERATION {
        ready!(coop::poll_proceed(context)).made_progress();
    }
    Poll::Ready(())
}

/// Charges the task for so many bytes that it has moved, and yields as often as they exceed its
/// budget.
pub async fn spend_coop_budget(bytes: usize) {
    for _ in 0..bytes / BYTES_PER_OPERATION {
        poll_fn(|context| poll_spend(context, BYTES_PER_OPERATION)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_long_body_is_written_in_pieces_and_yields_between_them() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_peer, _) = listener.accept().await.unwrap();
        let mut io = ConnectionIo::new(Socket::Plain(stream), &Arc::default());
        let head = [b'h'; 300];
        let body = vec![b'b'; 1 << 20];
        let pieces = [io::IoSlice::new(&head), io::IoSlice::new(&body)];
        // The kernel would take more of it.
        let first = poll_fn(|context| Pin::new(&mut io).poll_write_vectored(context, &pieces));
        assert_eq!(first.await.unwrap(), MAX_WRITE);
        tokio::task::yield_now().await;
        let mut written = 0;
        poll_fn(|context| {
            while let Poll::Ready(count) = Pin::new(&mut io).poll_write(context, &body) {
                written += count.unwrap();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(written, MAX_WRITE, "then the budget is spent");
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wakeup_goes_to_the_task_registered_last_and_is_counted() {
        let io_waker = Arc::new(IoWaker::default());
        let tasks = [(); 2].map(|()| Arc::<Count>::default());
        let woken = || [0, 1].map(|task: usize| tasks[task].0.load(Ordering::Relaxed));
        let register = |task: usize| io_waker.register(&Waker::from(Arc::clone(&tasks[task])));
        let socket = Waker::from(Arc::clone(&io_waker));
        socket.wake_by_ref();
        assert_eq!((register(0), woken()), (1, [0, 0]));
        socket.wake_by_ref();
        assert_eq!((register(1), woken()), (2, [1, 0]));
        socket.wake();
        assert_eq!((register(1), woken()), (3, [1, 1]));
    }

    #[test]
    fn a_drive_flag_is_set_until_it_is_taken() {
        let flag = Arc::new(DriveFlag::default());
        assert!(flag.take() && !flag.is_set() && !flag.take());
        Waker::from(Arc::clone(&flag)).wake();
        assert!(flag.is_set() && flag.take() && !flag.is_set());
    }
}
