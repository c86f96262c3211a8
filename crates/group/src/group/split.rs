//! Splitting a group into subgroups.

use crate::ProcessGroup;
use crate::group::backend::BackendFactory;
use phalanx_core::{CallSite, Deadline, Error, GroupId, OpKind, Result, Signature};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

impl ProcessGroup {
    /// Divides the group: ranks that give the same `color` form a new one, ordered by `key`, then by rank here. With
    /// `None` a rank takes part in the call but joins no group.
    ///
    /// # Cost
    /// One all_gather of 16 bytes a rank. Where ranks of one host are to share memory, that is made then, for which there is as much time
    /// again as an operation may take. Links of the new group are made on first use.
    ///
    /// # Errors
    /// As for any collective; [`Unsupported`](Error::Unsupported) on a group that was made without a factory. Where a rank gets one, the new group that it was to be in fails too.
    ///
    /// # Examples
    /// Two groups of two, the even ranks and the odd ones:
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(4, |group| {
    /// let parity = group.rank() % 2;
    /// let half = group.split(Some(parity as u32), 0)?.expect("this rank gave a color");
    /// let mut sum = [group.rank() as u32];
    /// half.all_reduce(&mut sum, ReduceOp::Sum)?;
    /// assert_eq!(sum, [[2], [4]][parity]); // 0 + 2, 1 + 3
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let site = self.site();
        // Before anything is sent: on such a group no rank can split.
        let factory = self.factory_for(OpKind::Split)?;
        let number = {
            let mut splits = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
            *splits += 1;
            *splits
        };
        let new = color.map(|color| (color, name(self.id(), number, color)));
        let made = self.divide(&**factory, new, key, site);
        if let (Some((_, id)), Err(error)) = (new, &made) {
            // The others may have all they need, and wait there for this rank.
            self.backend.forgo(id, error);
        }
        made
    }

    /// The maker of the backends of groups of some of these ranks, if there is one.
    pub(crate) fn factory_for(&self, op: OpKind) -> Result<&Arc<dyn BackendFactory>> {
        self.factory.as_ref().ok_or_else(|| Error::Unsupported {
            op,
            backend: self.backend_name(),
            hint: "make the group by ProcessGroup::with_factory".to_owned(),
        })
    }

    /// Joins the new group of this color and name.
    fn divide(
        &self,
        factory: &dyn BackendFactory,
        new: Option<(u32, GroupId)>,
        key: i64,
        site: CallSite,
    ) -> Result<Option<Self>> {
        let mine = [new.map_or(-1, |(color, _)| i64::from(color)), key];
        let mut all = vec![0i64; 2 * self.world_size()];
        self.all_gather_at(OpKind::Split, &mine, &mut all, site.clone())?;
        let Some((_, id)) = new else { return Ok(None) };
        let deadline = Deadline::after(Instant::now(), self.timeout());
        let of_job =
            of_color(&all, mine[0]).into_iter().map(|member| self.backend.members()[member]).collect();
        let call = Signature::bare(OpKind::Split, site);
        Ok(Some(self.of_some(factory.create(id, of_job, &call, &deadline)?)))
    }
}

/// The name of the group of this color that split `number` of `parent` makes.
pub(crate) fn name(parent: GroupId, number: u64, color: u32) -> GroupId {
    GroupId(Signature::detail_of(&[parent.0 as usize, number as usize, color as usize]))
}

/// The ranks of this color, in the order of the new group. `all` has color and key of each rank.
pub(crate) fn of_color(all: &[i64], color: i64) -> Vec<usize> {
    let mut members: Vec<usize> = (0..all.len() / 2).filter(|&r| all[2 * r] == color).collect();
    members.sort_by_key(|&r| (all[2 * r + 1], r));
    members
}

#[cfg(test)]
mod tests {
    use crate::{ProcessGroup, threads, threads_with};
    use phalanx_core::{CallSite, Error, OpKind};
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn a_group_without_a_factory_is_not_split_and_lives_on() {
        let groups = threads(2);
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let group = ProcessGroup::new(group.backend.clone());
                    // Neither the rank that would join nor the one that would not has sent anything.
                    let color = (group.rank() == 0).then_some(7);
                    let error = group.split(color, 0).unwrap_err();
                    assert!(matches!(error, Error::Unsupported { op: OpKind::Split, .. }), "{error}");
                    group.barrier().unwrap();
                });
            }
        });
    }

    /// A rank gives what the others need to divide the group, and then the group fails for it: they may be in a new one already,
    /// and must not wait there.
    #[test]
    fn who_will_not_come_into_the_new_group_says_so() {
        let groups = threads_with(2, Duration::from_secs(20), "").unwrap();
        let both = &Barrier::new(2);
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    if group.rank() == 0 {
                        let pair = group.split(Some(7), 0).unwrap().unwrap();
                        both.wait();
                        let error = pair.barrier().unwrap_err();
                        assert!(matches!(&error, Error::Aborted { peer, .. } if peer.rank == 1), "{error}");
                    } else {
                        // As much of a split as it does.
                        group
                            .all_gather_at(OpKind::Split, &[7i64, 0], &mut [0; 4], CallSite::caller())
                            .unwrap();
                        both.wait();
                        group.abort("on purpose");
                        group.split(Some(7), 0).unwrap_err();
                    }
                    both.wait();
                });
            }
        });
    }
}
