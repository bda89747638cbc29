//! Starts the export of traces and metrics, if it is configured.

use std::sync::Arc;

use crate::observe::metrics::Metrics;
use crate::observe::summary::SummaryObserver;
use crate::proxy::gateway::Gateway;

/// Starts the export in the background, and returns the observers that feed it.
#[cfg(feature = "otlp")]
#[must_use]
pub fn start(gateway: &Arc<Gateway>, metrics: &Arc<Metrics>) -> Vec<Arc<dyn SummaryObserver>> {
    use super::dispatch::METRICS;
    use super::metrics_page::collect;
    use crate::observe::otlp;
    use crate::watchdog::heartbeat::named;

    let mut observers: Vec<Arc<dyn SummaryObserver>> = Vec::new();
    let settings = gateway.settings();
    let Some(telemetry) = &settings.telemetry else { return observers };
    let background = gateway.pods().background();
    let resource = &telemetry.resource;
    let now = gateway.now();
    if let Some(target) = &telemetry.traces {
        let (exporter, sender) = otlp::traces::exporter(target, resource, &metrics.traces, now);
        observers.push(Arc::new(exporter));
        background.spawn(named("trace export", sender.run()));
    }
    if let Some((target, every)) = &telemetry.metrics {
        let (exporter, sender) =
            otlp::metrics::exporter(target, *every, resource, &metrics.exports, now);
        observers.push(Arc::new(exporter));
        let gateway = Arc::clone(gateway);
        let metrics = Arc::clone(metrics);
        // It visits every pod, so it is collected on the low-priority pool.
        let collected = move || {
            let read = Arc::clone(&gateway);
            let counted = Arc::clone(&metrics);
            let page = gateway.pool.spawn(&METRICS, 0, move || collect(&read, &counted));
            async { page.await.ok() }
        };
        background.spawn(named("metrics export", sender.run(collected)));
    }
    observers
}

/// Nothing: this build cannot export, and the configuration check says so.
#[cfg(not(feature = "otlp"))]
#[must_use]
pub fn start(_gateway: &Arc<Gateway>, _metrics: &Arc<Metrics>) -> Vec<Arc<dyn SummaryObserver>> {
    Vec::new()
}
