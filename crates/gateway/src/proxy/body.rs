//! Reads the body of a request into memory: within its size, within the budget of all bodies, and
//! in time.

use crate::proxy::body_budget::{BodyBudget, BodyReservation, Shortage, UNCOUNTED};
use crate::proxy::body_pace::{BodyPace, BodyTimeout, PaceError};
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::sender::Sender;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use wornpath_config::GatewayLimits;
use wornpath_execution::spend_coop_budget;
use wornpath_routing::{Name, Rejection, RejectionCause};

/// How long the rest of a refused body is discarded.
const LINGER: Duration = Duration::from_secs(2);

/// The client that sends a body.
#[derive(Clone, Copy, Debug)]
pub struct BodySender<'a> {
    /// Its tenant, if there are tenants.
    pub tenant: Option<&'a Name>,
    /// The address of its connection. Headers that name another one can be forged.
    pub address: IpAddr,
}

/// What a body is read within.
#[derive(Clone, Copy, Debug)]
pub struct BodyRules<'a> {
    /// The budget of all bodies.
    pub budget: &'a Arc<BodyBudget>,
    /// Its limit, and the timeouts.
    pub limits: &'a GatewayLimits,
    /// Maximum bytes of the body.
    pub most: usize,
    /// Who sends it.
    pub sender: BodySender<'a>,
}

/// Why a body was not read to its end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyError {
    /// It is longer than allowed.
    #[error("body too large: more than {0} bytes (`limits.body`)")]
    TooLarge(usize),
    /// Its bytes do not arrive.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// There is no room for it.
    #[error(transparent)]
    Full(#[from] Shortage),
}

impl From<BodyError> for ErrorResponse {
    fn from(error: BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, message),
            BodyError::Pace(PaceError::Closed(_)) => Self::bad(message),
            BodyError::Pace(_) => Self::new(StatusCode::REQUEST_TIMEOUT, message),
            BodyError::Full(_) => {
                let cause = RejectionCause::Saturated;
                Rejection { cause, ..Rejection::unavailable(&message) }.into()
            }
        }
    }
}

/// A complete body.
#[derive(Debug)]
pub struct ReceivedBody {
    /// Its bytes.
    pub bytes: Bytes,
    /// What it holds of the budget, to be kept as long as the bytes; none for a short one.
    pub reservation: Option<BodyReservation>,
}

/// Reads a body to its end.
///
/// # Errors
/// If it is too large, too slow or incomplete, or if there is no room for it.
pub async fn read<B>(body: &mut B, rules: &BodyRules<'_>) -> Result<ReceivedBody, BodyError>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let BodyRules { budget, limits, most, sender } = *rules;
    let size = body.size_hint();
    if size.lower() > most as u64 {
        return Err(BodyError::TooLarge(most));
    }
    let expected = size.lower() as usize;
    let longest = size.exact().map_or(most, |_| expected);
    let mut pace = BodyPace::start(BodyTimeout::Whole(limits.body_time), limits.body_grace);
    let mut collected = CollectedBody { expected, first: Bytes::new(), all: BytesMut::new() };
    let mut reservation: Option<BodyReservation> = None;
    loop {
        let data = match pace.next(body).await {
            Ok(Some(data)) => data,
            Ok(None) => break,
            Err(error) => {
                if matches!(error, PaceError::TooSlow(_)) {
                    budget.count_too_slow();
                }
                return Err(error.into());
            }
        };
        spend_coop_budget(data.len()).await;
        let length = collected.len() + data.len();
        if length > most {
            return Err(BodyError::TooLarge(most));
        }
        if length > UNCOUNTED {
            let held =
                reservation.get_or_insert_with(|| BodyReservation::new(budget, sender.owner()));
            if length > held.bytes() {
                held.grow(length, longest, limits.body_budget()).await?;
                pace.resume();
            }
        }
        collected.push(data);
    }
    let bytes = collected.finish();
    if let Some(reservation) = &mut reservation {
        reservation.shrink(bytes.len());
    }
    Ok(ReceivedBody { bytes, reservation })
}

/// Drops what a client still sends of a refused body, for a while. Otherwise the connection would
/// be reset, and a client that sends all of a request before it reads would not see the response.
pub(crate) fn discard(mut body: Incoming, most: usize) {
    if body.is_end_stream() {
        return;
    }
    let rest = async move {
        let mut bytes = 0;
        while bytes <= most
            && let Some(Ok(frame)) = body.frame().await
        {
            let length = frame.data_ref().map_or(0, Bytes::len);
            spend_coop_budget(length).await;
            bytes += length;
        }
    };
    tokio::spawn(tokio::time::timeout(LINGER, rest));
}

impl BodySender<'_> {
    fn owner(&self) -> Sender {
        match self.tenant {
            Some(tenant) => Sender::Tenant(tenant.clone()),
            None => Sender::at(self.address),
        }
    }
}

/// The bytes so far. A body of a single frame is not copied.
struct CollectedBody {
    /// The length that the client declared.
    expected: usize,
    first: Bytes,
    all: BytesMut,
}

impl CollectedBody {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            // Memory that is not written yet takes no room.
            self.all.reserve(self.expected.max(self.first.len() + data.len()));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ClientReply;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: fn() -> GatewayLimits = || GatewayLimits {
        body_bytes: 1 << 20,
        bodies_bytes: 2 << 20,
        body_time: 60 * SECOND,
        body_grace: 10 * SECOND,
        ..GatewayLimits::default()
    };

    /// Reads a body whose pieces `send` sends.
    async fn read_sent(
        budget: &Arc<BodyBudget>,
        send: impl AsyncFnOnce(mpsc::Sender<Option<Bytes>>),
    ) -> Result<ReceivedBody, BodyError> {
        let (pieces, receiver) = mpsc::channel(1);
        let limits = LIMITS();
        let sender = BodySender { tenant: None, address: IpAddr::from([10, 0, 0, 1]) };
        let rules = BodyRules { budget, limits: &limits, most: limits.body_bytes, sender };
        // Drops the body when it was read, so that the sender learns of it.
        let reading = async {
            let mut body = ClientReply::Pieces(receiver);
            read(&mut body, &rules).await
        };
        let (read, ()) = tokio::join!(reading, send(pieces));
        read
    }

    fn piece(bytes: usize) -> Option<Bytes> {
        Some(Bytes::from(vec![b'a'; bytes]))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_counted_beyond_64_kib_and_given_back_when_it_is_dropped() {
        let budget = Arc::<BodyBudget>::default();
        for (lengths, counted) in [
            (vec![], 0),
            (vec![100], 0),
            (vec![UNCOUNTED], 0),
            (vec![UNCOUNTED / 2; 2], 0),
            (vec![UNCOUNTED, 1], UNCOUNTED + 1),
            (vec![50_000; 20], 1_000_000),
            (vec![1 << 20], 1 << 20),
        ] {
            let sum: usize = lengths.iter().sum();
            let received = read_sent(&budget, async |pieces| {
                for length in lengths {
                    pieces.send(piece(length)).await.unwrap();
                }
                pieces.send(None).await.unwrap();
            });
            let received = received.await.unwrap();
            assert_eq!((received.bytes.len(), budget.held()), (sum, counted));
            drop(received);
            assert_eq!(budget.held(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_fails_gives_its_bytes_back() {
        let budget = Arc::<BodyBudget>::default();
        let too_large =
            read_sent(&budget, async |pieces| while pieces.send(piece(100_000)).await.is_ok() {});
        assert_eq!(too_large.await.unwrap_err(), BodyError::TooLarge(1 << 20));
        let closed = read_sent(&budget, async |pieces| {
            pieces.send(piece(100_000)).await.unwrap();
        });
        let closed = closed.await.unwrap_err();
        assert!(matches!(closed, BodyError::Pace(PaceError::Closed(_))), "{closed:?}");
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_or_trickles_is_ended_after_the_grace_period() {
        let budget = Arc::<BodyBudget>::default();
        for sent in [0, 1, 500_000] {
            let started = Instant::now();
            let stalled = read_sent(&budget, async |pieces| {
                pieces.send(piece(sent)).await.unwrap();
                pieces.closed().await;
            });
            let error = stalled.await.unwrap_err();
            assert_eq!(error, BodyError::Pace(PaceError::TooSlow(10 * SECOND)));
            assert!(started.elapsed() < 11 * SECOND, "{:?}", started.elapsed());
        }
        let trickles = read_sent(&budget, async |pieces| {
            while pieces.send(piece(512)).await.is_ok() {
                sleep(SECOND).await;
            }
        });
        let started = Instant::now();
        let error = trickles.await.unwrap_err();
        assert_eq!(error, BodyError::Pace(PaceError::TooSlow(10 * SECOND)));
        assert!(started.elapsed() < 25 * SECOND, "{:?}", started.elapsed());
        assert_eq!((budget.refused().slow, budget.held()), (4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_keeps_the_minimum_rate_has_until_the_timeout() {
        let budget = Arc::<BodyBudget>::default();
        let send_for = async |seconds: usize| {
            let sent = read_sent(&budget, async |pieces| {
                for _ in 0..seconds {
                    sleep(SECOND).await;
                    if pieces.send(piece(1 << 10)).await.is_err() {
                        return;
                    }
                }
                let _ = pieces.send(None).await;
            });
            sent.await.map(|received| received.bytes.len())
        };
        assert_eq!(send_for(50).await, Ok(50 << 10));
        assert_eq!(send_for(70).await, Err(BodyError::Pace(PaceError::Timeout(60 * SECOND))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_room_is_not_read_and_then_refused() {
        let budget = Arc::<BodyBudget>::default();
        let fill = async |pieces: mpsc::Sender<Option<Bytes>>| {
            pieces.send(piece(1 << 20)).await.unwrap();
            pieces.send(None).await.unwrap();
        };
        let first = read_sent(&budget, fill).await.unwrap();
        let mut sent = 0;
        let refused = read_sent(&budget, async |pieces| {
            while pieces.send(piece(50_000)).await.is_ok() {
                sent += 1;
            }
        });
        let refused = refused.await.unwrap_err();
        assert!(matches!(refused, BodyError::Full(Shortage::Share { .. })), "{refused:?}");
        assert!(refused.to_string().contains("`limits.bodies`"), "{refused}");
        assert!(sent <= 4, "{sent} pieces: it was read while there was no room");
        let answer = ErrorResponse::from(refused);
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert!(read_sent(&budget, fill).await.is_ok());
    }
}
