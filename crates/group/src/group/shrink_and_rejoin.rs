//! The group of all ranks, made anew after a loss or for replacements.

use crate::ProcessGroup;
use crate::group::process_group::Regroup;
use phalanx_core::{Error, OpKind, Result};

/// On the group of all ranks only.
impl ProcessGroup {
    /// How often the group of all ranks has been made anew: 0 at first, more after [`shrink`](Self::shrink) and
    /// [`rejoin`](Self::rejoin). 0 for other groups too.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_group::threads(1)[0].generation(), 0);
    /// ```
    pub fn generation(&self) -> u64 {
        self.generation.as_ref().map_or(0, |generation| generation.number())
    }

    /// The group of those ranks that are still there, after others were lost: a new one, whatever has become of this one. Ranks keep
    /// their order, so the new rank 0 was the lowest of them. This group stays as it is; drop it and its subgroups.
    ///
    /// Collective among the survivors, on the group of all ranks. Those who live are waited for as long as an operation on this handle may
    /// take (see [`with_timeout`](Self::with_timeout)) and 3 s more, and named in a warning after 30 s; then the others go on without them. Those who are
    /// stopped or cut off are done without after the heartbeat's time. Then the ranks have the time of init (`PHALANX_INIT_TIMEOUT_S`) to come together, and that
    /// time again for each that is lost meanwhile. All other groups of this generation end on this rank: where this one
    /// has failed they fail for the same cause, on their other members too. If some ranks have heard of no trouble, [`abort`](Self::abort) first. The ranks meet in the job's store, which must have outlived the lost ranks:
    /// the launcher's does.
    ///
    /// # Errors
    /// [`Unsupported`](Error::Unsupported) for a subgroup: shrink the group of all ranks and split it again.
    /// [`Rendezvous`](Error::Rendezvous): the others went on without this rank, the store was lost with rank 0, or not enough
    /// came in time. [`Mismatch`](Error::Mismatch): another rank called `rejoin`. After an error, too, it can be called again.
    ///
    /// # Examples
    /// Of three ranks one leaves:
    /// ```
    /// use phalanx_group::{ReduceOp, threads};
    /// std::thread::scope(|ranks| {
    ///     for group in threads(3) {
    ///         ranks.spawn(move || -> phalanx_core::Result<()> {
    ///             if group.rank() == 0 {
    ///                 return Ok(());
    ///             }
    ///             let mut sum = [1.0];
    ///             assert!(group.all_reduce(&mut sum, ReduceOp::Sum).is_err());
    ///             let group = group.shrink()?;
    ///             let mut sum = [1.0];
    ///             group.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///             assert_eq!((sum, group.generation()), ([2.0], 1));
    ///             group.finalize()
    ///         });
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn shrink(&self) -> Result<Self> {
        self.again(OpKind::Shrink)
    }

    /// As [`shrink`](Self::shrink), with replacements for the lost ranks: in a job that was started with
    /// `phalanx run --elastic MIN:MAX`. Replacements, which come out of [`init`](crate::init()), have the last ranks; the new rank 0 is a
    /// survivor if there is one. They know nothing of what was done before: send it from rank 0.
    ///
    /// Waits for all processes that the launcher has, replacements that it has just started included: these have half of the time of init
    /// (`PHALANX_INIT_TIMEOUT_S`) to come as far as `init`. Then those that are there go on, if they are at least MIN.
    ///
    /// # Errors
    /// As for `shrink`; [`Misuse`](Error::Misuse) in a job that is not elastic.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{ProcessGroup, Result};
    ///
    /// /// Trains with whoever is there, and goes on with replacements when a rank is lost.
    /// fn train(mut group: ProcessGroup, step: impl Fn(&ProcessGroup) -> Result<()>) -> Result<()> {
    ///     while let Err(error) = step(&group) {
    ///         if error.group_is_usable() {
    ///             return Err(error); // nobody was lost
    ///         }
    ///         group = group.rejoin()?;
    ///     }
    ///     group.finalize()
    /// }
    /// ```
    #[track_caller]
    pub fn rejoin(&self) -> Result<Self> {
        self.again(OpKind::Rejoin)
    }

    /// How many replacements wait to be let in, although nobody here is lost: of ranks without which the others went on. If there are any,
    /// [`rejoin`](Self::rejoin) at a moment that suits; the end of an epoch is a good one to ask.
    ///
    /// Collective: rank 0 looks into the job's store, and all are told the same.
    ///
    /// # Cost
    /// A connection to the store from rank 0, about a millisecond, and a broadcast of 8 bytes. A store that can't be reached in half of the
    /// time limit is an error, and the group is fine.
    ///
    /// # Errors
    /// As for any collective; [`Unsupported`](Error::Unsupported) for a subgroup; on rank 0 those of the store, the others are told 0 then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{ProcessGroup, Result};
    ///
    /// /// Called at the end of an epoch.
    /// fn let_others_in(group: ProcessGroup) -> Result<ProcessGroup> {
    ///     if group.waiting()? > 0 { group.rejoin() } else { Ok(group) }
    /// }
    /// ```
    #[track_caller]
    pub fn waiting(&self) -> Result<usize> {
        let generation = self.origin(OpKind::Rejoin)?;
        // The others wait for rank 0 already.
        let found = if self.rank() == 0 { generation.waiting(self.timeout() / 2) } else { Ok(0) };
        let mut waiting = [*found.as_ref().unwrap_or(&0) as u64];
        self.broadcast(&mut waiting, 0)?;
        found.map(|_| waiting[0] as usize)
    }

    #[track_caller]
    fn again(&self, op: OpKind) -> Result<Self> {
        let group = self.origin(op)?.next(op, self.timeout(), self.site())?.with_timeout(self.timeout());
        Ok(if self.is_reproducible() { group.reproducible() } else { group })
    }

    fn origin(&self, op: OpKind) -> Result<&dyn Regroup> {
        self.check_process(op)?;
        self.generation.as_deref().ok_or_else(|| {
            let hint = "the group of all ranks can be made anew; split that again afterwards".to_owned();
            Error::Unsupported { op, backend: self.backend_name(), hint }
        })
    }
}
