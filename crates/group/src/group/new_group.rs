//! Groups that only their members make.

use crate::ProcessGroup;
use crate::group::backend::BackendFactory;
use phalanx_core::{CallSite, Deadline, Error, GroupId, OpKind, Result, Signature};
use std::sync::PoisonError;
use std::time::Instant;

/// Tells the names of these groups from those of links between hosts and of groups that are split off.
const NEW_GROUP: usize = usize::MAX - 1;

impl ProcessGroup {
    /// A new group of `ranks`, which are ranks of this group. Only they need to call; a rank that is not among them gets `None` at once, and nobody waits
    /// for it. So is `torch.distributed.new_group` with `use_local_synchronization=True`, and `MPI_Comm_create_group`.
    ///
    /// In the new group they count in their order here, in whatever order `ranks` names them, as in PyTorch; [`split`](Self::split) takes another order. All
    /// members give the same ranks. For one set of ranks all of them call equally often, and meet call by call; calls for several sets may come on several
    /// threads in any order, and are never mixed up. But a rank that makes one after the other waits for all members of the first: two sets that have
    /// two ranks in common are to be asked for in the same order by both.
    ///
    /// # Cost
    /// Nothing on ranks outside. The members wait for each other, in ⌈log₂ n⌉ rounds of empty messages, over links that are made then; where they are on one
    /// host they get memory in common.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse): a rank that this group has not, or one that is named twice. [`Unsupported`](Error::Unsupported) on a group that was made
    /// without a factory. [`Timeout`](Error::Timeout): it names members that did not come within the [limit](Self::with_timeout), or came to a group of
    /// other ranks. Whatever goes wrong fails the new group on all its members, also for those that come later, and no other: this group works on. A member that comes at
    /// the moment of the failure may be given the group all the same, and is told in its first call of it. The call after that is for a new group again.
    ///
    /// # Examples
    /// The even ranks of four. Rank 1 and rank 3 do something else:
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(4, |group| {
    /// if group.rank() % 2 == 0 {
    ///     let even = group.new_group(&[0, 2])?.expect("this rank is a member");
    ///     let mut sum = [group.rank() as u32];
    ///     even.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///     assert_eq!((sum, even.rank()), ([2], group.rank() / 2));
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let (op, site) = (OpKind::NewGroup, self.site());
        self.check_process(op)?;
        let mut members = ranks.to_vec();
        members.sort_unstable();
        if let Some(why) = self.why_no_group(&members) {
            return Err(Error::misuse(op, format!("{why}, at {site}")));
        }
        if !members.contains(&self.rank()) {
            return Ok(None);
        }
        let factory = self.factory_for(op)?;
        let number = {
            let mut known = self.new_groups.lock().unwrap_or_else(PoisonError::into_inner);
            let number = known.entry(members.clone()).or_default();
            *number += 1;
            *number
        };
        let id = name(self.id(), number, &members);
        let of_job = members.iter().map(|&member| self.backend.members()[member]).collect();
        let made = self.meet(&**factory, id, of_job, site);
        if let Err(error) = &made {
            // The others may wait there for this rank.
            self.backend.forgo(id, error);
        }
        made.map(Some)
    }

    /// The group of this name, once all members (ranks of the job) are there.
    fn meet(
        &self,
        factory: &dyn BackendFactory,
        id: GroupId,
        members: Vec<usize>,
        site: CallSite,
    ) -> Result<Self> {
        let op = OpKind::NewGroup;
        if let Some(cause) = self.failure() {
            return Err(Error::Poisoned { op, cause: Box::new(cause) });
        }
        let deadline = Deadline::after(Instant::now(), self.timeout());
        let call = Signature::bare(op, site.clone());
        let group = self.of_some(factory.create(id, members, &call, &deadline)?);
        group.barrier_at(op, deadline.remaining(Instant::now()), site)?;
        Ok(group)
    }

    /// Why there is no group of these ranks, which are in order.
    fn why_no_group(&self, members: &[usize]) -> Option<String> {
        let world_size = self.world_size();
        if let Some(rank) = members.last().filter(|&&rank| rank >= world_size) {
            return Some(format!("rank {rank} is out of range: the ranks of this group are 0..{world_size}"));
        }
        let twice = members.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(format!("rank {} is named twice", twice[0]))
    }
}

/// The name of group `number` of these ranks of `parent`.
pub(crate) fn name(parent: GroupId, number: u64, ranks: &[usize]) -> GroupId {
    let mut words = vec![parent.0 as usize, NEW_GROUP, number as usize];
    words.extend(ranks);
    GroupId(Signature::detail_of(&words))
}

#[cfg(test)]
mod tests {
    use crate::{ProcessGroup, threads};
    use phalanx_core::{Error, OpKind};

    #[test]
    fn a_group_without_a_factory_makes_none() {
        let groups = threads(2);
        let group = ProcessGroup::new(groups[0].backend.clone());
        let error = group.new_group(&[0, 1]).unwrap_err();
        assert!(matches!(error, Error::Unsupported { op: OpKind::NewGroup, .. }), "{error}");
        assert!(group.new_group(&[1]).unwrap().is_none());
        assert!(group.failure().is_none() && groups[1].failure().is_none());
    }
}
