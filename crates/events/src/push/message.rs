//! The conversion of the messages of `proto/events.proto`.

use super::proto;
pub use super::proto::event::What;
pub use super::proto::report::Said;
pub use super::proto::{
    Batch, Digest, Event, Location as WireLocation, Nothing, Removed, Report, Stored, TierDigest,
    Wish,
};
use super::request::{named, with_salt};
use crate::message::{BatchId, Delivery, EngineDigest, Epoch, SourceMessage};
use crate::wire::{self, WireBatch, WireEvent, WireLimits, WireRemoved};
use crate::wire::{ExtraKeysBuffer, WireStored, tier_by_name};
use wornpath_index::{BlockDigest, EngineHash, Location, Tier};

impl Report {
    /// Converts the report; `None` for one without content.
    #[must_use]
    pub fn message(&self) -> Option<SourceMessage> {
        let id =
            BatchId { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None };
        Some(match self.said.as_ref()? {
            Said::Register(_) => SourceMessage::Started(Epoch(self.epoch?)),
            Said::Batch(batch) => SourceMessage::Batch {
                id,
                delivery: Delivery::Live,
                batch: Box::new(batch.events()),
            },
            Said::Sync(batch) => SourceMessage::Snapshot { id, batch: Box::new(batch.events()) },
            Said::Digest(digest) => SourceMessage::Digest(EngineDigest {
                epoch: id.epoch,
                sequence: id.sequence,
                tiers: digest.tiers(),
            }),
            Said::Bye(_) => SourceMessage::Bye,
            Said::Raw(payload) => {
                let mut batch = Box::<WireBatch>::default();
                match wire::decode(payload, &WireLimits::default(), &mut batch) {
                    Ok(()) => SourceMessage::Batch { id, delivery: Delivery::Live, batch },
                    Err(error) => SourceMessage::Malformed { id, reason: error.to_string() },
                }
            }
        })
    }
}

impl Batch {
    fn events(&self) -> WireBatch {
        let mut batch = WireBatch::default();
        for kind in self.events.iter().filter_map(|event| event.what.as_ref()) {
            match kind {
                What::Stored(stored) => stored.push_to(&mut batch),
                What::Removed(removed) => batch.push(WireEvent::Removed(WireRemoved {
                    blocks: &hashes(&removed.blocks),
                    tier: tier(&removed.tier),
                    group: None,
                })),
                What::Cleared(_) => batch.push(WireEvent::Cleared),
            }
        }
        batch
    }
}

impl Stored {
    fn push_to(&self, batch: &mut WireBatch) {
        let blocks = hashes(&self.blocks);
        let is_first = self.parent.is_none();
        let salt = Some(self.salt.as_str()).filter(|salt| is_first && !salt.is_empty());
        let keys: ExtraKeysBuffer = with_salt(salt, blocks.len());
        let locations: Vec<Location> = self.locations.iter().map(Location::from).collect();
        batch.push(WireEvent::Stored(WireStored {
            parent: self.parent.map(EngineHash),
            tokens: &self.tokens,
            block_size: self.block_size,
            lora_name: Some(self.lora.as_str()).filter(|lora| !lora.is_empty()),
            extra_keys: keys.keys(),
            locations: &locations,
            ..named(&blocks, tier(&self.tier))
        }));
    }
}

impl From<&proto::Location> for Location {
    fn from(proto::Location { offset, length, device }: &proto::Location) -> Self {
        Self { offset: *offset, length: *length, device: *device }
    }
}

impl Digest {
    fn tiers(&self) -> [BlockDigest; 4] {
        let mut tiers = [BlockDigest::default(); 4];
        for one in &self.tiers {
            tiers[tier(&one.tier) as usize] = BlockDigest { count: one.count, xor: one.xor };
        }
        tiers
    }
}

fn hashes(blocks: &[u64]) -> Vec<EngineHash> {
    blocks.iter().copied().map(EngineHash).collect()
}

fn tier(name: &str) -> Tier {
    if name.is_empty() { Tier::Gpu } else { tier_by_name(name.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::request::{PushedReport, Reported};
    use prost::Message;

    #[test]
    fn messages_have_the_bytes_that_engines_send() {
        let stored =
            Stored { blocks: vec![1], tokens: vec![7, 300], block_size: 2, ..Stored::default() };
        let batch = Batch { events: vec![Event { what: Some(What::Stored(stored)) }] };
        let said = Some(Said::Batch(batch));
        let report = Report { pod: "a".to_owned(), epoch: Some(3), sequence: Some(0), said };
        // Written out by hand from the proto file: numbers, wire types and packing.
        let stored = [10, 8, 1, 0, 0, 0, 0, 0, 0, 0, 26, 3, 7, 172, 2, 32, 2];
        let mut expected = vec![10, 1, b'a', 16, 3, 24, 0, 42, 21, 10, 19, 10, 17];
        expected.extend(stored);
        assert_eq!(report.encode_to_vec(), expected);
        assert_eq!(Report::decode(&expected[..]).unwrap(), report);
        assert_eq!(Wish { sync: true, outdated: None, tokens: false }.encode_to_vec(), [8, 1]);
        let outdated = Wish { sync: false, outdated: Some(7), tokens: false };
        assert_eq!(outdated.encode_to_vec(), [16, 7]);
    }

    #[test]
    fn a_report_and_the_equivalent_post_give_the_same_batch() {
        let stored = Stored {
            blocks: vec![1, 2],
            tokens: vec![5, 5, 6, 6],
            block_size: 2,
            tier: "cpu".to_owned(),
            salt: "t".to_owned(),
            locations: vec![
                proto::Location { offset: 4096, length: 2048, device: 1 },
                proto::Location { offset: 8192, length: 2048, device: 0 },
            ],
            ..Stored::default()
        };
        let events = vec![Event { what: Some(What::Stored(stored)) }, Event { what: None }];
        let said = Some(Said::Batch(Batch { events }));
        let report = Report { pod: "a".to_owned(), epoch: Some(3), sequence: Some(9), said };
        let Some(SourceMessage::Batch { id, batch, .. }) = report.message() else {
            panic!("{report:?}")
        };
        assert_eq!((id.epoch, id.sequence), (Some(Epoch(3)), Some(9)));
        let posted = PushedReport::parse(
            "/events/stored",
            br#"{"pod": "a", "epoch": 3, "sequence": 9, "stored": [{"hashes": [1, 2],
               "tokens": [5, 5, 6, 6], "block_size": 2, "tier": "cpu", "salt": "t", "locations": [
               {"offset": 4096, "length": 2048, "device": 1}, {"offset": 8192, "length": 2048}]}]}"#,
        );
        let Ok(Reported::Message(SourceMessage::Batch { batch: posted, .. })) =
            posted.map(|posted| posted.reported)
        else {
            panic!()
        };
        assert!(batch.events().eq(posted.events()));
    }

    #[test]
    fn a_report_without_content_gives_no_message() {
        assert!(Report::default().message().is_none());
        let register = Report { said: Some(Said::Register(Nothing {})), ..Report::default() };
        assert!(register.message().is_none(), "a start without its time");
        let raw = Report { said: Some(Said::Raw(vec![0xc1])), ..Report::default() };
        assert!(matches!(raw.message(), Some(SourceMessage::Malformed { .. })));
    }
}
