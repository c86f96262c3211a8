//! Which samples this rank sees: the same global batches for any number of ranks.

use crate::Share;
use phalanx::{Error, Result, chunk};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

/// The choice what becomes of the last global batch of an epoch when the samples do not fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The batch is left out: up to `global_batch - 1` samples are not seen in that epoch.
    Drop,
    /// The batch is filled up from the beginning of the epoch: these samples are seen twice.
    Pad,
    /// The batch stays smaller: every sample is seen once. Use [`Batch::share`], since the mean over it weighs differently.
    Uneven,
}

/// Deals the samples of a data set to the ranks.
///
/// An epoch is a permutation of all samples, cut into *global batches*; each rank takes its contiguous
/// share of each. The permutation depends on seed and epoch alone, so global batch `k` is the same set of samples
/// for one rank and for a thousand, and a run can be compared with, or continued on, another number of ranks.
/// The epoch is an argument of [`epoch`](Self::epoch): there is no state to forget to advance. A training that stops in the middle of one goes
/// on with [`resume`](Self::resume).
///
/// The permutation is part of the contract, so that other programs can produce it: Fisher–Yates from the last position down, with
/// ChaCha8 keyed by the little-endian bytes of seed, then epoch, then zeros; the partner of position `i` is
/// the high half of the 128-bit product of the next 64 random bits and `i + 1`.
///
/// # Examples
/// ```
/// use phalanx_train::{DistributedSampler, Tail};
/// # fn main() -> phalanx::Result<()> {
/// let sampler = |rank, world_size| {
///     DistributedSampler::new(1000, 64, rank, world_size).map(|s| s.seed(7).tail(Tail::Uneven))
/// };
/// let whole = sampler(0, 1)?.epoch(3).nth(5).unwrap(); // alone: all of global batch 5
/// let first = sampler(0, 3)?.epoch(3).nth(5).unwrap();
/// let second = sampler(1, 3)?.epoch(3).nth(5).unwrap();
/// let third = sampler(2, 3)?.epoch(3).nth(5).unwrap();
/// assert_eq!(whole.indices, [first.indices, second.indices, third.indices].concat());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    samples: usize,
    global_batch: usize,
    rank: usize,
    world_size: usize,
    seed: u64,
    tail: Tail,
}

/// This rank's part of one global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Indices into the data set. May be empty if the global batch has fewer samples than there are ranks.
    pub indices: Vec<usize>,
    /// Samples in the whole global batch.
    pub global_len: usize,
}

impl Batch {
    /// How much of the global batch this is, for a step with batches of different sizes.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Batch, Share};
    ///
    /// let batch = Batch { indices: vec![17, 4, 23], global_len: 10 };
    /// assert_eq!(batch.share(), Share::new(3, 10));
    /// ```
    pub fn share(&self) -> Share {
        Share::new(self.indices.len(), self.global_len)
    }
}

impl DistributedSampler {
    /// Deals `samples` samples in global batches of `global_batch` to rank `rank` of `world_size`, with seed 0 and
    /// [`Tail::Drop`].
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] if there are no samples, batches are empty, or `rank` is not below `world_size`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let sampler = DistributedSampler::new(100, 10, 0, 2)?; // rank 0 of 2
    /// assert!(sampler.epoch(0).all(|batch| batch.indices.len() == 5));
    /// assert!(DistributedSampler::new(100, 10, 2, 2).is_err());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn new(samples: usize, global_batch: usize, rank: usize, world_size: usize) -> Result<Self> {
        if samples == 0 || global_batch == 0 {
            return Err(Error::config(format!(
                "a sampler needs at least one sample and one sample a batch, got {samples} and {global_batch}"
            )));
        }
        if rank >= world_size {
            return Err(Error::config(format!("rank {rank} is out of range: the ranks are 0..{world_size}")));
        }
        Ok(Self { samples, global_batch, rank, world_size, seed: 0, tail: Tail::Drop })
    }

    /// Shuffles by `seed`, which must be the same on all ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let sampler = DistributedSampler::new(100, 10, 0, 2)?;
    /// let [one, other] = [1, 2].map(|seed| sampler.clone().seed(seed).epoch(0).next());
    /// assert_ne!(one, other);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Treats the last global batch as `tail` says.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{DistributedSampler, Tail};
    ///
    /// let sampler = DistributedSampler::new(25, 10, 0, 1)?;
    /// let lens = |tail| sampler.clone().tail(tail).epoch(0).map(|batch| batch.indices.len()).collect::<Vec<_>>();
    /// assert_eq!(lens(Tail::Drop), [10, 10]);
    /// assert_eq!(lens(Tail::Pad), [10, 10, 10]);
    /// assert_eq!(lens(Tail::Uneven), [10, 10, 5]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    pub fn tail(self, tail: Tail) -> Self {
        Self { tail, ..self }
    }

    /// Global batches in an epoch. Equal on all ranks, so all make the same number of steps.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{DistributedSampler, Tail};
    ///
    /// let sampler = DistributedSampler::new(25, 10, 0, 2)?;
    /// assert_eq!(sampler.batches(), 2);
    /// assert_eq!(sampler.tail(Tail::Uneven).batches(), 3);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn batches(&self) -> usize {
        self.batches_in(self.samples)
    }

    fn batches_in(&self, samples: usize) -> usize {
        match self.tail {
            Tail::Drop => samples / self.global_batch,
            Tail::Pad | Tail::Uneven => samples.div_ceil(self.global_batch),
        }
    }

    /// This rank's batches of epoch `epoch`.
    ///
    /// # Cost
    /// One permutation of all samples, one word each.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let sampler = DistributedSampler::new(100, 10, 0, 2)?;
    /// let (first, again, second) = (sampler.epoch(0).next(), sampler.epoch(0).next(), sampler.epoch(1).next());
    /// assert!(first == again && first != second);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn epoch(&self, epoch: u64) -> Epoch {
        Epoch { order: permutation(self.samples, self.seed, epoch), sampler: self.clone(), epoch, next: 0 }
    }

    /// The state at the beginning of a training.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let sampler = DistributedSampler::new(100, 10, 0, 2)?;
    /// let state = sampler.start(); // or what a checkpoint has
    /// assert_eq!(sampler.resume(&state)?.next(), sampler.epoch(0).next());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn start(&self) -> SamplerState {
        SamplerState { samples: self.samples, seed: self.seed, epoch: 0, next: 0 }
    }

    /// What is left of an epoch after `state`, which any rank of a world of any size may have [told](Epoch::state). If the global batch has
    /// another size now, the samples that are left are cut anew.
    ///
    /// # Cost
    /// As of [`epoch`](Self::epoch).
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for the state of another data set or seed: samples would be seen twice, or never.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let two = DistributedSampler::new(100, 10, 0, 2)?;
    /// let mut batches = two.epoch(3);
    /// batches.by_ref().take(4).for_each(drop); // a training on two ranks ends here
    /// let state = batches.state();
    /// let four = DistributedSampler::new(100, 10, 0, 4)?;
    /// assert_eq!(four.resume(&state)?.count(), 6); // and goes on, on four
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn resume(&self, state: &SamplerState) -> Result<Epoch> {
        let SamplerState { samples, seed, epoch, next } = *state;
        if (samples, seed) != (self.samples, self.seed) || next > samples {
            return Err(Error::config(format!(
                "a sampler of {} samples with seed {} can't go on after sample {next} of {samples} with seed {seed}",
                self.samples, self.seed
            )));
        }
        Ok(Epoch { next, ..self.epoch(epoch) })
    }
}

/// How far a training is in its data; the same on all ranks. For a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SamplerState {
    samples: usize,
    seed: u64,
    /// The epoch that goes on, or begins, after this.
    pub epoch: u64,
    /// Samples of it that were dealt out, to all ranks together.
    next: usize,
}

/// This rank's batches of an epoch, or of what is left of it.
///
/// # Examples
/// ```
/// use phalanx_train::DistributedSampler;
/// # fn main() -> phalanx::Result<()> {
/// let sampler = DistributedSampler::new(100, 10, 0, 2)?;
/// let mut batches = sampler.epoch(4);
/// let done: Vec<_> = batches.by_ref().take(3).collect();
/// let state = batches.state(); // goes into a checkpoint
///
/// let alone = DistributedSampler::new(100, 10, 0, 1)?; // another day
/// let left: Vec<_> = alone.resume(&state)?.collect();
/// assert_eq!((done.len(), left.len()), (3, 7));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Epoch {
    sampler: DistributedSampler,
    order: Vec<usize>,
    epoch: u64,
    /// The index in the order at which the next global batch begins.
    next: usize,
}

impl Epoch {
    /// How far a training is that has done all batches until now: after the last one of an epoch, at the beginning of the next.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DistributedSampler;
    ///
    /// let sampler = DistributedSampler::new(100, 10, 0, 2)?;
    /// let mut batches = sampler.epoch(4);
    /// assert_eq!(batches.next(), sampler.epoch(4).next());
    /// let state = batches.state(); // after one batch, for a checkpoint
    /// assert_eq!(state.epoch, 4);
    /// assert_eq!(sampler.resume(&state)?.next(), batches.next());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn state(&self) -> SamplerState {
        let (samples, seed) = (self.sampler.samples, self.sampler.seed);
        match self.len() {
            0 => SamplerState { samples, seed, epoch: self.epoch + 1, next: 0 },
            _ => SamplerState { samples, seed, epoch: self.epoch, next: self.next },
        }
    }
}

impl Iterator for Epoch {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        if self.len() == 0 {
            return None;
        }
        let DistributedSampler { samples, global_batch, rank, world_size, tail, .. } = self.sampler;
        let start = self.next;
        let global_len = match tail {
            Tail::Uneven => global_batch.min(samples - start),
            Tail::Drop | Tail::Pad => global_batch,
        };
        self.next = samples.min(start.saturating_add(global_batch));
        let mine = chunk(rank, world_size, global_len);
        let indices = mine.map(|i| self.order[(start + i) % samples]).collect();
        Some(Batch { indices, global_len })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let batches = self.sampler.batches_in(self.sampler.samples - self.next);
        (batches, Some(batches))
    }
}

impl ExactSizeIterator for Epoch {}

/// The order of an epoch; written out here, since the shuffles of libraries change between versions.
fn permutation(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    let mut order: Vec<usize> = (0..samples).collect();
    for i in (1..samples).rev() {
        // Not exactly uniform, but within 2^-64 times `samples` of it, which no training run can tell.
        let partner = (u128::from(random.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, partner as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tails() -> impl Strategy<Value = Tail> {
        prop::sample::select(vec![Tail::Drop, Tail::Pad, Tail::Uneven])
    }

    proptest! {
        #[test]
        fn global_batches_do_not_depend_on_the_world(
            samples in 1usize..300, global_batch in 1usize..80, world_size in 1usize..9,
            seed: u64, epoch: u64, tail in tails(),
        ) {
            let of = |rank, world_size| -> Vec<Batch> {
                let sampler = DistributedSampler::new(samples, global_batch, rank, world_size).unwrap();
                sampler.seed(seed).tail(tail).epoch(epoch).collect()
            };
            let alone = of(0, 1);
            let shares: Vec<_> = (0..world_size).map(|rank| of(rank, world_size)).collect();
            for (k, whole) in alone.iter().enumerate() {
                let joined: Vec<usize> = shares.iter().flat_map(|s| s[k].indices.iter().copied()).collect();
                prop_assert_eq!(&joined, &whole.indices);
                prop_assert_eq!(whole.global_len, whole.indices.len());
                for share in &shares {
                    prop_assert_eq!(share.len(), alone.len());
                    prop_assert_eq!(share[k].global_len, whole.global_len);
                    let (fair, mine) = (whole.global_len / world_size, share[k].indices.len());
                    prop_assert!(mine == fair || mine == fair + 1);
                }
            }
        }

        #[test]
        fn an_epoch_sees_what_its_tail_promises(
            samples in 1usize..300, global_batch in 1usize..80, seed: u64, tail in tails(),
        ) {
            let sampler = DistributedSampler::new(samples, global_batch, 0, 1).unwrap().seed(seed).tail(tail);
            let mut times = vec![0usize; samples];
            for batch in sampler.epoch(1) {
                batch.indices.iter().for_each(|&i| times[i] += 1);
            }
            let seen: usize = times.iter().sum();
            match tail {
                Tail::Drop => {
                    prop_assert_eq!(seen, samples - samples % global_batch);
                    prop_assert!(times.iter().all(|&n| n <= 1));
                }
                Tail::Pad => {
                    prop_assert_eq!(seen, samples.next_multiple_of(global_batch));
                    prop_assert!(times.iter().all(|&n| n >= 1));
                }
                Tail::Uneven => prop_assert!(times.iter().all(|&n| n == 1)),
            }
        }
    }

    proptest! {
        #[test]
        fn a_training_that_stops_anywhere_sees_the_same_batches_on_any_world(
            samples in 1usize..200, global_batch in 1usize..40, seed: u64, tail in tails(),
            worlds in prop::collection::vec(1usize..5, 1..6), stops in prop::collection::vec(0usize..8, 6),
        ) {
            let sampler = |rank, world_size| {
                DistributedSampler::new(samples, global_batch, rank, world_size).unwrap().seed(seed).tail(tail)
            };
            let epochs = 3;
            let expected: Vec<_> = (0..epochs).flat_map(|epoch| sampler(0, 1).epoch(epoch)).collect();
            prop_assume!(!expected.is_empty());
            let (mut found, mut state, mut run) = (Vec::new(), sampler(0, 1).start(), 0);
            while state.epoch < epochs {
                let world_size = worlds[run % worlds.len()];
                let mut ranks: Vec<_> =
                    (0..world_size).map(|rank| sampler(rank, world_size).resume(&state).unwrap()).collect();
                // At least one, or it would not come to an end.
                for _ in 0..stops[run % stops.len()] + 1 {
                    let parts: Vec<_> = ranks.iter_mut().filter_map(Iterator::next).collect();
                    if let Some(Batch { global_len, .. }) = parts.first().cloned() {
                        prop_assert_eq!(parts.len(), world_size);
                        let indices = parts.into_iter().flat_map(|part| part.indices).collect();
                        found.push(Batch { indices, global_len });
                    }
                }
                prop_assert!(ranks.iter().all(|rank| rank.state() == ranks[0].state()));
                let text = serde_json::to_string(&ranks[0].state()).unwrap();
                state = serde_json::from_str(&text).unwrap();
                run += 1;
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_is_left_can_be_cut_into_other_batches() {
        let sampler = |batch| DistributedSampler::new(100, batch, 0, 1).unwrap().tail(Tail::Uneven);
        let mut batches = sampler(30).epoch(2);
        let mut seen: Vec<usize> = batches.by_ref().take(2).flat_map(|batch| batch.indices).collect();
        let left: Vec<_> = sampler(7).resume(&batches.state()).unwrap().collect();
        assert_eq!(left.len(), 6, "40 samples in batches of 7");
        seen.extend(left.into_iter().flat_map(|batch| batch.indices));
        assert_eq!(seen, permutation(100, 0, 2));
    }

    #[test]
    fn a_batch_may_be_larger_than_all_that_is_left() {
        let sampler = |batch| DistributedSampler::new(100, batch, 0, 1).unwrap().tail(Tail::Uneven);
        let mut batches = sampler(30).epoch(2);
        let _ = batches.next();
        let left: Vec<_> = sampler(usize::MAX).resume(&batches.state()).unwrap().collect();
        assert_eq!(left, [Batch { indices: permutation(100, 0, 2)[30..].to_vec(), global_len: 70 }]);
    }

    #[test]
    fn the_state_of_another_data_set_is_refused() {
        let sampler = |samples, seed| DistributedSampler::new(samples, 10, 0, 1).unwrap().seed(seed);
        let state = sampler(100, 7).start();
        assert!(sampler(100, 7).resume(&state).is_ok());
        let told = sampler(101, 7).resume(&state).unwrap_err().to_string();
        assert!(told.contains("101 samples with seed 7") && told.contains("of 100 with seed 7"), "{told}");
        assert!(sampler(100, 8).resume(&state).is_err());
        assert!(sampler(100, 7).resume(&SamplerState { next: 101, ..state }).is_err());
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let order = |seed, epoch| permutation(1000, seed, epoch);
        assert_eq!(order(1, 2), order(1, 2));
        assert_ne!(order(1, 2), order(1, 3));
        assert_ne!(order(1, 2), order(2, 2));
        assert_ne!(order(1, 2), order(2, 1));
    }

    #[test]
    fn the_order_is_fixed_for_ever() {
        // Computed by an implementation of ChaCha8 and of the order's definition that shares no code with this one.
        assert_eq!(permutation(10, 1, 2), [6, 8, 7, 4, 5, 0, 1, 9, 2, 3]);
    }

    #[test]
    fn every_first_sample_is_about_equally_likely() {
        let mut first = [0usize; 5];
        (0..5_000).for_each(|epoch| first[permutation(5, 11, epoch)[0]] += 1);
        assert!(first.iter().all(|&n| (900..1_100).contains(&n)), "{first:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        for (samples, batch, rank, world) in [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1), (1, 1, 0, 0)] {
            assert!(DistributedSampler::new(samples, batch, rank, world).is_err());
        }
    }
}
