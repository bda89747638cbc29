//! The envelope of a batch in a broker: pod, epoch, sequence number and the engine's payload.
//!
//! A msgpack array `[1, pod, epoch | nil, sequence, payload]`, the same for every broker, so that
//! brokers are interchangeable. Further elements are for later versions and skipped.

use super::error::DecodeError;
use super::msgpack::{Int, MsgpackReader};
use super::pack;

const VERSION: u64 = 1;

/// One batch of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope<'a> {
    /// The pod's name.
    pub pod: &'a str,
    /// The engine's epoch.
    pub epoch: Option<u64>,
    /// The engine's number of the batch.
    pub sequence: u64,
    /// The msgpack, for [`decode`](super::decode).
    pub payload: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Parses an envelope. The payload is not decoded.
    ///
    /// # Errors
    /// The bytes are not an envelope.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = MsgpackReader::new(bytes);
        let elements = reader.array("envelope")?;
        if elements < 5 {
            return Err(reader.unexpected("envelope", "an array of at least five"));
        }
        if unsigned(&mut reader, "version")? != VERSION {
            return Err(reader.unexpected("version", "1; update the router if its relay is newer"));
        }
        let pod = reader.text("pod")?;
        let pod = std::str::from_utf8(pod).map_err(|_| reader.unexpected("pod", "UTF-8"))?;
        let epoch = if reader.nil("epoch")? { None } else { Some(unsigned(&mut reader, "epoch")?) };
        let sequence = unsigned(&mut reader, "sequence")?;
        let payload = reader.binary("payload")?;
        Ok(Self { pod, epoch, sequence, payload })
    }

    /// Appends the envelope to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        pack::array(out, 5);
        pack::unsigned(out, VERSION);
        pack::text(out, self.pod);
        match self.epoch {
            Some(epoch) => pack::unsigned(out, epoch),
            None => pack::nil(out),
        }
        pack::unsigned(out, self.sequence);
        pack::binary(out, self.payload);
    }
}

fn unsigned(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u64, DecodeError> {
    match reader.int(field)? {
        Int::Unsigned(value) => Ok(value),
        Int::Negative(_) => Err(reader.unexpected(field, "a non-negative integer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_envelope_round_trips_and_no_part_of_it_parses(
            pod in ".{0,40}",
            epoch in any::<Option<u64>>(),
            sequence in any::<u64>(),
            payload in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let envelope = Envelope { pod: &pod, epoch, sequence, payload: &payload };
            let mut bytes = Vec::new();
            envelope.write(&mut bytes);
            prop_assert_eq!(Envelope::parse(&bytes), Ok(envelope));
            for end in 0..bytes.len() {
                prop_assert!(Envelope::parse(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            let _ = Envelope::parse(&bytes);
        }
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        let refusal = |bytes: &[u8]| Envelope::parse(bytes).unwrap_err().to_string();
        assert!(refusal(&[0x94, 1, 1, 1, 1]).contains("an array of at least five"));
        assert!(refusal(&[0x95, 2, 1, 1, 1, 1]).contains("update the router"));
    }
}
