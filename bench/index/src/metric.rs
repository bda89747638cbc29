//! The metrics, and the bar of each.

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// The limit that ours must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// None: for information.
    None,
    /// Ours divided by the better peer is at most this.
    RatioAtMost(f64),
    /// Ours divided by the better peer is at least this.
    RatioAtLeast(f64),
    /// Our own figure is at most this.
    AtMost(f64),
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Query,
    QueryLocal,
    QueryOneHole,
    QueryFull,
    IdleP50,
    IdleP99,
    BusyP99,
    TwoReaders,
    Store,
    Churn,
    RemovalCall,
    RemovalInvisible,
    StaleDuring,
    StaleAfter,
    SweepP99,
    BytesBuilt,
    BytesChurned,
    BytesLeft,
}

use Metric::*;

impl Metric {
    /// In the order of the table.
    pub(crate) const ALL: [Metric; 18] = [
        Query,
        QueryLocal,
        QueryOneHole,
        QueryFull,
        IdleP50,
        IdleP99,
        BusyP99,
        TwoReaders,
        Store,
        Churn,
        RemovalCall,
        RemovalInvisible,
        StaleDuring,
        StaleAfter,
        SweepP99,
        BytesBuilt,
        BytesChurned,
        BytesLeft,
    ];

    /// Its name in the table, with the unit.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Query => "ns CPU per query, cumulative hashes",
            QueryLocal => "ns CPU per query, local hashes",
            QueryOneHole => "ns CPU per query, one hole on one pod",
            QueryFull => "ns CPU per query, full caches, speculation",
            IdleP50 => "idle p50, us",
            IdleP99 => "idle p99, us",
            BusyP99 => "p99 with 500k blocks/s written, us",
            TwoReaders => "reads of two threads, M/s",
            Store => "ns CPU per block stored",
            Churn => "ns CPU per block, churn",
            RemovalCall => "pod removal: the call, us",
            RemovalInvisible => "pod removal: until invisible, us",
            StaleDuring => "reads answering the pod during the call, %",
            StaleAfter => "reads answering the pod after the call, %",
            SweepP99 => "p99 during removal and sweep / idle p99",
            BytesBuilt => "live bytes per pair, built",
            BytesChurned => "live bytes per pair, after 6 churns",
            BytesLeft => "live MB after all pods left",
        }
    }

    /// Whether the ratio of ours to a peer's figure is meaningful.
    pub(crate) fn compares(self) -> bool {
        !matches!(self, StaleDuring | StaleAfter | SweepP99 | BytesLeft)
    }

    pub(crate) fn better(self) -> Better {
        if self == TwoReaders { Better::Higher } else { Better::Lower }
    }

    /// The bar at a size.
    pub(crate) fn bar(self, size: &str) -> Bar {
        match self {
            Query if size == "256x512" => Bar::RatioAtMost(0.75),
            Query => Bar::RatioAtMost(0.67),
            QueryOneHole | QueryFull | BusyP99 => Bar::RatioAtMost(1.0),
            TwoReaders => Bar::RatioAtLeast(1.4),
            Store | Churn => Bar::RatioAtMost(1.1),
            BytesBuilt | BytesChurned => Bar::RatioAtMost(0.9),
            // "Within a microsecond or so".
            RemovalCall => Bar::AtMost(2.0),
            StaleAfter => Bar::AtMost(0.0),
            SweepP99 => Bar::AtMost(1.5),
            QueryLocal | IdleP50 | IdleP99 | RemovalInvisible | StaleDuring | BytesLeft => {
                Bar::None
            }
        }
    }
}
