//! The accept loop: takes the connections of a listener and assigns them to the workers.

use crate::http::front::{Accepted, Front};
use crate::listener::{Acceptor, set_user_timeout};
use crate::proxy::gateway::Gateway;
use crate::watchdog::heartbeat::Heartbeat;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use wornpath_execution::limit_idle_connections;

/// How the file descriptors of the process are shared. A client's request needs a connection to a
/// pod, so clients get no more than pods; the rest is for what is open already, for idle connections
/// to pods, and for probes, event sources and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DescriptorShares {
    /// Connections of clients.
    clients: usize,
    /// Idle connections to pods.
    idle: usize,
}

impl DescriptorShares {
    /// Descriptors for what is opened for a moment, such as probes.
    const SPARE: usize = 8;

    const fn new(open_files: usize, in_use: usize) -> Self {
        let idle = open_files / 8;
        let needed = in_use + idle + Self::SPARE;
        let quarter = open_files / 4;
        let reserve = if needed > quarter { needed } else { quarter };
        let clients = open_files.saturating_sub(reserve) / 2;
        Self { clients: if clients == 0 { 1 } else { clients }, idle }
    }

    /// By the soft limit of the process on open files.
    fn of_process() -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let in_use = std::fs::read_dir("/dev/fd").map_or(64, Iterator::count);
        Self::new(files, in_use)
    }
}

/// The sending end of a worker's connection queue.
pub(super) struct WorkerInbox {
    pub(super) connections: mpsc::Sender<Accepted>,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// Assigns a connection to the next worker, round robin, that is not stuck and whose inbox is not
/// full. If there is none, waits for the first that is only full; if all are stuck, for the next.
/// False if that worker has stopped.
async fn assign(inboxes: &[WorkerInbox], next: &mut usize, mut stream: Accepted) -> bool {
    let first = *next;
    let mut first_full = None;
    *next = (first + 1) % inboxes.len();
    for at in (0..inboxes.len()).map(|more| (first + more) % inboxes.len()) {
        if inboxes[at].heartbeat.is_stuck() {
            continue;
        }
        stream = match inboxes[at].connections.try_send(stream) {
            Ok(()) => {
                *next = (at + 1) % inboxes.len();
                return true;
            }
            Err(TrySendError::Full(stream) | TrySendError::Closed(stream)) => stream,
        };
        first_full.get_or_insert(at);
    }
    inboxes[first_full.unwrap_or(first)].connections.send(stream).await.is_ok()
}

/// A listener of clients or data planes.
pub(super) struct ClientListener {
    pub(super) front: Front,
    pub(super) inboxes: Arc<[WorkerInbox]>,
    /// The inbox that gets the next connection.
    pub(super) next: usize,
    pub(super) gateway: Arc<Gateway>,
}

impl ClientListener {
    /// Accepts connections until the server drains; those that the system has accepted by then too.
    pub(super) async fn accept(
        mut self,
        mut acceptor: Acceptor,
        mut closing: watch::Receiver<bool>,
    ) {
        let shares = DescriptorShares::of_process();
        limit_idle_connections(shares.idle);
        let configured = self.gateway.settings().limits.connections;
        if shares.clients < configured {
            tracing::warn!(
                configured,
                allowed = shares.clients,
                "the open-file limit allows fewer client connections than `limits.connections`; \
                 raise it (`ulimit -n`, `LimitNOFILE`)"
            );
        }
        let closing = async move { closing.wait_for(|is_closing| *is_closing).await.is_ok() };
        let mut closing = pin!(closing);
        loop {
            let next = async {
                self.room(shares).await;
                acceptor.accept().await
            };
            let stream = tokio::select! {
                biased;
                _ = &mut closing => break,
                stream = next => stream,
            };
            #[cfg(debug_assertions)]
            crate::fault::stick_accept();
            self.admit(stream).await;
        }
        for stream in acceptor.into_pending() {
            self.room(shares).await;
            self.admit(stream).await;
        }
    }

    /// Waits until one more connection may be open.
    async fn room(&self, shares: DescriptorShares) {
        let gateway = &self.gateway;
        while gateway.connections() >= gateway.settings().limits.connections.min(shares.clients) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Assigns a connection to a worker.
    async fn admit(&mut self, stream: TcpStream) {
        let user_timeout = self.gateway.settings().timeouts.between_bytes;
        if stream.set_nodelay(true).is_err() {
            return;
        }
        if let Err(error) = set_user_timeout(&stream, user_timeout) {
            tracing::debug!(%error, "cannot set the TCP user timeout");
        }
        self.gateway.connection_count().fetch_add(1, Relaxed);
        let accepted = stream.into_std().map(|stream| Accepted { front: self.front, stream });
        let is_assigned = match accepted {
            Ok(accepted) => assign(&self.inboxes, &mut self.next, accepted).await,
            Err(_) => false,
        };
        if !is_assigned {
            self.gateway.connection_count().fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::heartbeat::Threads;

    #[test]
    fn clients_get_no_more_descriptors_than_the_pods_that_answer_them() {
        for (open_files, in_use, clients) in [(128, 30, 37), (1024, 30, 384), (64, 60, 1)] {
            let shares = DescriptorShares::new(open_files, in_use);
            assert_eq!(shares.clients, clients, "{open_files}");
            let all = 2 * clients + shares.idle + in_use;
            assert!(all <= open_files || clients == 1, "{open_files}: {all}");
        }
    }

    #[tokio::test]
    async fn connections_are_assigned_round_robin_but_not_to_stuck_or_full_workers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || Accepted {
            front: Front::Client,
            stream: std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
        };
        let threads = Threads::default();
        let mut next = 0;
        let (inboxes, mut workers): (Vec<_>, Vec<_>) = (0..3)
            .map(|number| {
                let (connections, worker) = mpsc::channel(2);
                let heartbeat = threads.add(&format!("worker-{number}"));
                (WorkerInbox { connections, heartbeat }, worker)
            })
            .unzip();
        let mut assign_many = async |inboxes: &[WorkerInbox], count| {
            for _ in 0..count {
                assert!(assign(inboxes, &mut next, stream()).await);
            }
        };
        assign_many(&inboxes, 3).await;
        let queued = |workers: &[mpsc::Receiver<_>]| -> Vec<_> {
            workers.iter().map(mpsc::Receiver::len).collect()
        };
        assert_eq!(queued(&workers), [1, 1, 1]);
        inboxes[1].heartbeat.set_stuck(true);
        assign_many(&inboxes, 2).await;
        assert_eq!(queued(&workers), [2, 1, 2]);
        workers[2].recv().await.unwrap();
        assign_many(&inboxes, 1).await;
        assert_eq!(queued(&workers), [2, 1, 2], "the first worker's inbox was full");
        inboxes[1].heartbeat.set_stuck(false);
        assign_many(&inboxes, 1).await;
        assert_eq!(queued(&workers), [2, 2, 2]);
        // All inboxes are full: it waits for the next worker.
        let (assigned, _) = tokio::join!(assign_many(&inboxes, 1), workers[2].recv());
        assert_eq!((assigned, queued(&workers)), ((), vec![2, 2, 2]));
    }
}
