//! The CRC-32 of a file that grows, and of its beginnings.
//!
//! The checksum of two parts together follows from those of the parts, so a file that is appended
//! to in groups has a checksum without being read. Points on the way, not too close to each other,
//! let a reader begin its check in the middle.

use crc32fast::Hasher;

/// The bytes between two points, at least.
const SPACING: u64 = 256 << 10;

/// The checksum of the bytes before `at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CrcPoint {
    pub(crate) at: u64,
    pub(crate) crc: u32,
}

/// The checksum of a growing file.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrowingCrc {
    now: CrcPoint,
    points: Vec<CrcPoint>,
}

impl CrcPoint {
    /// A hasher that continues here.
    pub(crate) fn hasher(self) -> Hasher {
        Hasher::new_with_initial_len(self.crc, self.at)
    }
}

impl GrowingCrc {
    /// The file has grown by so many bytes with this checksum.
    pub(crate) fn append(&mut self, bytes: u64, crc: u32) {
        let mut hasher = self.now.hasher();
        hasher.combine(&CrcPoint { at: bytes, crc }.hasher());
        self.now = CrcPoint { at: self.now.at + bytes, crc: hasher.finalize() };
        if self.now.at >= self.points.last().map_or(0, |point| point.at) + SPACING {
            self.points.push(self.now);
        }
    }

    /// The checksum of all its bytes.
    pub(crate) const fn now(&self) -> CrcPoint {
        self.now
    }

    /// The last point that is not behind `offset`.
    pub(crate) fn before(&self, offset: u64) -> CrcPoint {
        let count = self.points.partition_point(|point| point.at <= offset);
        count.checked_sub(1).map(|at| self.points[at]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_checksum_of_a_file_and_of_each_beginning_follows_from_its_groups(
            groups in prop::collection::vec((0_usize..300_000, any::<u8>()), 0..12),
            offset in 0_u64..2_000_000,
        ) {
            let mut file = Vec::new();
            let mut growing = GrowingCrc::default();
            for (bytes, first) in groups {
                let group: Vec<u8> = (0..bytes).map(|at| first.wrapping_add(at as u8)).collect();
                growing.append(bytes as u64, crc32fast::hash(&group));
                file.extend(group);
            }
            let now = growing.now();
            prop_assert_eq!(now, CrcPoint { at: file.len() as u64, crc: crc32fast::hash(&file) });
            let from = growing.before(offset);
            prop_assert!(from.at <= offset);
            let begin = &file[..from.at as usize];
            prop_assert_eq!(from.crc, crc32fast::hash(begin));
            let mut hasher = from.hasher();
            hasher.update(&file[from.at as usize..]);
            prop_assert_eq!(hasher.finalize(), now.crc);
        }
    }
}
