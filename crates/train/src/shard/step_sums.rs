//! The sums that the ranks form once a step: of their shares, and of the weights that they use.

use super::flat::Flat;
use crate::missing::MissingCheck;
use crate::{MissingGradients, Result, Share, ShareSums, StepShares};
use phalanx::{ProcessGroup, ReduceOp, Work};

/// This rank's part of the sums of a step: its share, and the weights that its losses depend on.
#[derive(Debug)]
pub(super) struct StepSums {
    missing_check: MissingCheck,
    shares: StepShares,
    /// Whether a loss depends on it, for all members of all flats, in their order.
    used: Vec<bool>,
    /// The index in `used` at which the members of each flat begin.
    starts: Vec<usize>,
    /// The sums over all ranks, once the last pass of the step has begun.
    asked: Option<Work<Vec<u32>>>,
}

impl StepSums {
    pub(super) fn new<S>(flats: &[Flat<S>], missing: MissingGradients) -> Self {
        let mut members = 0;
        let starts = flats.iter().map(|flat| {
            let start = members;
            members += flat.members.len();
            start
        });
        let starts = starts.collect();
        let (missing_check, shares) = (MissingCheck::new(missing), StepShares::default());
        Self { missing_check, shares, used: vec![false; members], starts, asked: None }
    }

    /// A pass begins, of a loss that depends on these members of these flats.
    pub(super) fn note(&mut self, share: Share, reached: &[(usize, usize)]) -> Result<()> {
        self.shares.add(share)?;
        if share.part()?.counts() {
            reached.iter().for_each(|&(flat, member)| self.used[self.starts[flat] + member] = true);
        }
        Ok(())
    }

    /// The last pass of the step begins: asks what the others say.
    pub(super) fn ask(&mut self, group: &ProcessGroup) -> Result<()> {
        let mut words = self.shares.words().to_vec();
        if self.missing_check.is_on() {
            words.extend(self.used.iter().map(|&used| u32::from(used)));
        }
        self.asked = Some(group.all_reduce_async(words, ReduceOp::Sum)?);
        Ok(())
    }

    /// The step is over: judges what all have said. The next one begins anew.
    pub(super) fn settle<S>(
        &mut self,
        flats: &[Flat<S>],
        hint: &'static str,
        group: &ProcessGroup,
    ) -> Result<()> {
        let Some(asked) = self.asked.take() else { return Ok(()) };
        let words = asked.wait()?;
        let (sums, users) = words.split_at(StepShares::WORDS);
        let (sums, shares) = (ShareSums::new(sums), std::mem::take(&mut self.shares));
        self.forget();
        shares.check(&sums, group)?;
        if sums.counting > 0 && self.missing_check.is_on() {
            let names = flats.iter().flat_map(|flat| flat.members.iter().map(|member| member.name.as_str()));
            let mut missing: Vec<&str> =
                names.zip(users).filter(|&(_, &users)| users == 0).map(|(name, _)| name).collect();
            missing.sort_unstable();
            self.missing_check.judge(missing, hint, group)?;
        }
        Ok(())
    }

    /// Forgets the step.
    pub(super) fn forget(&mut self) {
        (self.shares, self.asked) = (StepShares::default(), None);
        self.used.fill(false);
    }
}
