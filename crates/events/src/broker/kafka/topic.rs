//! A topic of Kafka brokers: its client, its partitions and its records.

use super::super::follower::BrokerFailure;
use crate::sink::BrokerStream;
use rskafka::BackoffConfig;
use rskafka::chrono::{DateTime, Utc};
use rskafka::client::error::{Error as KafkaError, ProtocolError};
use rskafka::client::partition::{PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;
use wornpath_tls::ClientTls;
use xxhash_rust::xxh3::xxh3_64;

/// Timeout of one request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// Brokers and a topic.
#[derive(Clone)]
pub(super) struct KafkaAddress {
    pub(super) brokers: Vec<String>,
    pub(super) topic: String,
    tls: Option<ClientTls>,
}

impl KafkaAddress {
    /// The brokers of a URL, comma-separated.
    pub(super) fn new(address: &BrokerStream) -> Self {
        let brokers = address.url.split_once("://").map_or(address.url.as_str(), |(_, rest)| rest);
        let brokers = brokers.split(',').map(str::to_owned).collect();
        Self { brokers, topic: address.stream.clone(), tls: address.tls.clone() }
    }

    /// The topic of heartbeats.
    pub(super) fn heartbeats(&self) -> Self {
        Self { topic: format!("{}-alive", self.topic), ..self.clone() }
    }

    pub(super) async fn client(&self) -> Result<Client, BrokerFailure> {
        // The client retries for a short time only; then the follower reconnects from the start.
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            deadline: Some(TIMEOUT),
            ..BackoffConfig::default()
        };
        let builder = ClientBuilder::new(self.brokers.clone()).backoff_config(backoff);
        let builder = match &self.tls {
            None => builder,
            Some(tls) => builder.tls_config(Arc::clone(tls.config())),
        };
        with_timeout(builder.build()).await
    }

    /// The topic's partitions, in order.
    pub(super) async fn partitions(
        &self,
        client: &Client,
    ) -> Result<Vec<Arc<PartitionClient>>, BrokerFailure> {
        let topics = with_timeout(client.list_topics()).await?;
        let topic = topics.into_iter().find(|topic| topic.name == self.topic);
        let numbers = topic.map(|topic| topic.partitions).unwrap_or_default();
        if numbers.is_empty() {
            return Err(
                format!("unknown topic `{}`; start a relay that fills it", self.topic).into()
            );
        }
        let mut partitions = Vec::new();
        for number in numbers {
            partitions.push(Arc::new(self.partition(client, number).await?));
        }
        Ok(partitions)
    }

    pub(super) async fn partition(
        &self,
        client: &Client,
        number: i32,
    ) -> Result<PartitionClient, BrokerFailure> {
        let handling = UnknownTopicHandling::Error;
        with_timeout(client.partition_client(self.topic.clone(), number, handling)).await
    }

    /// The topic's partitions; the topic is created if needed.
    pub(super) async fn create(
        &self,
        partitions: i32,
    ) -> Result<Vec<Arc<PartitionClient>>, BrokerFailure> {
        let client = self.client().await?;
        if let Ok(partitions) = self.partitions(&client).await {
            return Ok(partitions);
        }
        let controller = client.controller_client()?;
        let reply_timeout = TIMEOUT.as_millis() as i32;
        // It may fail because another relay was faster; then the topic exists.
        let _ =
            with_timeout(controller.create_topic(&self.topic, partitions, 1, reply_timeout)).await;
        self.partitions(&client).await
    }
}

pub(super) fn is_too_large(failure: &BrokerFailure) -> bool {
    let too_large = [ProtocolError::MessageTooLarge, ProtocolError::RecordListTooLarge];
    matches!(
        failure.downcast_ref(),
        Some(KafkaError::ServerError { protocol_error, .. }) if too_large.contains(protocol_error)
    )
}

/// The partition of a pod. Relays and routers must agree on it.
pub(super) fn partition_of(pod: &str, partitions: usize) -> usize {
    (xxh3_64(pod.as_bytes()) % partitions.max(1) as u64) as usize
}

pub(super) fn record(pod: &str, entry: Vec<u8>) -> Record {
    let key = Some(pod.as_bytes().to_vec());
    Record { key, value: Some(entry), headers: BTreeMap::new(), timestamp: now() }
}

/// The envelope in a record; empty, and so malformed, if there is none.
pub(super) fn value(record: &RecordAndOffset) -> &[u8] {
    record.record.value.as_deref().unwrap_or_default()
}

pub(super) async fn with_timeout<T>(
    answer: impl Future<Output = Result<T, KafkaError>>,
) -> Result<T, BrokerFailure> {
    Ok(timeout(TIMEOUT, answer).await??)
}

/// The timestamp by which brokers expire records.
#[allow(clippy::disallowed_methods, reason = "only the broker reads it")]
pub(super) fn now() -> DateTime<Utc> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    DateTime::from_timestamp_millis(since.as_millis() as i64).unwrap_or_default()
}
