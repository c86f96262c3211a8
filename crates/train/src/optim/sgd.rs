//! Gradient descent, with momentum or without.

use super::sgd_step::SgdParams;
use super::slots::Slots;
use crate::checkpoint::{self, Checkpoint, Extent, State, Stateful};
use crate::{Result, Tensor, Weights};
use phalanx::ProcessGroup;

/// Gradient descent for tensors of any library, with momentum (Nesterov's too), dampening and weight decay, by the formula of PyTorch's `SGD`: see
/// [`SgdStep::update`](crate::SgdStep::update) for what is equal to the last bit.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, Sgd, SgdParams};
///
/// let mut weights = [Array::from(vec![0f32])];
/// let params = SgdParams { lr: 0.5, momentum: 0.5, ..Default::default() };
/// let mut optimizer = Sgd::new([("weight", &weights[0])], params);
/// for _ in 0..2 {
///     optimizer.step(&mut weights, &[Some(Array::from(vec![2f32]))])?;
/// }
/// assert_eq!(weights[0], Array::from(vec![-2.5f32])); // by half of 2, then by half of 2 + 1
/// # Ok::<(), phalanx_train::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "SGD")]
pub struct Sgd<T: Tensor> {
    slots: Slots<T>,
    params: SgdParams,
}

const NAME: &str = "SGD";
const KINDS: &[&str] = &["velocity"];

impl<T: Tensor> Sgd<T> {
    /// Optimises weights that have these names.
    ///
    /// # Cost
    /// With momentum their memory once more, from the first step on; without it nothing.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd};
    ///
    /// let weight = Array::from(vec![1f32, 2.0]);
    /// let optimizer = Sgd::new([("weight", &weight)], Default::default());
    /// assert_eq!(optimizer.params().momentum, 0.0);
    /// ```
    pub fn new<'n, 'm>(weights: impl IntoIterator<Item = (&'n str, &'m T)>, params: SgdParams) -> Self {
        Self { slots: Slots::new(NAME, KINDS, weights), params }
    }

    /// Optimises shards, which are made of parts of named weights.
    #[doc(hidden)]
    pub fn of_shards<'m>(shards: impl IntoIterator<Item = (&'m T, Vec<Extent>)>, params: SgdParams) -> Self {
        Self { slots: Slots::of_shards(NAME, KINDS, shards), params }
    }

    /// Makes one step. `weights` and `grads` are in the order in which it was made. Weights without a gradient stay as they are, and so does their velocity.
    ///
    /// Not collective: give it reduced gradients, and it does the same on all ranks, to the last bit.
    ///
    /// # Cost
    /// One pass over weights, velocities and gradients, in place.
    ///
    /// # Errors
    /// As of [`AdamW::step`](crate::AdamW::step).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd, SgdParams};
    ///
    /// let mut weights = [Array::from(vec![1f32, 2.0])];
    /// let mut optimizer = Sgd::new([("weight", &weights[0])], SgdParams { lr: 0.5, ..Default::default() });
    /// optimizer.step(&mut weights, &[Some(Array::from(vec![1f32, -1.0]))])?;
    /// assert_eq!(weights[0], Array::from(vec![0.5f32, 2.5]));
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn step(&mut self, weights: &mut (impl Weights<T> + ?Sized), grads: &[Option<T>]) -> Result<()> {
        self.step_scaled(weights, grads, 1.0)
    }

    /// As [`step`](Self::step), of gradients that are multiplied by `factor` in the same pass, each product rounded towards zero. In place of passes of their own
    /// that [clip](crate::clip_factor) and [unscale](crate::LossScaler::settle) gradients.
    ///
    /// # Errors
    /// As of [`step`](Self::step).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd, clip_factor, sum_of_squares};
    ///
    /// let mut weights = [Array::from(vec![1f32, 2.0])];
    /// let mut optimizer = Sgd::new([("weight", &weights[0])], Default::default());
    /// let grads = [Some(Array::from(vec![3f32, -4.0]))];
    /// let norm = sum_of_squares(&grads)?.sqrt();
    /// optimizer.step_scaled(&mut weights, &grads, clip_factor(norm, 1.0)?)?; // as if they were 0.6 and -0.8
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn step_scaled(
        &mut self,
        weights: &mut (impl Weights<T> + ?Sized),
        grads: &[Option<T>],
        factor: f64,
    ) -> Result<()> {
        for (index, slot, grad) in self.slots.with_gradients(grads)? {
            let step = self.params.at_step(slot.moments().is_empty()).scaled(factor);
            if self.params.has_velocity() {
                slot.begin(KINDS.len())?;
            }
            let velocity = slot.moments().first_mut().filter(|_| self.params.has_velocity());
            weights.with(index, |weight| weight.sgd(velocity, grad, &step))?;
        }
        Ok(())
    }

    /// Copies what rank `root` remembers to all ranks, bit for bit: where a group has ranks that have just come. Rates are not copied: they are the program's.
    ///
    /// Collective. Weights are compared by name first; their order does not matter.
    ///
    /// # Cost
    /// A few small messages a rank, then one broadcast for each tensor that is remembered.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank where some rank optimises other weights: nothing was changed.
    /// [`phalanx::Error::Config`] for an optimizer of shards, of which each rank has its own. Those of the library, and of
    /// [`broadcast`](ProcessGroup::broadcast): part of it may have been copied then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd, SgdParams, sync_model};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![0f32])];
    /// let params = SgdParams { lr: 1.0, momentum: 0.5, ..Default::default() };
    /// let mut optimizer = Sgd::new([("weight", &weights[0])], params);
    /// if group.rank() == 0 {
    ///     optimizer.step(&mut weights, &[Some(Array::from(vec![1f32]))])?; // the other is new
    /// }
    /// sync_model([("weight", &mut weights[0])], group, 0)?;
    /// optimizer.sync(group, 0)?;
    /// optimizer.step(&mut weights, &[Some(Array::from(vec![1f32]))])?;
    /// assert_eq!(weights[0], Array::from(vec![-2.5f32])); // on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync(&mut self, group: &ProcessGroup, root: usize) -> Result<()> {
        self.slots.sync(group, root)
    }

    /// The rates.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd};
    ///
    /// assert_eq!(Sgd::<Array>::new([], Default::default()).params().lr, 1e-3);
    /// ```
    pub fn params(&self) -> &SgdParams {
        &self.params
    }

    /// Goes on with other rates.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Sgd, SgdParams};
    ///
    /// let mut optimizer = Sgd::<Array>::new([], Default::default());
    /// optimizer.set_params(SgdParams { lr: 1e-4, ..*optimizer.params() });
    /// assert_eq!(optimizer.params().lr, 1e-4);
    /// ```
    pub fn set_params(&mut self, params: SgdParams) {
        self.params = params;
    }
}

/// The velocities of weights that have some, as `PREFIX.velocity.NAME`; one of which a checkpoint has none begins anew. Rates are not saved: they are the program's.
impl<T: Tensor> Stateful for Sgd<T> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> checkpoint::Result<()> {
        self.slots.save(prefix, state);
        Ok(())
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        self.slots.load(prefix, from, false)
    }
}
