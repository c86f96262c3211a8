//! AdamW, with names for what it remembers.

use super::adamw_step::{AdamWParams, AdamWStep};
use super::slots::Slots;
use crate::checkpoint::{self, Checkpoint, Extent, State, Stateful};
use crate::{Result, Tensor, Weights};
use phalanx::ProcessGroup;

/// AdamW (Loshchilov and Hutter, 2019) for tensors of any library: to the last bit that of `candle_nn`, and by the formula of PyTorch's. It names what it
/// remembers, so it can be part of a [checkpoint](crate::checkpoint).
///
/// It computes in the type of the weights. In f16 the usual `eps` of 1e-8 is zero, so a weight whose gradients are zero becomes NaN, and one whose
/// gradients are so small that f16 loses their squares (those below 5e-3 in the first step) infinite, as in PyTorch: a warning of `tracing` says so when
/// it is made. Keep weights in f32, or take an `eps` of 1e-4 at least.
///
/// # Examples
/// ```
/// use phalanx_train::{AdamW, AdamWParams, Array};
///
/// let mut weights = [Array::from(vec![1f32, 1.0]), Array::from(vec![1f32])];
/// let params = AdamWParams { lr: 0.1, ..Default::default() };
/// let mut optimizer = AdamW::new(["a", "b"].into_iter().zip(&weights), params)?;
/// let grads = [Some(Array::from(vec![0.5f32, -0.5])), None]; // as a Reducer returns them
/// optimizer.step(&mut weights, &grads)?;
/// assert!(weights[0].as_slice::<f32>().unwrap()[0] < 0.91);
/// assert_eq!(weights[1], Array::from(vec![1f32])); // it has no gradient
/// # Ok::<(), phalanx_train::Error>(())
/// ```
#[derive(Debug)]
pub struct AdamW<T: Tensor> {
    slots: Slots<T>,
    steps: u64,
    params: AdamWParams,
}

const NAME: &str = "AdamW";
const KINDS: &[&str] = &["first_moment", "second_moment"];

impl<T: Tensor> AdamW<T> {
    /// Optimises weights that have these names.
    ///
    /// # Cost
    /// Twice their memory.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{AdamW, Array};
    ///
    /// let weight = Array::from(vec![1f32, 2.0]);
    /// let optimizer = AdamW::new([("weight", &weight)], Default::default())?;
    /// assert_eq!(optimizer.params().beta1, 0.9);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn new<'n, 'm>(
        weights: impl IntoIterator<Item = (&'n str, &'m T)>,
        params: AdamWParams,
    ) -> Result<Self> {
        Self::of(Slots::new(NAME, KINDS, weights), params)
    }

    /// Optimises shards, which are made of parts of named weights.
    #[doc(hidden)]
    pub fn of_shards<'m>(
        shards: impl IntoIterator<Item = (&'m T, Vec<Extent>)>,
        params: AdamWParams,
    ) -> Result<Self> {
        Self::of(Slots::of_shards(NAME, KINDS, shards), params)
    }

    fn of(mut slots: Slots<T>, params: AdamWParams) -> Result<Self> {
        if slots.weights().any(|weight| AdamWStep::is_eps_lost(weight.dtype, params.eps)) {
            tracing::warn!(
                eps = params.eps,
                "AdamW's eps is zero in f16: weights of f16 whose gradients are zero or small become NaN or infinite; keep them in f32, or take an eps of 1e-4 at least"
            );
        }
        slots.begin()?;
        Ok(Self { slots, steps: 0, params })
    }

    /// Makes one step. `weights` and `grads` are in the order in which it was made. Weights without a gradient stay as they are, and so do their moments.
    ///
    /// Not collective: give it reduced gradients, and it does the same on all ranks, to the last bit.
    ///
    /// # Cost
    /// One pass over weights, moments and gradients, in place.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for more or fewer gradients than weights, and for one that is not like its weight: nothing is changed then. Those of the
    /// library, after which some weights may have been changed.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{AdamW, Array};
    ///
    /// let mut weights = [Array::from(vec![1f32, 2.0])];
    /// let mut optimizer = AdamW::new([("weight", &weights[0])], Default::default())?;
    /// optimizer.step(&mut weights, &[Some(Array::from(vec![1f32, -1.0]))])?;
    /// let found = weights[0].as_slice::<f32>().unwrap();
    /// assert!(found[0] < 1.0 && found[1] > 2.0);
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
    /// use phalanx_train::{Array, AdamW, clip_factor, sum_of_squares};
    ///
    /// let mut weights = [Array::from(vec![1f32, 2.0])];
    /// let mut optimizer = AdamW::new([("weight", &weights[0])], Default::default())?;
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
        let with_gradients = self.slots.with_gradients(grads)?;
        self.steps += 1;
        let step = self.params.at_step(self.steps).scaled(factor);
        for (index, slot, grad) in with_gradients {
            let [first, second] = slot.moments() else { unreachable!("they were made with it") };
            weights.with(index, |weight| weight.adamw(first, second, grad, &step))?;
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
    /// use phalanx_train::{AdamW, Array, sync_model, verify_parameters};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![0f32])];
    /// let mut optimizer = AdamW::new([("weight", &weights[0])], Default::default())?;
    /// if group.rank() == 0 {
    ///     optimizer.step(&mut weights, &[Some(Array::from(vec![1f32]))])?; // the other is new
    /// }
    /// sync_model([("weight", &mut weights[0])], group, 0)?;
    /// optimizer.sync(group, 0)?;
    /// optimizer.step(&mut weights, &[Some(Array::from(vec![-1f32]))])?;
    /// verify_parameters([("weight", &weights[0])], group)?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync(&mut self, group: &ProcessGroup, root: usize) -> Result<()> {
        self.slots.sync(group, root)?;
        self.steps = group.broadcast_object((group.rank() == root).then_some(self.steps), root)?;
        Ok(())
    }

    /// Rates and decay.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{AdamW, Array};
    ///
    /// let optimizer = AdamW::<Array>::new([], Default::default())?;
    /// assert_eq!(optimizer.params().lr, 1e-3);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn params(&self) -> &AdamWParams {
        &self.params
    }

    /// Goes on with other rates and decay.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{AdamW, AdamWParams, Array};
    ///
    /// let mut optimizer = AdamW::<Array>::new([], Default::default())?;
    /// optimizer.set_params(AdamWParams { lr: 1e-4, ..*optimizer.params() });
    /// assert_eq!(optimizer.params().lr, 1e-4);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn set_params(&mut self, params: AdamWParams) {
        self.params = params;
    }
}

/// Moments, as `PREFIX.first_moment.NAME` and `PREFIX.second_moment.NAME`, and the number of steps: the same names in every library. Rates are not saved: they
/// are the program's.
impl<T: Tensor> Stateful for AdamW<T> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> checkpoint::Result<()> {
        self.slots.save(prefix, state);
        state.value(format!("{prefix}.steps"), &self.steps)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        let steps = from.value(&format!("{prefix}.steps"))?;
        self.slots.load(prefix, from, true)?;
        self.steps = steps;
        Ok(())
    }
}
