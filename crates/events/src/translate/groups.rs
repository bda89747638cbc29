//! Which cache groups of a pod keep whole prefixes.
//!
//! Only stores say what a group keeps; removals name the group by number. A group that nobody has
//! described keeps whole prefixes: engines with one group do not describe it.

use super::error::TranslateError;
use crate::wire::DecodeNotice;

/// Engines have a handful. The bound is against one that makes up numbers.
const LIMIT: usize = 64;

/// The groups known to keep only a part.
#[derive(Default)]
pub(super) struct CacheGroups {
    partial: Vec<u32>,
}

impl CacheGroups {
    /// As they were known before.
    pub(super) fn recalled(partial: &[u32]) -> Self {
        Self { partial: partial[..partial.len().min(LIMIT)].to_vec() }
    }

    pub(super) fn partial(&self) -> &[u32] {
        &self.partial
    }

    /// Takes note of what a store says about its group, and answers whether to believe the store.
    pub(super) fn keeps_prefixes(
        &mut self,
        group: Option<u32>,
        attention: DecodeNotice,
    ) -> Result<bool, TranslateError> {
        let Some(number) = group else { return Ok(attention != DecodeNotice::Partial) };
        match attention {
            DecodeNotice::Unsaid => return Ok(!self.is_partial(group)),
            DecodeNotice::Full => self.partial.retain(|known| *known != number),
            DecodeNotice::Partial if self.is_partial(group) => {}
            DecodeNotice::Partial if self.partial.len() == LIMIT => {
                return Err(TranslateError::Groups { limit: LIMIT });
            }
            DecodeNotice::Partial => self.partial.push(number),
        }
        Ok(attention == DecodeNotice::Full)
    }

    pub(super) fn is_partial(&self, group: Option<u32>) -> bool {
        group.is_some_and(|number| self.partial.contains(&number))
    }
}
