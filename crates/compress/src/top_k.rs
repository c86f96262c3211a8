//! The largest gradients only.

use crate::feedback::{Feedback, finite};
use crate::{Bucket, CommHook, Traffic};
use phalanx::{Error, ProcessGroup, Result};
use phalanx_checkpoint::{self as checkpoint, Checkpoint, State};

/// Sends of each bucket only the gradients that are largest, with their places, and keeps the others for later.
///
/// Each rank chooses its own, and all get all that were chosen (all_gather): with P ranks, a rank gets P × 8 bytes for each gradient that it
/// sends. So it pays where the share is well below 1 / P.
#[derive(Debug)]
pub struct TopK {
    share: f64,
    left: Feedback,
    traffic: Traffic,
    order: Vec<u32>,
}

impl TopK {
    /// Sends this share of the gradients, as 0.01 for one in a hundred; at least one of each bucket.
    ///
    /// # Errors
    /// [`Config`](Error::Config) unless the share is above 0 and not above 1.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::{Bucket, CommHook, TopK};
    ///
    /// let sums = phalanx::on_threads(2, |group| {
    ///     let mut gradients = [0.0, 5.0, 0.1, 0.2];
    ///     gradients[0] = 9.0 * group.rank() as f32;
    ///     TopK::new(0.25)?.reduce(Bucket::flat(0, &mut gradients), &group)?; // one of four
    ///     Ok(gradients)
    /// })?;
    /// assert_eq!(sums, [[9.0, 5.0, 0.0, 0.0]; 2]); // the largest of each rank
    /// assert!(TopK::new(0.0).is_err());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn new(share: f64) -> Result<Self> {
        if share > 0.0 && share <= 1.0 {
            return Ok(Self {
                share,
                left: Feedback::default(),
                traffic: Traffic::default(),
                order: Vec::new(),
            });
        }
        Err(Error::config(format!(
            "the share of gradients to send is {share}, expected more than 0 and at most 1"
        )))
    }
}

impl CommHook for TopK {
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let Bucket { index, gradients, .. } = bucket;
        let count = ((gradients.len() as f64 * self.share).ceil() as usize).min(gradients.len());
        self.traffic.expect(gradients.len(), group);
        self.traffic.exchange(8 * count * group.world_size(), group);
        if count == 0 {
            return Ok(());
        }

        self.left.add_to(index, gradients);
        choose(gradients, count, &mut self.order);
        // Places, then values as bits: one message.
        let chosen = &self.order[..count];
        let mine: Vec<u32> =
            chosen.iter().copied().chain(chosen.iter().map(|&i| gradients[i as usize].to_bits())).collect();
        let left = self.left.of(index, gradients.len());
        left.iter_mut().zip(&*gradients).for_each(|(left, &gradient)| *left = finite(gradient));
        chosen.iter().for_each(|&i| left[i as usize] = 0.0);

        let mut all = vec![0u32; mine.len() * group.world_size()];
        group.all_gather(&mine, &mut all)?;
        gradients.fill(0.0);
        // In rank order, so that all add up alike.
        for theirs in all.chunks(mine.len()) {
            let (places, values) = theirs.split_at(count);
            for (&place, &value) in places.iter().zip(values) {
                // What another rank says is a place is one only if it is.
                if let Some(gradient) = gradients.get_mut(place as usize) {
                    *gradient += f32::from_bits(value);
                }
            }
        }
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self, prefix: &str, group: &ProcessGroup, state: &mut State<'_>) -> checkpoint::Result<()> {
        self.left.save(&format!("{prefix}.top_k"), group, state)
    }

    fn load(&mut self, prefix: &str, group: &ProcessGroup, from: &Checkpoint) -> checkpoint::Result<()> {
        self.left = Feedback::load(&format!("{prefix}.top_k"), group, from)?;
        Ok(())
    }
}

/// Puts the places of the `count` largest first; of equals the first.
fn choose(gradients: &[f32], count: usize, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..gradients.len() as u32);
    // As total order a NaN is the largest: it is sent at once, and not kept.
    let size = |&i: &u32| gradients[i as usize].abs();
    order.select_nth_unstable_by(count - 1, |a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_and_of_equals_the_first() {
        let mut order = Vec::new();
        let mut chosen = |gradients: &[f32], count| {
            choose(gradients, count, &mut order);
            let mut chosen = order[..count].to_vec();
            chosen.sort_unstable();
            chosen
        };
        assert_eq!(chosen(&[1.0, -5.0, 0.0, 3.0, -3.0], 2), [1, 3]);
        assert_eq!(chosen(&[1.0, f32::NAN, 7.0], 1), [1]);
        assert_eq!(chosen(&[0.0; 4], 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_share_must_be_one() {
        assert!(TopK::new(1.0).is_ok());
        for share in [0.0, -0.1, 1.1, f64::NAN] {
            assert!(TopK::new(share).is_err());
        }
    }
}
