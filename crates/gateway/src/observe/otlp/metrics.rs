//! Export of metrics: what the page for Prometheus shows, from time to time and at shutdown.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use wornpath_config::OtlpTarget;
use wornpath_index::Moment;

use super::collector::Collector;
use super::messages::{
    AggregationTemporality, ExportMetrics, Gauge, Histogram, HistogramDataPoint, KeyValue, Metric,
    NumberDataPoint, Resource, ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use super::{attribute, resource, scope, time_of_day, zero};
use crate::observe::export_counts::ExportCounts;
use crate::observe::metrics::BOUNDS;
use crate::observe::metrics::family::{Family, MetricKind};
use crate::observe::metrics::page::{FamilySamples, MetricsPage, Number, Sample, SampleValue};
use crate::observe::summary::{RequestSummary, SummaryObserver};

/// Timeout of the last export; less than the watchdog allows for it.
const FINISH_TIMEOUT: Duration = Duration::from_millis(1500);

/// Exports metrics once more at shutdown.
pub(crate) struct Exporter {
    last: mpsc::Sender<oneshot::Sender<()>>,
}

impl SummaryObserver for Exporter {
    fn ended(&self, _record: &RequestSummary) {}

    fn finish(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let (exported, done) = oneshot::channel();
            let export = async {
                if self.last.send(exported).await.is_ok() {
                    // The sender may have ended.
                    let _ = done.await;
                }
            };
            if timeout(FINISH_TIMEOUT, export).await.is_err() {
                tracing::warn!("metrics not exported at shutdown");
            }
        })
    }
}

/// Exports metrics at an interval.
pub(crate) struct Sender {
    last: mpsc::Receiver<oneshot::Sender<()>>,
    every: Duration,
    counts: Arc<ExportCounts>,
    collector: Collector,
    resource: Resource,
    /// When all counters were zero, in nanoseconds since 1970.
    zero: u64,
}

/// Makes an exporter and its sender.
pub(crate) fn exporter(
    target: &OtlpTarget,
    every: Duration,
    attributes: &[(String, String)],
    counts: &Arc<ExportCounts>,
    now: Moment,
) -> (Exporter, Sender) {
    let (last, receiver) = mpsc::channel(1);
    let sender = Sender {
        last: receiver,
        every,
        counts: Arc::clone(counts),
        collector: Collector::new(target.clone()),
        resource: resource(attributes),
        zero: zero(now),
    };
    (Exporter { last }, sender)
}

impl Sender {
    /// Exports the pages that `collect` makes, until the exporter is dropped.
    pub(crate) async fn run<F>(mut self, collect: impl Fn() -> F)
    where
        F: Future<Output = Option<MetricsPage>>,
    {
        let mut interval = interval_at(Instant::now() + self.every, self.every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                _ = interval.tick() => None,
                last = self.last.recv() => match last {
                    None => return,
                    last => last,
                },
            };
            if let Some(page) = collect().await {
                self.export(page).await;
            }
            if let Some(last) = last {
                // The wait for it may have timed out.
                let _ = last.send(());
            }
        }
    }

    async fn export(&self, page: MetricsPage) {
        let times = Times { start: self.zero, now: time_of_day() };
        let metrics = page.into_families().into_iter().map(|family| times.metric(family));
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics: metrics.collect() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics }];
        match self.collector.export(&ExportMetrics { resource_metrics }).await {
            Ok(()) => self.counts.exported.fetch_add(1, Relaxed),
            Err(reason) => {
                let collector = self.collector.url();
                tracing::warn!(%collector, reason, "metrics export failed");
                self.counts.failed.fetch_add(1, Relaxed)
            }
        };
    }
}

/// The time over which counters have grown.
struct Times {
    start: u64,
    now: u64,
}

impl Times {
    fn metric(&self, FamilySamples { family, samples }: FamilySamples) -> Metric {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let data = match family.kind {
            MetricKind::Counter => metric::Data::Sum(Sum {
                data_points: self.numbers(&family, samples),
                aggregation_temporality,
                is_monotonic: true,
            }),
            MetricKind::Gauge => {
                metric::Data::Gauge(Gauge { data_points: self.numbers(&family, samples) })
            }
            MetricKind::Histogram => metric::Data::Histogram(Histogram {
                data_points: self.histograms(&family, samples),
                aggregation_temporality,
            }),
        };
        Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: unit(family.name).to_owned(),
            data: Some(data),
        }
    }

    fn numbers(&self, family: &Family, samples: Vec<Sample>) -> Vec<NumberDataPoint> {
        let points = samples.into_iter().filter_map(|sample| {
            let value = match sample.value {
                SampleValue::Number(Number::Whole(number)) => {
                    number_data_point::Value::AsInt(i64::try_from(number).unwrap_or(i64::MAX))
                }
                SampleValue::Number(Number::Fraction(number)) => {
                    number_data_point::Value::AsDouble(number)
                }
                SampleValue::Histogram { .. } => return None,
            };
            let is_counter = family.kind == MetricKind::Counter;
            Some(NumberDataPoint {
                start_time_unix_nano: if is_counter { self.start } else { 0 },
                time_unix_nano: self.now,
                value: Some(value),
                attributes: attributes(family, &sample.labels),
            })
        });
        points.collect()
    }

    fn histograms(&self, family: &Family, samples: Vec<Sample>) -> Vec<HistogramDataPoint> {
        let points = samples.into_iter().filter_map(|sample| {
            let SampleValue::Histogram { counts, sum, .. } = sample.value else { return None };
            let before = [0].into_iter().chain(counts);
            // Threads count while the buckets are read.
            let bucket_counts =
                counts.iter().zip(before).map(|(all, less)| all.saturating_sub(less));
            Some(HistogramDataPoint {
                start_time_unix_nano: self.start,
                time_unix_nano: self.now,
                count: counts[BOUNDS.len()],
                sum: Some(sum),
                bucket_counts: bucket_counts.collect(),
                explicit_bounds: BOUNDS.to_vec(),
                attributes: attributes(family, &sample.labels),
            })
        });
        points.collect()
    }
}

fn attributes(family: &Family, labels: &[String]) -> Vec<KeyValue> {
    family.labels.iter().zip(labels).map(|(name, value)| attribute(name, value.as_str())).collect()
}

/// The unit that a metric's name ends with.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total").trim_end_matches("_limit");
    if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        ""
    }
}
