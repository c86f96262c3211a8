//! Gradients of a byte each: blocks of 256 with a scale.

use crate::feedback::{Feedback, finite, predecessors};
use crate::{Bucket, CommHook, Traffic};
use phalanx::{ProcessGroup, Result};
use phalanx_checkpoint::{self as checkpoint, Checkpoint, State};

/// Gradients that share a scale.
const BLOCK: usize = 256;
/// Bytes that a block becomes: its scale, then one for each gradient.
const ENCODED: usize = 4 + BLOCK;

/// Sends gradients as bytes: each block of 256 is divided by its largest, so that one step is 1/127 of that.
///
/// Two rounds: each rank gets everybody's bytes of its share (all_to_all), adds them up as f32, and sends the sum, as bytes again, to
/// all (all_gather). What the rounding takes away is fed back, in the first round by who rounds the gradients, in the second by who rounds
/// the sum. A block with an infinity or a NaN arrives as NaN everywhere, and nothing is remembered of it.
#[derive(Debug, Default)]
pub struct Int8 {
    gradients_left: Feedback,
    sums_left: Feedback,
    traffic: Traffic,
    /// Bytes to all, and from all.
    sent: Vec<u8>,
    received: Vec<u8>,
    sum: Vec<f32>,
}

impl Int8 {
    /// A hook that has left out nothing yet.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::{Bucket, CommHook, Int8};
    ///
    /// let ratios = phalanx::on_threads(2, |group| {
    ///     let mut gradients = vec![1.0; 1 << 10];
    ///     let mut hook = Int8::new();
    ///     hook.reduce(Bucket::flat(0, &mut gradients), &group)?;
    ///     assert_eq!(gradients, [2.0; 1 << 10]);
    ///     Ok(hook.traffic().ratio())
    /// })?;
    /// assert!(ratios[0] > 3.9);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}

impl CommHook for Int8 {
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let Bucket { index, gradients, .. } = bucket;
        if gradients.is_empty() {
            return Ok(());
        }
        let (rank, world_size) = (group.rank(), group.world_size());
        // Whole blocks to each rank, equally many; behind the last gradient there are zeros.
        let blocks = gradients.len().div_ceil(BLOCK).div_ceil(world_size);
        let share = blocks * BLOCK;
        self.traffic.expect(gradients.len(), group);
        self.traffic.exchange(2 * world_size * blocks * ENCODED, group);

        self.gradients_left.add_to(index, gradients);
        let left = self.gradients_left.of(index, gradients.len());
        self.sent.clear();
        self.sent.resize(world_size * blocks * ENCODED, 0);
        let of_blocks = gradients.chunks(BLOCK).zip(left.chunks_mut(BLOCK));
        for ((values, left), bytes) in of_blocks.zip(self.sent.chunks_mut(ENCODED)) {
            encode(values, left, bytes);
        }
        self.received.clear();
        self.received.resize(self.sent.len(), 0);
        group.all_to_all(&self.sent, &mut self.received)?;

        self.sum.clear();
        self.sum.resize(share, 0.0);
        self.sums_left.add_to(index, &mut self.sum);
        for theirs in self.received.chunks(blocks * ENCODED) {
            for (sum, bytes) in self.sum.chunks_mut(BLOCK).zip(theirs.chunks(ENCODED)) {
                sum.iter_mut().zip(decode(bytes)).for_each(|(sum, value)| *sum += value);
            }
        }
        let own = rank * blocks * ENCODED..(rank + 1) * blocks * ENCODED;
        let left = self.sums_left.of(index, share);
        let of_blocks = self.sum.chunks(BLOCK).zip(left.chunks_mut(BLOCK));
        for ((values, left), bytes) in of_blocks.zip(self.received[own].chunks_mut(ENCODED)) {
            encode(values, left, bytes);
        }
        group.all_gather_in_place(&mut self.received)?;
        for (gradients, bytes) in gradients.chunks_mut(BLOCK).zip(self.received.chunks(ENCODED)) {
            gradients.iter_mut().zip(decode(bytes)).for_each(|(gradient, value)| *gradient = value);
        }
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self, prefix: &str, group: &ProcessGroup, state: &mut State<'_>) -> checkpoint::Result<()> {
        self.gradients_left.save(&format!("{prefix}.int8.gradients"), group, state)?;
        self.sums_left.save(&format!("{prefix}.int8.sums"), group, state)
    }

    fn load(&mut self, prefix: &str, group: &ProcessGroup, from: &Checkpoint) -> checkpoint::Result<()> {
        let sums = format!("{prefix}.int8.sums");
        self.gradients_left = Feedback::load(&format!("{prefix}.int8.gradients"), group, from)?;
        self.sums_left = Feedback::default();
        if from.world_size() == group.world_size() {
            self.sums_left = Feedback::of_rank(&sums, group.rank(), from)?;
            return Ok(());
        }
        // The shares are others now, but what is left out of a sum may as well be left out of what is added up.
        for rank in predecessors(group, from) {
            for (index, left) in Feedback::of_rank(&sums, rank, from)?.into_buckets() {
                self.gradients_left.owe_from(index, rank * left.len(), &left);
            }
        }
        Ok(())
    }
}

/// Added to a number below 2²², it leaves no room for what is behind the point: the sum is rounded to a whole number, which its lowest bits
/// are. Processors do that to many numbers at once, unlike `round`.
const ROUND: f32 = 1.5 * (1u32 << 23) as f32;

/// Makes bytes of a block, and notes what they leave out.
fn encode(values: &[f32], left: &mut [f32], bytes: &mut [u8]) {
    let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    // The maximum does not see a NaN.
    let sound = values.iter().all(|value| value.is_finite());
    let scale = if sound { largest / 127.0 } else { f32::NAN };
    // A block of zeros, or of numbers so small that a step is none, is all zeros.
    let steps = if scale.recip().is_finite() { scale.recip() } else { 0.0 };
    let (head, levels) = bytes.split_at_mut(4);
    head.copy_from_slice(&scale.to_le_bytes());
    levels.fill(0);
    for ((value, left), level) in values.iter().zip(left).zip(levels) {
        let rounded = value * steps + ROUND;
        *level = rounded.to_bits() as u8;
        *left = finite(value - (rounded - ROUND) * scale);
    }
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (head, levels) = bytes.split_at(4);
    let scale = f32::from_le_bytes(head.try_into().expect("four bytes"));
    levels.iter().map(move |&level| f32::from(level as i8) * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sent_and_what_is_left_make_the_whole(
            values in prop::collection::vec(prop_oneof![-1e30f32..1e30, -1.0f32..1.0, Just(0.0), Just(1e-40), Just(-1e-44)], 1..=BLOCK),
        ) {
            let (mut left, mut bytes) = (vec![0.0; values.len()], [0; ENCODED]);
            encode(&values, &mut left, &mut bytes);
            let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            let decoded: Vec<f32> = decode(&bytes).collect();
            // Blocks of less have a step without a reciprocal: all of them is left for the next time.
            let least = 127.0 / f32::MAX;
            prop_assert!(decoded[values.len()..].iter().all(|value| *value == 0.0));
            for ((value, left), sent) in values.iter().zip(&left).zip(&decoded) {
                prop_assert!((sent + left - value).abs() <= largest * 1e-6);
                prop_assert!(left.abs() <= largest.min(least).max(largest / 127.0 * 0.51));
            }
        }
    }

    #[test]
    fn a_block_that_is_no_number_arrives_as_none_and_is_forgotten() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut left, mut bytes) = ([1.0; 3], [0; ENCODED]);
            encode(&[1.0, bad, 3.0], &mut left, &mut bytes);
            assert!(decode(&bytes).all(f32::is_nan));
            assert_eq!(left, [0.0; 3]);
        }
    }
}
