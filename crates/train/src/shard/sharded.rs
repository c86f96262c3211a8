//! Training in which every rank keeps only a part of what all need.

use super::config::{ShardConfig, Stage};
use super::engine::Engine;
use super::flat::{Flat, Taken, cut};
use super::gradients::PassSending;
use crate::checkpoint::{self, Checkpoint, Extent, State, Stateful};
use crate::{
    AdamW, AdamWParams, Array, Error, Gradients, LossScaler, Result, Sgd, SgdParams, Share, Tensor, Weights,
    clip, sync_model,
};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup, ReduceOp};
use std::fmt;

/// Data-parallel training in which each rank keeps a part only of the optimizer's state and of the gradients: ZeRO-1 and ZeRO-2, for tensors of any library. What
/// comes out is what a [`Reducer`](crate::Reducer) and the same optimizer find.
///
/// Weights are laid end to end, and each rank has one slice of them: its [`shards`](Self::shards), as [`Array`]s of one dimension in the host's memory. They are what
/// an optimizer changes: [`adamw`](Self::adamw), [`sgd`](Self::sgd), or any that treats each number by itself. A step is
/// [`reduce`](Self::reduce), a step of the optimizer, to which this is a model's [`Weights`], and [`gather`](Self::gather). Weights of 16 bits have shards of 32.
///
/// All calls are collective, but for those that say otherwise: each rank makes them in the same order.
///
/// # Examples
/// ```
/// use phalanx::ProcessGroup;
/// use phalanx_train::{AdamWParams, Array, ShardConfig, Sharded, Share};
///
/// fn train(group: &ProcessGroup) -> phalanx_train::Result<()> {
///     let mut weights = [Array::from(vec![1f32; 5]), Array::from(vec![2f32; 2])];
///     let named = ["a", "b"].into_iter().zip(&mut weights);
///     let mut zero = Sharded::new(named, group, ShardConfig::default())?;
///     let mut optimizer = zero.adamw(AdamWParams { lr: 0.1, ..Default::default() })?; // of this rank's part
///     for _ in 0..3 {
///         // The gradients of half the squares.
///         let grads = weights.iter().cloned().map(Some).collect();
///         let mut grads = zero.reduce(grads, Share::EQUAL)?;
///         zero.clip_grad_norm(&mut grads, 10.0)?;
///         optimizer.step(&mut zero, &grads)?;
///         zero.gather(&mut weights)?;
///     }
///     assert!(weights[0].as_slice::<f32>().unwrap().iter().all(|w| (w - 0.7).abs() < 0.01));
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
#[doc(alias = "ZeRO")]
pub struct Sharded {
    engine: Engine<Array>,
    /// The flat of each of the program's weights, and its index among the members there.
    places: Vec<(usize, usize)>,
    group: ProcessGroup,
    config: ShardConfig,
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded")
            .field("group", &self.group)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Sharded {
    /// Makes weights what they are on rank 0, and deals them out. All that follows knows them by their places in this list.
    ///
    /// # Cost
    /// Each weight is sent twice. Of 32 bits a rank keeps `1 / world_size` of them once more.
    ///
    /// # Errors
    /// As of [`sync_model`]. [`phalanx::Error::Config`] for weights that are no floats, and for [`Stage::Weights`]: weights come and go with the units of a graph, so
    /// that is an adapter's, as `phalanx-candle` has it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Stage};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![group.rank() as f32; 3]); // different on each rank
    /// let config = ShardConfig::default().stage(Stage::Optimizer);
    /// let zero = Sharded::new([("weight", &mut weight)], group, config)?;
    /// assert_eq!(weight, Array::from(vec![0f32; 3])); // rank 0's
    /// assert_eq!(zero.shards().map(|shard| shard.as_slice::<f32>().unwrap().len()).sum::<usize>(), 2); // half of three
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new<'n, 'm, T: Tensor>(
        weights: impl IntoIterator<Item = (&'n str, &'m mut T)>,
        group: &ProcessGroup,
        config: ShardConfig,
    ) -> Result<Self> {
        let mut weights: Vec<_> = weights.into_iter().collect();
        if config.stage == Stage::Weights {
            let what = "weights come and go with the units of a library's graph: take Stage::Gradients, or an adapter that knows units";
            return Err(phalanx::Error::config(what).into());
        }
        if let Some((name, weight)) = weights.iter().find(|(_, weight)| !weight.dtype().is_float()) {
            let what = format!(
                "`{name}` can't be dealt out: it is {}; pass only weights that are floats",
                weight.dtype()
            );
            return Err(phalanx::Error::config(what).into());
        }
        let here = group.with_call_site(CallSite::caller());
        let overlap = config.overlap.choose(&here)?;
        sync_model(weights.iter_mut().map(|(name, weight)| (*name, &mut **weight)), &here, 0)?;
        let taken = weights.into_iter().enumerate().map(|(index, (name, weight))| Taken {
            name: name.to_owned(),
            dims: weight.dims().to_vec(),
            dtype: weight.dtype(),
            index,
            initial: &*weight,
        });
        let mut taken: Vec<_> = taken.collect();
        // Whatever the program's order is: this one is the same on all ranks.
        taken.sort_by(|a, b| a.name.cmp(&b.name));
        let mut places = vec![(0, 0); taken.len()];
        let mut flats = Vec::new();
        for (at, taken) in cut(taken, config.bucket_cap_bytes).into_iter().enumerate() {
            taken.iter().enumerate().for_each(|(member, one)| places[one.index] = (at, member));
            flats.push(Flat::new::<T, _>(format!("bucket {at}"), taken, true, &here, Ok)?);
        }
        let engine = Engine::new(flats, group, overlap, config.missing_gradients, T::NO_GRADIENT_HINT);
        Ok(Self { engine, places, group: group.clone(), config })
    }

    /// This rank's slices of the weights. Not collective.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![1f32, 2.0, 3.0, 4.0]);
    /// let zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default())?;
    /// let mine = [vec![1f32, 2.0], vec![3.0, 4.0]][group.rank()].clone();
    /// assert_eq!(zero.shards().next(), Some(&Array::from(mine)));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn shards(&self) -> impl Iterator<Item = &Array> {
        self.engine.flats().iter().map(|flat| &flat.shard)
    }

    fn extents(&self) -> impl Iterator<Item = (&Array, Vec<Extent>)> {
        self.engine.flats().iter().map(|flat| (&flat.shard, flat.extents()))
    }

    /// An AdamW of this rank's shards. What it remembers is saved by the names of the weights, so it goes on with another number of ranks, and with a model that
    /// is not dealt out. Not collective.
    ///
    /// # Cost
    /// Twice the shards' memory.
    ///
    /// # Errors
    /// As of [`AdamW::new`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32; 4])];
    /// let mut zero = Sharded::new([("weight", &mut weights[0])], group, ShardConfig::default())?;
    /// let mut optimizer = zero.adamw(Default::default())?;
    /// let grads = zero.reduce(vec![Some(Array::from(vec![1f32; 4]))], Share::EQUAL)?;
    /// optimizer.step(&mut zero, &grads)?;
    /// zero.gather(&mut weights)?;
    /// assert!(weights[0].as_slice::<f32>().unwrap().iter().all(|weight| *weight < 1.0));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn adamw(&self, params: AdamWParams) -> Result<AdamW<Array>> {
        AdamW::of_shards(self.extents(), params)
    }

    /// As [`adamw`](Self::adamw), gradient descent.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, SgdParams, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32; 4])];
    /// let mut zero = Sharded::new([("weight", &mut weights[0])], group, ShardConfig::default())?;
    /// let mut optimizer = zero.sgd(SgdParams { lr: 0.5, momentum: 0.9, ..Default::default() });
    /// let grads = zero.reduce(vec![Some(Array::from(vec![group.rank() as f32; 4]))], Share::EQUAL)?;
    /// optimizer.step(&mut zero, &grads)?;
    /// zero.gather(&mut weights)?;
    /// assert_eq!(weights[0], Array::from(vec![0.75f32; 4])); // by half of the mean of 0 and 1
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn sgd(&self, params: SgdParams) -> Sgd<Array> {
        Sgd::of_shards(self.extents(), params)
    }

    /// A whole step for gradients that are there, as many as there are weights: gradients of the shards, of the mean of all ranks' losses and of those that were
    /// [accumulated](Self::accumulate). `share` is this rank's of the global batch.
    ///
    /// A weight that no rank has used has a gradient of zero, unless none of those that are sent with it was used either: then there is none.
    ///
    /// # Cost
    /// One reduce_scatter for each flat of weights, an all_reduce of 8 bytes a flat, and one of 72 bytes; in the first step, of 4 bytes more a weight.
    ///
    /// # Determinism
    /// As of a [`Reducer`](crate::Reducer).
    ///
    /// # Errors
    /// [`phalanx::Error::Misuse`] for gradients that do not fit, before anything is sent. Those of [`reduce_scatter`](ProcessGroup::reduce_scatter), and the library's,
    /// after which the group is aborted, whose other ranks wait for the rest. [`ShareMismatch`](Error::ShareMismatch), and
    /// [`NoGradient`](Error::NoGradient) if [`ShardConfig::missing_gradients`] asks for it; the group is fine then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![0f32; 2]);
    /// let mut zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default())?;
    /// // Rank 0 has 3 of 4 samples, rank 1 has one.
    /// let (mine, samples) = (Array::from(vec![group.rank() as f32; 2]), [3, 1][group.rank()]);
    /// let grads = zero.reduce(vec![Some(mine)], Share::new(samples, 4))?;
    /// assert_eq!(grads, [Some(Array::from(vec![0.25f32]))]); // of this rank's half
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn reduce<T: Tensor>(&mut self, grads: Gradients<T>, share: Share) -> Result<Gradients<Array>> {
        let sending =
            if self.config.stage == Stage::Optimizer { PassSending::After } else { PassSending::During };
        self.pass(grads, share, (sending, true), CallSite::caller())?;
        let outcome = self.engine.end_step();
        self.unless_failed(outcome)
    }

    /// Keeps gradients for the next [`reduce`](Self::reduce), which adds its own to them. Either all of a step have equal shares, or none: then the shares of the
    /// step are of one batch all together, or those of each call are of a batch of its own.
    ///
    /// # Cost
    /// With [`Stage::Optimizer`] nothing is sent, and all gradients stay in memory. With [`Stage::Gradients`] they are reduced, and each rank keeps its part.
    ///
    /// # Errors
    /// As of [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![0f32; 2]);
    /// let mut zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default())?;
    /// zero.accumulate(vec![Some(Array::from(vec![2f32; 2]))], Share::EQUAL)?;
    /// let grads = zero.reduce(vec![Some(Array::from(vec![3f32; 2]))], Share::EQUAL)?;
    /// assert_eq!(grads, [Some(Array::from(vec![5f32]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[doc(alias = "no_sync")]
    #[track_caller]
    pub fn accumulate<T: Tensor>(&mut self, grads: Gradients<T>, share: Share) -> Result<()> {
        let sending =
            if self.config.stage == Stage::Optimizer { PassSending::Not } else { PassSending::During };
        self.pass(grads, share, (sending, false), CallSite::caller())
    }

    fn pass<T: Tensor>(
        &mut self,
        grads: Gradients<T>,
        share: Share,
        sending: (PassSending, bool),
        site: CallSite,
    ) -> Result<()> {
        self.check(&grads)?;
        let mut grads: Vec<_> =
            self.places.iter().zip(grads).filter_map(|(&at, grad)| Some((at, grad?))).collect();
        // Flat by flat, so that each is sent, and its memory given back, before the next is begun.
        grads.sort_by_key(|(at, _)| *at);
        let reached: Vec<_> = grads.iter().map(|(at, _)| *at).collect();
        let begun = self.engine.begin_backward(&reached, share, sending, site);
        self.unless_failed(begun)?;
        for (at, grad) in grads {
            let outcome = self.engine.arrive(at, &grad, &mut no_model());
            self.unless_failed(outcome)?;
        }
        let outcome = self.engine.end_backward(&mut no_model());
        self.unless_failed(outcome)
    }

    /// After a failure nothing is left of the step, and, where other ranks may wait for the rest of it, of the group.
    fn unless_failed<R>(&mut self, outcome: Result<R>) -> Result<R> {
        if let Err(error) = &outcome {
            if let Error::Tensors(_) = error {
                self.group.abort(&format!("its step failed: {error}"));
            }
            self.engine.give_up(&mut no_model());
        }
        outcome
    }

    /// Refuses what are no gradients of the weights.
    fn check<T: Tensor>(&self, grads: &[Option<T>]) -> Result<()> {
        let misuse = |what: String| Err(phalanx::Error::misuse(OpKind::ReduceScatter, what).into());
        if grads.len() != self.places.len() {
            let what = format!(
                "got a list of {}, expected {} gradients: one for each weight, or `None`",
                grads.len(),
                self.places.len()
            );
            return misuse(what);
        }
        for (&(at, member), grad) in self.places.iter().zip(grads) {
            let flat = &self.engine.flats()[at];
            let member = &flat.members[member];
            if let Some(grad) = grad
                && (grad.dtype(), grad.dims()) != (flat.dtype, &member.dims[..])
            {
                return misuse(format!(
                    "the gradient of `{}` is {} {:?}, but the weight is {} {:?}",
                    member.name,
                    grad.dtype(),
                    grad.dims(),
                    flat.dtype,
                    member.dims
                ));
            }
        }
        Ok(())
    }

    /// Makes the program's weights, in the order in which this was made, what the shards are now: after each step of the optimizer, and after a checkpoint was
    /// loaded.
    ///
    /// # Cost
    /// One all_gather if any shard has changed since the last time, and a look whether.
    ///
    /// # Errors
    /// Those of [`all_gather`](ProcessGroup::all_gather), and the library's.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Tensor, Weights};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32, 2.0])];
    /// let mut zero = Sharded::new([("weight", &mut weights[0])], group, ShardConfig::default())?;
    /// zero.with(0, |shard| shard.multiply(10.0))?; // whatever changes them
    /// zero.gather(&mut weights)?;
    /// assert_eq!(weights[0], Array::from(vec![10f32, 20.0]));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn gather<T: Tensor>(&mut self, weights: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        self.engine.begin_forward(weights, CallSite::caller())
    }

    /// Scales the shards' gradients, in place, so that the norm of all ranks' together is `max_norm` at most, and returns what it was: the same number on all
    /// ranks. As [`clip_grad_norm`](crate::clip_grad_norm).
    ///
    /// # Cost
    /// One pass over this rank's gradients, two if they are scaled, and an all_reduce of one number.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce). [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is
    /// scaled then, no other rank is left waiting, and the group is fine.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![0f32; 2]);
    /// let mut zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default())?;
    /// let mut grads = zero.reduce(vec![Some(Array::from(vec![3f32, 4.0]))], Share::EQUAL)?; // 3 on rank 0, 4 on rank 1
    /// assert_eq!(zero.clip_grad_norm(&mut grads, 1.0)?, 5.0);
    /// let mine = grads[0].as_ref().unwrap().as_slice::<f32>().unwrap()[0];
    /// assert!((mine - [0.6, 0.8][group.rank()]).abs() < 1e-6);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn clip_grad_norm<T: Tensor>(&self, grads: &mut [Option<T>], max_norm: f64) -> Result<f64> {
        let mut squares = [clip::sum_of_squares(grads)?];
        self.group.all_reduce(&mut squares, ReduceOp::Sum)?;
        let norm = squares[0].sqrt();
        clip::shorten(grads, norm, max_norm)?;
        Ok(norm)
    }

    /// Makes gradients those of the loss that `scaler` has scaled, as [`LossScaler::unscale`]: false on all ranks if the part of one of them
    /// overflowed.
    ///
    /// # Cost
    /// Two passes over this rank's gradients, and an all_reduce of one byte.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, LossScaler, ShardConfig, Sharded, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![0f32; 2]);
    /// let mut zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default())?;
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let infinite = Array::from(vec![1f32, f32::INFINITY]); // in the part of rank 1
    /// let mut grads = zero.reduce(vec![Some(infinite)], Share::EQUAL)?;
    /// assert!(!zero.unscale(&mut scaler, &mut grads)?); // on both: skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn unscale<T: Tensor>(&self, scaler: &mut LossScaler, grads: &mut [Option<T>]) -> Result<bool> {
        let mut all_finite = [u8::from(scaler.divide(grads)?)];
        self.group.all_reduce(&mut all_finite, ReduceOp::Min)?;
        Ok(scaler.settle(all_finite[0] != 0))
    }
}

/// Weights that stay need no model while gradients come.
fn no_model() -> [Array; 0] {
    []
}

/// The shards are what an optimizer changes.
impl Weights<Array> for Sharded {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        work(&mut self.engine.flats_mut()[index].shard)
    }
}

/// The weights, whole, by name, as [`save_tensors`](checkpoint::save_tensors) saves those of a model that is not dealt out, but of 16 bits as f32: checkpoints of the
/// one are loaded by the other, on any number of ranks. After a load, [`gather`](Sharded::gather) brings them to the model.
impl Stateful for Sharded {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> checkpoint::Result<()> {
        for (shard, extents) in self.extents() {
            extents.iter().for_each(|extent| extent.save::<Array, _>(prefix, shard, state));
        }
        Ok(())
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        self.engine.load(prefix, from)
    }
}
