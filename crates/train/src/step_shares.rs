//! Whether the shares of all ranks make one batch.

use crate::{Error, Result, Share};
use phalanx::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bits of a limb. A sum of as many limbs as there are ranks must fit into 32.
const LIMB_BITS: usize = 16;

/// Limbs of a number of samples.
const LIMBS: usize = 3;

/// More samples than any batch has: the largest number of so many limbs.
const SAMPLES_MAX: u64 = (1 << (LIMB_BITS * LIMBS)) - 1;

/// One rank's shares in one step, to be compared with those of the other ranks.
///
/// [`words`](Self::words) of all ranks are added up, by an `all_reduce` that the step makes anyway; [`check`](Self::check) judges the sums, alike on
/// all ranks. All of it is integers: no rounding, so shares of thousands of ranks add up exactly or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepShares {
    /// Losses of the step. None: the rank has no more batches.
    passes: u32,
    weighted: bool,
    /// Whether gradients of this rank count at all.
    counting: bool,
    samples: u64,
    /// The global batch, added up over the passes.
    whole: u64,
    /// The global batch of the first pass, if all passes had the same.
    constant: Option<u64>,
    /// Whether some pass was without samples, and of a whole that this rank did not know.
    is_open: bool,
}

impl StepShares {
    /// Words to be added up.
    pub const WORDS: usize = 6 + 2 * LIMBS + 2 * LIMBS;

    /// The shares of a step with one loss.
    ///
    /// # Errors
    /// As of [`Share::part`].
    pub fn of(share: Share) -> Result<Self> {
        let mut step = Self::default();
        step.add(share)?;
        Ok(step)
    }

    /// Notes the share of one more loss of the step.
    ///
    /// # Errors
    /// As of [`Share::part`].
    pub fn add(&mut self, share: Share) -> Result<()> {
        let part = share.part()?;
        let first = self.passes == 0;
        self.passes += 1;
        self.counting |= part.counts();
        let Some((samples, whole)) = share.samples() else { return Ok(()) };
        self.weighted = true;
        self.is_open |= whole == 0;
        let (samples, whole) = (samples as u64, whole as u64);
        self.samples = self.samples.saturating_add(samples).min(SAMPLES_MAX);
        self.whole = self.whole.saturating_add(whole).min(SAMPLES_MAX);
        self.constant = if first { Some(whole) } else { self.constant.filter(|&before| before == whole) };
        Ok(())
    }

    /// Whether nothing was noted yet.
    pub fn is_empty(&self) -> bool {
        self.passes == 0
    }

    /// This rank's part of the sums that [`check`](Self::check) takes.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let states = self.weighted && !self.is_open;
        let whole = if states { self.whole } else { 0 };
        let flags =
            [self.passes > 0, self.weighted, self.counting, states, states && self.constant.is_some()];
        let mut words = [0; Self::WORDS];
        let (head, rest) = words.split_at_mut(6);
        head.iter_mut().zip(flags).for_each(|(word, flag)| *word = flag.into());
        head[5] = self.passes;
        let (samples, rest) = rest.split_at_mut(LIMBS);
        let (wholes, squares) = rest.split_at_mut(LIMBS);
        split(self.samples.into(), samples);
        split(whole.into(), wholes);
        split(u128::from(whole).pow(2), squares);
        words
    }

    /// Refuses shares that do not make one batch, by the sums of all ranks' [`words`](Self::words).
    ///
    /// Each loss of a step may be of a batch of its own, or all of one batch together. Collective only where it refuses: then the ranks tell each
    /// other their shares, for the error.
    ///
    /// # Errors
    /// [`Error::ShareMismatch`] on all ranks; the group is fine. Those of the group.
    #[track_caller]
    pub fn check(&self, sums: &ShareSums, group: &ProcessGroup) -> Result<()> {
        let Some(what) = sums.trouble() else { return Ok(()) };
        let all = group.all_gather_object(self)?;
        Err(Error::ShareMismatch { what, shares: all.iter().map(Self::to_string).collect() })
    }
}

impl fmt::Display for StepShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { passes: 0, .. } => f.write_str("no more batches"),
            Self { weighted: false, .. } => f.write_str("an equal share"),
            Self { passes, samples, whole, constant, .. } => match (passes, constant) {
                (1, _) => write!(f, "{samples} of {whole} samples"),
                (_, Some(whole)) => write!(f, "{samples} of {whole} samples, in {passes} losses"),
                (_, None) => {
                    write!(f, "{samples} of {whole} samples, in {passes} losses of different batches")
                }
            },
        }
    }
}

/// The shares of all ranks, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareSums {
    /// Ranks that take part: all but those without batches.
    pub working: u32,
    /// Ranks whose shares are not equal.
    pub weighted: u32,
    /// Ranks whose gradients count: all but those without samples.
    pub counting: u32,
    /// Ranks that have said of how many samples their shares are; those whose losses were all of as many.
    stating: u32,
    constant: u32,
    passes: u32,
    samples: u128,
    whole: u128,
    squares: u128,
}

impl ShareSums {
    /// Reads the sums of all ranks' [`StepShares::words`].
    ///
    /// # Panics
    /// If these are not as many.
    pub fn new(words: &[u32]) -> Self {
        let &[working, weighted, counting, stating, constant, passes, ref limbs @ ..] = words else {
            panic!("{} words, not {}", words.len(), StepShares::WORDS)
        };
        assert_eq!(words.len(), StepShares::WORDS, "the sums are of as many words as were added up");
        let (samples, limbs) = limbs.split_at(LIMBS);
        let (whole, squares) = limbs.split_at(LIMBS);
        let (samples, whole, squares) = (join(samples), join(whole), join(squares));
        Self { working, weighted, counting, stating, constant, passes, samples, whole, squares }
    }

    /// Says what is wrong with the shares. The same on all ranks.
    fn trouble(&self) -> Option<String> {
        if self.weighted == 0 {
            return None;
        }
        if self.weighted < self.working {
            return Some("some shares are equal, and some are of a number of samples".into());
        }
        if self.stating == 0 {
            return None; // nobody has samples
        }
        let stating = u128::from(self.stating);
        // All are the same if and only if their mean square is the square of their mean.
        if stating * self.squares != self.whole.pow(2) {
            return Some("the ranks do not agree on the size of the global batch".into());
        }
        let (samples, whole) = (self.samples, self.whole / stating);
        let passes = u128::from(self.passes / self.working);
        let of_one_batch = self.constant == self.stating && samples * passes == whole;
        let whole = if self.constant == self.stating { whole / passes } else { whole };
        match of_one_batch || samples == self.whole / stating {
            true => None,
            false => Some(format!("together they have {samples} samples of a global batch of {whole}")),
        }
    }
}

fn split(number: u128, limbs: &mut [u32]) {
    for (at, limb) in limbs.iter_mut().enumerate() {
        *limb = (number >> (LIMB_BITS * at)) as u32 & ((1 << LIMB_BITS) - 1);
    }
}

/// The number of limbs that were added up, so that each may be larger than a limb.
fn join(limbs: &[u32]) -> u128 {
    limbs.iter().enumerate().map(|(at, &limb)| u128::from(limb) << (LIMB_BITS * at)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(shares: &[(usize, usize)]) -> StepShares {
        let mut step = StepShares::default();
        shares.iter().for_each(|&(samples, whole)| step.add(Share::new(samples, whole)).unwrap());
        step
    }

    fn sums(all: &[StepShares]) -> ShareSums {
        let mut sums = [0; StepShares::WORDS];
        for step in all {
            sums.iter_mut().zip(step.words()).for_each(|(sum, word)| *sum += word);
        }
        ShareSums::new(&sums)
    }

    fn trouble(ranks: &[&[(usize, usize)]]) -> Option<String> {
        sums(&ranks.iter().map(|shares| step(shares)).collect::<Vec<_>>()).trouble()
    }

    #[test]
    fn shares_make_one_batch_or_are_refused() {
        for (ranks, expected) in [
            (&[&[(3, 7)][..], &[(4, 7)], &[(0, 7)]][..], None),
            (&[&[(3, 7)], &[(4, 7)], &[(0, 0)]], None), // it does not know, and need not
            (&[&[(0, 0)], &[(0, 0)], &[(0, 0)]], None),
            (
                &[&[(7, 7)], &[(7, 7)], &[(7, 7)]],
                Some("together they have 21 samples of a global batch of 7"),
            ),
            (&[&[(3, 7)], &[(3, 7)]], Some("together they have 6 samples of a global batch of 7")),
            (&[&[(0, 7)], &[(0, 7)]], Some("together they have 0 samples of a global batch of 7")),
            // The mean of what they say is what the middle one says, and the samples are as many.
            (
                &[&[(2, 4)], &[(2, 6)], &[(2, 8)]],
                Some("the ranks do not agree on the size of the global batch"),
            ),
            // Several losses: of one batch, or each of its own.
            (&[&[(1, 8), (2, 8)], &[(5, 8), (0, 8)]], None),
            (&[&[(1, 3), (5, 9)], &[(2, 3), (4, 9)]], None),
            (
                &[&[(1, 3), (5, 9)], &[(2, 3), (9, 9)]],
                Some("together they have 17 samples of a global batch of 12"),
            ),
            (
                &[&[(4, 8), (4, 8)], &[(4, 8), (3, 8)]],
                Some("together they have 15 samples of a global batch of 8"),
            ),
        ] {
            assert_eq!(trouble(ranks).as_deref(), expected, "{ranks:?}");
        }
        let equal = StepShares::of(Share::EQUAL).unwrap();
        assert_eq!(sums(&[equal.clone(), StepShares::default(), equal.clone()]).trouble(), None);
        assert_eq!(sums(&[step(&[(5, 5)]), StepShares::default()]).trouble(), None);
        let mixed = sums(&[equal, step(&[(5, 5)])]).trouble().unwrap();
        assert_eq!(mixed, "some shares are equal, and some are of a number of samples");
    }

    #[test]
    fn shares_read_well() {
        assert_eq!(step(&[(1, 8), (2, 8)]).to_string(), "3 of 8 samples, in 2 losses");
        assert_eq!(step(&[(1, 3), (5, 9)]).to_string(), "6 of 12 samples, in 2 losses of different batches");
    }

    proptest! {
        /// Tries up to a thousand ranks, and batches as large as they can be.
        #[test]
        fn one_sample_too_many_or_too_few_is_found(
            cuts in prop::collection::vec(0..1u64 << 38, 1..1000),
            off in prop::sample::select(vec![0i64, 1, -1]),
        ) {
            let whole: u64 = cuts.iter().sum();
            let said = whole.checked_add_signed(off).unwrap_or(whole);
            let shares: Vec<_> = cuts.iter().map(|&cut| StepShares {
                passes: 1, weighted: true, counting: cut > 0, samples: cut, whole: said, constant: Some(said), is_open: false,
            }).collect();
            prop_assert_eq!(sums(&shares).trouble().is_none(), said == whole);
        }
    }
}
