//! A PUB socket: everybody who subscribed gets what is sent, and nobody can hold the sender up.
//!
//! A subscriber that reads too slowly fills its queue, and then messages are lost to it and counted; that
//! is what engines do too, and why events have numbers.

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

/// Messages that wait for one subscriber: the default of libzmq.
const HIGH_WATER: usize = 1000;
/// Prefixes of one subscriber.
const MOST_TOPICS: usize = 64;
/// Subscribers at a time.
const MOST_SUBSCRIBERS: usize = 1024;

/// How long to wait when the system gives no more connections.
const OUT_OF_CONNECTIONS: Duration = Duration::from_millis(100);

/// A bound publisher. Dropping it closes its connections.
pub struct ZmtpPublisher {
    address: SocketAddr,
    audience: Arc<Subscribers>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Subscribers {
    subscribers: Mutex<Vec<Subscriber>>,
    /// Subscribers that have asked for something, to wait for.
    count: watch::Sender<usize>,
}

struct Subscriber {
    number: u64,
    topics: Vec<Bytes>,
    queue: mpsc::Sender<Bytes>,
    lost: u64,
}

impl ZmtpPublisher {
    /// Listens at `address`; port 0 is any free one.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = ZmtpListener::bind(address, SocketKind::Pub).await?;
        let address = listener.address();
        let audience = Arc::<Subscribers>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&audience)));
        Ok(Self { address, audience, _tasks: tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a message to everybody who asked for it. Never waits.
    pub fn send<F: AsRef<[u8]>>(&self, frames: &[F]) {
        let mut framed = BytesMut::new();
        frame::put_message(&mut framed, frames);
        let framed = framed.freeze();
        let topic = frames.first().map_or(&[][..], AsRef::as_ref);
        for subscriber in self.audience.subscribers().iter_mut() {
            let wanted = subscriber.topics.iter().any(|prefix| topic.starts_with(prefix));
            if wanted && subscriber.queue.try_send(framed.clone()).is_err() {
                subscriber.lost += 1;
            }
        }
    }

    /// Messages that subscribers who are still there did not get, because their queues were full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.audience.subscribers().iter().map(|subscriber| subscriber.lost).sum()
    }

    /// Waits until at least `count` subscribers have asked for something.
    pub async fn subscribed(&self, count: usize) {
        let mut seen = self.audience.count.subscribe();
        // The sender lives in the audience, which lives as long as this borrow.
        let _ = seen.wait_for(|now| *now >= count).await;
    }
}

impl Subscribers {
    fn subscribers(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the list, and tells who waits for it.
    fn change(&self, make: impl FnOnce(&mut Vec<Subscriber>)) {
        let mut subscribers = self.subscribers();
        make(&mut subscribers);
        let count = subscribers.iter().filter(|one| !one.topics.is_empty()).count();
        self.count.send_replace(count);
    }

    /// Takes in a subscriber's wish: a byte that says whether it comes or goes, and a topic.
    fn wish(&self, number: u64, wish: &Bytes) {
        let Some(topic) = wish.get(1..).map(|_| wish.slice(1..)) else { return };
        self.change(|subscribers| {
            let Some(one) = subscribers.iter_mut().find(|one| one.number == number) else { return };
            match wish[0] {
                1 if one.topics.len() < MOST_TOPICS => one.topics.push(topic),
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

async fn serve(mut listener: ZmtpListener, audience: Arc<Subscribers>) {
    let mut connections = JoinSet::new();
    let mut numbers = 0..;
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_SUBSCRIBERS => {
                let (Ok(connection), Some(number)) = (accepted, numbers.next()) else {
                    // Out of file descriptors, most likely: some will be closed.
                    tokio::time::sleep(OUT_OF_CONNECTIONS).await;
                    continue;
                };
                let (queue, messages) = mpsc::channel(HIGH_WATER);
                let subscriber = Subscriber { number, topics: Vec::new(), queue, lost: 0 };
                audience.change(|subscribers| subscribers.push(subscriber));
                let audience = Arc::clone(&audience);
                connections.spawn(async move {
                    let _ = attend(connection, messages, &audience, number).await;
                    audience.change(|all| all.retain(|one| one.number != number));
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One subscriber, until it goes.
async fn attend(
    mut connection: ZmtpConnection<TcpStream>,
    mut messages: mpsc::Receiver<Bytes>,
    audience: &Subscribers,
    number: u64,
) -> Result<(), ZmtpError> {
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return Ok(()) };
                connection.send_framed(&message).await?;
            }
            wish = connection.receive() => {
                wish?.iter().for_each(|wish| audience.wish(number, wish));
            }
        }
    }
}
