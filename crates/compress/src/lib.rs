//! Gradients in fewer bytes, for networks that are slower than the processors beside them.
//!
//! A [`CommHook`] adds up a bucket of gradients over a group in its own way. All here leave the same bits on every rank, if the ranks' threads
//! round to nearest and keep subnormals, as Rust takes for granted (the group's reductions do so by themselves). Those that leave something
//! out remember it and add it to the next step's gradients (*error feedback*), so nothing is lost for good: over many steps the sum of
//! what they return is the sum of what they were given, but for what was left out last.
//!
//! | hook | a rank sends, beside f32 | what is left out |
//! |---|---|---|
//! | [`Cast`] to f16 or bf16 | 1/2 | rounding; not fed back |
//! | [`Int8`] | about 1/4 | rounding to 255 levels a block of 256; fed back |
//! | [`TopK`] | 2k/n × P/2 | all but the k largest of n; fed back |
//! | [`PowerSgd`] | r(a + b)/ab, for matrices of a × b | all but r directions; fed back |
//!
//! This crate knows slices and groups, and nothing of tensors or training.
//!
//! # Examples
//! ```
//! use phalanx::threads;
//! use phalanx_compress::{Bucket, CommHook, Int8};
//!
//! std::thread::scope(|ranks| {
//!     for group in threads(2) {
//!         ranks.spawn(move || -> phalanx::Result<()> {
//!             let mut hook = Int8::new();
//!             // This rank's part of the average: its gradients, divided by the number of ranks.
//!             let mut gradients = vec![[0.25, 0.75][group.rank()]; 1000];
//!             hook.reduce(Bucket::flat(0, &mut gradients), &group)?;
//!             assert!(gradients.iter().all(|g| (g - 1.0f32).abs() < 0.01));
//!             assert!(hook.traffic().ratio() > 3.0);
//!             Ok(())
//!         });
//!     }
//! });
//! ```

mod cast;
mod feedback;
mod int8;
mod power_sgd;
mod top_k;

pub use cast::Cast;
pub use int8::Int8;
pub use power_sgd::PowerSgd;
pub use top_k::TopK;

use phalanx::{ProcessGroup, Result};
use phalanx_checkpoint::{self as checkpoint, Checkpoint, State};

/// Gradients that are sent together.
#[derive(Debug)]
pub struct Bucket<'a> {
    /// Which of the model's buckets, the same on all ranks and in all steps: what a hook remembers is kept by it.
    pub index: usize,
    /// This rank's gradients, already weighed: the sum over the ranks is what is wanted.
    pub gradients: &'a mut [f32],
    /// The shapes of the tensors that lie in it, end to end. What lies behind them, or all where none is given, is taken for vectors.
    pub shapes: &'a [&'a [usize]],
}

impl<'a> Bucket<'a> {
    /// A bucket of which only the numbers are known.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::Bucket;
    ///
    /// let mut gradients = [1.0, 2.0];
    /// let bucket = Bucket::flat(3, &mut gradients);
    /// assert_eq!((bucket.index, bucket.gradients.len(), bucket.shapes.len()), (3, 2, 0));
    /// ```
    pub fn flat(index: usize, gradients: &'a mut [f32]) -> Self {
        Self { index, gradients, shapes: &[] }
    }
}

/// A way to add up a bucket of gradients over a group.
pub trait CommHook: Send {
    /// Replaces this rank's gradients by the sum of all ranks', or what comes near it: by the same bits on every rank.
    ///
    /// Collective: each rank calls it with buckets of the same index, length and shapes, in the same order.
    ///
    /// # Errors
    /// Those of the group. The gradients are unspecified then.
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()>;

    /// The bytes sent until now.
    fn traffic(&self) -> Traffic;

    /// Adds to `state` what this rank remembers from step to step, under names that begin with `prefix`, for [`load`](Self::load). A hook that
    /// remembers nothing needs neither. Not collective.
    ///
    /// # Cost
    /// A copy of what is remembered.
    ///
    /// # Errors
    /// Those of [`State`].
    fn save(&self, prefix: &str, group: &ProcessGroup, state: &mut State<'_>) -> checkpoint::Result<()> {
        let _ = (prefix, group, state);
        Ok(())
    }

    /// Remembers what hooks of this kind have saved under `prefix`, on another number of ranks too: what was left out there is
    /// left out here, until it is sent. Where none has saved anything, it remembers nothing. Not collective.
    ///
    /// # Errors
    /// Those of [`Checkpoint`].
    fn load(&mut self, prefix: &str, group: &ProcessGroup, from: &Checkpoint) -> checkpoint::Result<()> {
        let _ = (prefix, group, from);
        Ok(())
    }
}

impl<H: CommHook + ?Sized> CommHook for Box<H> {
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        (**self).reduce(bucket, group)
    }

    fn traffic(&self) -> Traffic {
        (**self).traffic()
    }

    fn save(&self, prefix: &str, group: &ProcessGroup, state: &mut State<'_>) -> checkpoint::Result<()> {
        (**self).save(prefix, group, state)
    }

    fn load(&mut self, prefix: &str, group: &ProcessGroup, from: &Checkpoint) -> checkpoint::Result<()> {
        (**self).load(prefix, group, from)
    }
}

/// How much a rank has sent, and how much it would have as f32. In bytes, without headers, as the bandwidth-optimal algorithm of each
/// collective sends them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that an all_reduce of the same gradients as f32 sends.
    pub plain: u64,
}

impl Traffic {
    /// How many times less was sent than without the hook; 1 where nothing was.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::Traffic;
    ///
    /// assert_eq!(Traffic { sent: 250, plain: 1000 }.ratio(), 4.0);
    /// assert_eq!(Traffic::default().ratio(), 1.0);
    /// ```
    pub fn ratio(self) -> f64 {
        if self.sent == 0 { 1.0 } else { self.plain as f64 / self.sent as f64 }
    }

    /// The bytes that a rank sends in an all_reduce of so many bytes: each goes out twice, but for its own share.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::Traffic;
    ///
    /// // Of 1000 bytes on four ranks, three quarters go out, and the sum of the last quarter three times.
    /// let groups = phalanx::threads(4);
    /// assert_eq!(Traffic::of_all_reduce(1000, &groups[0]), 1500);
    /// ```
    pub fn of_all_reduce(bytes: usize, group: &ProcessGroup) -> u64 {
        2 * others(bytes, group)
    }

    /// A bucket of so many gradients is to be reduced.
    fn expect(&mut self, gradients: usize, group: &ProcessGroup) {
        self.plain += Self::of_all_reduce(4 * gradients, group);
    }

    /// An all_reduce of so many bytes.
    fn all_reduce(&mut self, bytes: usize, group: &ProcessGroup) {
        self.sent += Self::of_all_reduce(bytes, group);
    }

    /// An all_to_all, of so many bytes in all; or an all_gather that ends with so many.
    fn exchange(&mut self, bytes: usize, group: &ProcessGroup) {
        self.sent += others(bytes, group);
    }
}

/// The other ranks' share of so many bytes, dealt out evenly.
fn others(bytes: usize, group: &ProcessGroup) -> u64 {
    let world_size = group.world_size();
    (bytes * (world_size - 1) / world_size) as u64
}
