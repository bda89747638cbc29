//! A PUB socket: every subscriber gets every message of its topics, and none can block the sender.
//!
//! When the queue of a slow subscriber is full, messages to it are dropped and counted. Engines do
//! the same, which is why events have numbers.

use super::connection::ZmtpConnection;
use super::error::ZmtpError;
use super::frame;
use super::handshake::SocketKind;
use super::listener::ZmtpListener;
use bytes::{Bytes, BytesMut};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Queue of one subscriber, in messages: the default of libzmq.
const HIGH_WATER: usize = 1000;
/// Topics of one subscriber.
const MAX_TOPICS: usize = 64;
const MAX_SUBSCRIBERS: usize = 1024;

/// Delay after a failed accept, which is most likely for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A bound publisher. Dropping it closes its connections.
pub struct ZmtpPublisher {
    address: SocketAddr,
    subscribers: Arc<Subscribers>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Subscribers {
    list: Mutex<Vec<Subscriber>>,
    /// Subscribers with at least one topic, for [`ZmtpPublisher::subscribed`].
    count: watch::Sender<usize>,
}

struct Subscriber {
    number: u64,
    topics: Vec<Bytes>,
    queue: mpsc::Sender<Bytes>,
    dropped: u64,
}

impl ZmtpPublisher {
    /// Listens at `address`; port 0 is any free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = ZmtpListener::bind(address, SocketKind::Pub).await?;
        let address = listener.address();
        let subscribers = Arc::<Subscribers>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&subscribers)));
        Ok(Self { address, subscribers, _tasks: tasks })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a message to the subscribers of its topic. Never blocks.
    pub fn send<F: AsRef<[u8]>>(&self, frames: &[F]) {
        let mut framed = BytesMut::new();
        frame::put_message(&mut framed, frames);
        let framed = framed.freeze();
        let topic = frames.first().map_or(&[][..], AsRef::as_ref);
        for subscriber in self.subscribers.lock().iter_mut() {
            let wanted = subscriber.topics.iter().any(|prefix| topic.starts_with(prefix));
            if wanted && subscriber.queue.try_send(framed.clone()).is_err() {
                subscriber.dropped += 1;
            }
        }
    }

    /// Messages dropped because the queue of a current subscriber was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.subscribers.lock().iter().map(|subscriber| subscriber.dropped).sum()
    }

    /// Waits until at least `count` subscribers have a topic.
    pub async fn subscribed(&self, count: usize) {
        let mut seen = self.subscribers.count.subscribe();
        // It fails only if the sender is dropped, which `self` holds.
        let _ = seen.wait_for(|now| *now >= count).await;
    }
}

impl Subscribers {
    fn lock(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the list, and notifies waiters.
    fn change(&self, make: impl FnOnce(&mut Vec<Subscriber>)) {
        let mut subscribers = self.lock();
        make(&mut subscribers);
        let count = subscribers.iter().filter(|one| !one.topics.is_empty()).count();
        self.count.send_replace(count);
    }

    /// Handles a subscription message: a byte, 1 to subscribe or 0 to unsubscribe, and a topic.
    fn handle(&self, number: u64, message: &Bytes) {
        let Some(topic) = message.get(1..).map(|_| message.slice(1..)) else { return };
        self.change(|subscribers| {
            let Some(one) = subscribers.iter_mut().find(|one| one.number == number) else { return };
            match message[0] {
                1 if one.topics.len() < MAX_TOPICS => one.topics.push(topic),
                0 => {
                    if let Some(at) = one.topics.iter().position(|known| *known == topic) {
                        one.topics.swap_remove(at);
                    }
                }
                _ => {}
            }
        });
    }
}

async fn serve(mut listener: ZmtpListener, subscribers: Arc<Subscribers>) {
    let mut connections = JoinSet::new();
    let mut numbers = 0..;
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_SUBSCRIBERS => {
                let (Ok(connection), Some(number)) = (accepted, numbers.next()) else {
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                };
                let (queue, messages) = mpsc::channel(HIGH_WATER);
                let subscriber = Subscriber { number, topics: Vec::new(), queue, dropped: 0 };
                subscribers.change(|subscribers| subscribers.push(subscriber));
                let subscribers = Arc::clone(&subscribers);
                connections.spawn(async move {
                    let _ = serve_subscriber(connection, messages, &subscribers, number).await;
                    subscribers.change(|all| all.retain(|one| one.number != number));
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one subscriber until it disconnects.
async fn serve_subscriber(
    mut connection: ZmtpConnection<TcpStream>,
    mut messages: mpsc::Receiver<Bytes>,
    subscribers: &Subscribers,
    number: u64,
) -> Result<(), ZmtpError> {
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return Ok(()) };
                connection.send_framed(&message).await?;
            }
            received = connection.receive() => {
                received?.iter().for_each(|message| subscribers.handle(number, message));
            }
        }
    }
}
