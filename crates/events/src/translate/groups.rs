//! Cache groups of a pod that do not keep whole prefixes.
//!
//! Only stores describe a group; removals name it by number. A group without a description keeps
//! whole prefixes: engines with one group do not describe it.

use super::error::TranslateError;
use crate::wire::GroupAttention;

/// Engines have a handful. The bound is against one that invents numbers.
const LIMIT: usize = 64;

/// The groups that keep only a part of a prefix.
#[derive(Default)]
pub(super) struct CacheGroups {
    partial: Vec<u32>,
}

impl CacheGroups {
    pub(super) fn restored(partial: &[u32]) -> Self {
        Self { partial: partial[..partial.len().min(LIMIT)].to_vec() }
    }

    pub(super) fn partial(&self) -> &[u32] {
        &self.partial
    }

    /// Records a store's description of its group, and returns whether the group keeps whole
    /// prefixes.
    pub(super) fn keeps_prefixes(
        &mut self,
        group: Option<u32>,
        attention: GroupAttention,
    ) -> Result<bool, TranslateError> {
        let Some(number) = group else { return Ok(attention != GroupAttention::Partial) };
        match attention {
            GroupAttention::Unspecified => return Ok(!self.is_partial(group)),
            GroupAttention::Full => self.partial.retain(|known| *known != number),
            GroupAttention::Partial if self.is_partial(group) => {}
            GroupAttention::Partial if self.partial.len() == LIMIT => {
                return Err(TranslateError::Groups { limit: LIMIT });
            }
            GroupAttention::Partial => self.partial.push(number),
        }
        Ok(attention == GroupAttention::Full)
    }

    pub(super) fn is_partial(&self, group: Option<u32>) -> bool {
        group.is_some_and(|number| self.partial.contains(&number))
    }
}
