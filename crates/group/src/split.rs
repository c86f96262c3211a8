//! Groups that come of groups.

use crate::ProcessGroup;
use phalanx_core::{GroupId, OpKind, Result, Signature};
use std::sync::PoisonError;

impl ProcessGroup {
    /// Divides the group: ranks that give the same `color` form a new one, ordered by `key`, then by rank here. With
    /// `None` a rank takes part in the call but joins no group.
    ///
    /// # Cost
    /// One all_gather of 17 bytes a rank. Links of the new group are made on first use.
    ///
    /// # Errors
    /// As for any collective.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let site = self.site();
        let mine = [color.map_or(-1, i64::from), key];
        let mut all = vec![0i64; 2 * self.world_size()];
        self.all_gather_at(OpKind::Split, &mine, &mut all, site)?;
        let number = {
            let mut splits = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
            *splits += 1;
            *splits
        };
        let Some(color) = color else { return Ok(None) };
        let mut members: Vec<usize> =
            (0..self.world_size()).filter(|&r| all[2 * r] == i64::from(color)).collect();
        members.sort_by_key(|&r| (all[2 * r + 1], r));
        let id = GroupId(Signature::detail_of(&[self.id().0 as usize, number as usize, color as usize]));
        Ok(Some(Self::new(self.backend.subgroup(id, &members)?).with_timeout(self.timeout())))
    }
}
