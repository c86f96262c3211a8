//! Gradients of all ranks into gradients of the global batch.

use crate::memory::{self, Memory, Sending};
use crate::missing::{MissingCheck, MissingGradients};
use crate::plan::{self, Gradients, Parameter, Plan};
use crate::share::{Part, Share};
use crate::step::{Reduced, Step};
use crate::{Result, StepShares, Tensor};
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ProcessGroup};
use phalanx_compress::{CommHook, Traffic};
use std::fmt;
use std::sync::Arc;

/// Makes this rank's gradients those of the global batch, while a backward pass still finds more of them, or after it.
///
/// It knows parameters by their place in the list that it is made with, and nothing of graphs, optimizers or models. A step is
/// [`begin`](Self::begin), [`ready`](Self::ready) for each gradient, and [`finish`](Self::finish); [`reduce`](Self::reduce) is all three, for
/// gradients that are there already. Each of these is collective: all ranks make the same steps, with the same parameters. Parameters
/// that are not used on a rank count as zeros there; those that no rank has used have no gradient afterwards.
///
/// Gradients are reduced in their own memory: what shares it sees the change. They travel in buckets, which are planned at the first step, in the
/// order that rank 0 gives then.
///
/// # Determinism
/// The same bits on every rank, and whether they overlap or not. From run to run on ranks of one host that share memory, with the same world size, and
/// elsewhere where the algorithms are the same: see [reproducibility](phalanx::ProcessGroup#reproducibility).
///
/// # Errors
/// Of all steps: those of the group, after which some gradients may be reduced, others not; those of the library, after which the group is
/// aborted if other ranks wait for this one; and [`phalanx::Error::Misuse`] for gradients that do not fit their parameters.
///
/// # Examples
/// Weights in plain memory, of two layers; the gradients of the second are ready first:
///
/// ```
/// use phalanx_train::{Array, Parameter, Reducer, Share};
///
/// fn step(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
///     let weights = [Array::from(vec![0f32; 6]), Array::from(vec![0f32; 2])];
///     let parameters = [Parameter::of("1", &weights[0]), Parameter::of("2", &weights[1])];
///     let mut reducer = Reducer::new(parameters, group, 4 << 20, true)?;
///
///     let mine = 1.0 + group.rank() as f32;
///     reducer.begin(Share::EQUAL, [1, 0])?;
///     reducer.ready(1, Array::from(vec![mine; 2]))?; // is sent while the next is found
///     reducer.ready(0, Array::from(vec![10.0 * mine; 6]))?;
///     let grads = reducer.finish()?;
///     assert_eq!(grads, [Some(Array::from(vec![15f32; 6])), Some(Array::from(vec![1.5f32; 2]))]);
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || step(&group).unwrap()); });
/// ```
pub struct Reducer<T: Tensor> {
    group: ProcessGroup,
    parameters: Arc<[Parameter<T::Device>]>,
    cap_bytes: usize,
    sending: Sending,
    planned: Option<Planned<T>>,
    step: Option<Step>,
    /// Gradients of earlier losses that the next step sends, too.
    kept: Gradients<T>,
    /// The hook that adds up gradients of 32 bits, in place of an all_reduce.
    hook: Option<Box<dyn CommHook>>,
    missing_check: MissingCheck,
    /// Where steps are called, if not where they are.
    site: Option<CallSite>,
}

/// The buckets, and where they are.
struct Planned<T: Tensor> {
    plan: Arc<Plan<T::Device>>,
    memory: Box<dyn Memory<T>>,
}

impl<T: Tensor> fmt::Debug for Reducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buckets = self.planned.as_ref().map(|planned| planned.plan.buckets());
        f.debug_struct("Reducer")
            .field("group", &self.group)
            .field("sending", &self.sending)
            .field("buckets", &buckets)
            .finish_non_exhaustive()
    }
}

impl<T: Tensor> Reducer<T> {
    /// For `parameters`, in the order of their names, whose gradients travel in buckets of at most `cap_bytes`, as
    /// [`DdpConfig::bucket_cap_bytes`](crate::DdpConfig::bucket_cap_bytes) says: each as soon as it is complete if they `overlap`. All ranks pass
    /// the same; [`sync_model`](crate::sync_model) finds out whether they do. [`Overlap::choose`](crate::Overlap::choose) knows where it helps to overlap.
    ///
    /// # Cost
    /// Memory for the largest bucket, or, if they overlap, for all gradients, from the first step on.
    ///
    /// # Errors
    /// [`phalanx::Error::Misuse`] for parameters in another order, and for those that are no floating-point numbers.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Parameter, Reducer};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// let parameters = ["1", "2"].map(|name| Parameter::of(name, &Array::from(vec![0f32; 4])));
    /// let reducer = Reducer::<Array>::new(parameters.clone(), group, 4 << 20, true)?;
    /// assert!(reducer.overlaps());
    /// let [first, second] = parameters; // in another order
    /// assert!(Reducer::<Array>::new([second, first], group, 4 << 20, true).is_err());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn new(
        parameters: impl Into<Arc<[Parameter<T::Device>]>>,
        group: &ProcessGroup,
        cap_bytes: usize,
        overlap: bool,
    ) -> Result<Self> {
        let sending = if overlap { Sending::During } else { Sending::After };
        Self::sending(parameters.into(), group, cap_bytes, sending)
    }

    fn sending(
        parameters: Arc<[Parameter<T::Device>]>,
        group: &ProcessGroup,
        cap_bytes: usize,
        sending: Sending,
    ) -> Result<Self> {
        plan::check(&parameters)?;
        let kept = parameters.iter().map(|_| None).collect();
        let (planned, step, hook) = (None, None, None);
        // Of what is made for one step, each would be the first.
        let missing = if sending == Sending::Once { MissingGradients::Allow } else { MissingGradients::Warn };
        let missing_check = MissingCheck::new(missing);
        Ok(Self {
            group: group.clone(),
            parameters,
            cap_bytes,
            sending,
            planned,
            step,
            kept,
            hook,
            missing_check,
            site: None,
        })
    }

    /// The steps from now on count as called at `site`: for adapters of other languages, where the program's line is not that of the call here. Errors
    /// and traces name it.
    ///
    /// # Examples
    /// ```
    /// use phalanx::CallSite;
    /// use phalanx_train::{Array, Parameter, Reducer, Share};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.call_site(CallSite { file: "train.py".into(), line: 41 });
    /// reducer.reduce(vec![Some(Array::from(vec![1f32; 2]))], Share::EQUAL)?;
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn call_site(&mut self, site: CallSite) {
        self.site = Some(site);
    }

    #[track_caller]
    fn site(&self) -> CallSite {
        match &self.site {
            Some(site) => site.clone(),
            None => CallSite::caller(),
        }
    }

    /// Sets what steps do about parameters for which no rank has a gradient: they warn once, unless this is called. All ranks pass the same.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Error, MissingGradients, Parameter, Reducer, Share};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.set_missing_gradients(MissingGradients::Error);
    /// let outcome = reducer.reduce(vec![None], Share::EQUAL);
    /// assert!(matches!(outcome, Err(Error::NoGradient { names, .. }) if names == ["weight"]));
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn set_missing_gradients(&mut self, choice: MissingGradients) {
        self.missing_check = MissingCheck::new(choice);
    }

    /// Has `hook` add up the gradients of f32 from the next step on, in fewer bytes. All ranks pass the same kind. It blocks, so
    /// nothing overlaps any more. Gradients of other types travel as they are.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::compress::Cast;
    /// use phalanx_train::{Array, Parameter, Reducer, Share};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.set_hook(Box::new(Cast::bf16()));
    /// let grads = reducer.reduce(vec![Some(Array::from(vec![1f32, 2.0]))], Share::EQUAL)?;
    /// assert_eq!(grads, [Some(Array::from(vec![1f32, 2.0]))]);
    /// assert_eq!(reducer.traffic().expect("there is a hook").ratio(), 2.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn set_hook(&mut self, hook: Box<dyn CommHook>) {
        self.hook = Some(hook);
        self.sending = Sending::After;
        self.planned = None;
    }

    /// The hook, if there is one: what it has left out is part of a checkpoint.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::compress::Cast;
    /// # use phalanx_train::{Array, Parameter, Reducer};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// assert!(reducer.hook_mut().is_none());
    /// reducer.set_hook(Box::new(Cast::bf16()));
    /// let hook = reducer.hook_mut().expect("it was set"); // to save, or to load
    /// # assert_eq!(hook.traffic().sent, 0);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn hook_mut(&mut self) -> Option<&mut dyn CommHook> {
        self.hook.as_mut().map(|hook| &mut **hook as &mut dyn CommHook)
    }

    /// The bytes that the hook has sent until now, if there is one.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::compress::Cast;
    /// # use phalanx_train::{Array, Parameter, Reducer};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// assert!(reducer.traffic().is_none());
    /// reducer.set_hook(Box::new(Cast::bf16()));
    /// assert_eq!(reducer.traffic().expect("there is a hook").sent, 0); // until now
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn traffic(&self) -> Option<Traffic> {
        self.hook.as_ref().map(CommHook::traffic)
    }

    /// Whether buckets are sent as soon as they are complete.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::compress::Cast;
    /// # use phalanx_train::{Array, Parameter, Reducer};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, true)?;
    /// assert!(reducer.overlaps());
    /// reducer.set_hook(Box::new(Cast::bf16())); // blocks
    /// assert!(!reducer.overlaps());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn overlaps(&self) -> bool {
        self.sending == Sending::During
    }

    /// Begins a step, of which this rank has a share. One that was begun before and sent nothing is forgotten, and what was kept for it.
    ///
    /// `coming` are the parameters whose gradients are to come, in the order in which they are expected: not more are
    /// accepted where they overlap, and those that do not come count as zeros. It is iterated over only where that matters:
    /// if gradients overlap, and at the first step on rank 0, whose order all buckets have from then on.
    ///
    /// # Cost
    /// One all_reduce of 4 bytes a parameter and 72 for the shares, which is waited for in [`finish`](Self::finish); at the first step a broadcast of as many, and the
    /// [memory](crate::memory::on_host) for the buckets.
    ///
    /// # Errors
    /// [`phalanx::Error::Misuse`] for a share of more than the whole, for parameters that there are not, and for a step in the middle of another whose
    /// gradients overlap.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// // Rank 0 has 3 of 4 samples, rank 1 has one.
    /// reducer.begin(Share::new([3, 1][group.rank()], 4), [0])?;
    /// reducer.ready(0, Array::from(vec![group.rank() as f32; 2]))?;
    /// assert_eq!(reducer.finish()?, [Some(Array::from(vec![0.25f32; 2]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn begin(&mut self, share: Share, coming: impl IntoIterator<Item = usize>) -> Result<()> {
        self.start((share.part()?, StepShares::of(share)?), coming, self.site())
    }

    fn start(
        &mut self,
        (part, shares): (Part, StepShares),
        coming: impl IntoIterator<Item = usize>,
        site: CallSite,
    ) -> Result<()> {
        if self.overlaps() && self.has_begun() {
            let what = "a step has begun already: call `finish`, or `give_up`, before the next";
            return Err(Error::misuse(OpKind::AllReduce, what).into());
        }
        let group = self.group.with_call_site(site);
        let mut mine = vec![false; self.parameters.len()];
        let tells = self.planned.is_none() && self.sending != Sending::Once && group.rank() == 0;
        let coming: Vec<usize> =
            if self.overlaps() || tells { coming.into_iter().collect() } else { Vec::new() };
        for &index in &coming {
            self.parameter(index)?;
            mine[index] = true;
        }
        self.prepare(&group, &coming)?;
        let Some(Planned { plan, memory }) = &mut self.planned else { return Err(unprepared()) };
        // A step that is forgotten may have taken some of what was kept: then the rest is of no use either.
        if self.step.take().is_some() || !part.counts() {
            self.kept.fill_with(|| None);
        }
        if part.counts() {
            mine.iter_mut().zip(&self.kept).for_each(|(mine, kept)| *mine |= kept.is_some());
        } else {
            mine.fill(false);
        }
        let (hooked, overlap) = (self.hook.is_some(), self.sending == Sending::During);
        self.step = Some(Step::begin(group, (part, shares), mine, hooked, overlap, plan, &mut **memory)?);
        Ok(())
    }

    /// Plans the buckets, if that has not been done, in the order that rank 0 gives. Collective then.
    #[track_caller]
    fn prepare(&mut self, group: &ProcessGroup, order: &[usize]) -> Result<()> {
        if self.planned.is_some() {
            return Ok(());
        }
        let all = self.parameters.len();
        let order: Vec<usize> = if self.sending == Sending::Once {
            (0..all).collect()
        } else {
            let mut told = vec![u32::MAX; all];
            if group.rank() == 0 {
                order.iter().zip(&mut told).for_each(|(&index, told)| *told = index as u32);
            }
            group.broadcast(&mut told, 0)?;
            let mut known = vec![false; all];
            let is_new =
                |index: &usize| known.get_mut(*index).is_some_and(|known| !std::mem::replace(known, true));
            told.into_iter().map(|index| index as usize).filter(is_new).collect()
        };
        let plan = Arc::new(Plan::new(&self.parameters, &order, self.cap_bytes));
        tracing::debug!(
            buckets = plan.buckets().len(),
            ready = order.len(),
            sending = ?self.sending,
            "buckets planned"
        );
        let memory = match T::memory(&plan, self.sending, group)? {
            Some(memory) => memory,
            None => memory::on_host(plan.clone(), self.sending, group)?,
        };
        self.planned = Some(Planned { plan, memory });
        Ok(())
    }

    /// Whether a step has begun, and is not finished.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.begin(Share::EQUAL, [0])?;
    /// assert!(reducer.has_begun());
    /// # reducer.ready(0, Array::from(vec![1f32; 2]))?;
    /// reducer.finish()?;
    /// assert!(!reducer.has_begun());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn has_begun(&self) -> bool {
        self.step.is_some()
    }

    /// Takes the gradient of a parameter, complete but for what was kept. Its bucket is sent if it was the last one.
    ///
    /// # Errors
    /// As of all steps. The step is [given up](Self::give_up) then.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.begin(Share::EQUAL, [0])?;
    /// reducer.ready(0, Array::from(vec![group.rank() as f32; 2]))?;
    /// assert_eq!(reducer.finish()?, [Some(Array::from(vec![0.5f32; 2]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn ready(&mut self, index: usize, grad: T) -> Result<()> {
        let outcome = self.take(index, grad);
        if let Err(error) = &outcome {
            self.give_up(&format!("its step failed: {error}"));
        }
        outcome
    }

    fn take(&mut self, index: usize, grad: T) -> Result<()> {
        let parameter = self.parameter(index)?;
        parameter.check(&grad)?;
        let (dtype, wire) = (parameter.dtype, parameter.wire);
        let (Some(step), Some(Planned { plan, memory })) = (&mut self.step, &mut self.planned) else {
            return Err(unprepared());
        };
        let grad = match self.kept[index].take() {
            Some(kept) => kept.add(grad.to_dtype(dtype)?)?,
            None => grad,
        };
        step.arrive(index, grad.to_dtype(wire)?, plan, &mut **memory)
    }

    /// Ends the step: the gradients of the global batch, as their parameters' types are.
    ///
    /// # Errors
    /// As of all steps, [`ShareMismatch`](crate::Error::ShareMismatch), and, if that was [asked for](Self::set_missing_gradients),
    /// [`NoGradient`](crate::Error::NoGradient). Nothing is left of this one then.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.begin(Share::EQUAL, [0])?;
    /// if group.rank() == 0 {
    ///     reducer.ready(0, Array::from(vec![1f32; 2]))?;
    /// }
    /// assert_eq!(reducer.finish()?, [Some(Array::from(vec![0.5f32; 2]))]); // zeros of rank 1
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn finish(&mut self) -> Result<Gradients<T>> {
        Ok(self.end()?.unwrap_or_else(|| self.parameters.iter().map(|_| None).collect()))
    }

    /// `None` if no rank takes part any more: nothing was sent then.
    fn end(&mut self) -> Result<Option<Gradients<T>>> {
        let step = self.step.take();
        let (Some(mut step), Some(Planned { plan, memory })) = (step, &mut self.planned) else {
            return Err(unprepared());
        };
        let group = step.group().clone();
        let memory = &mut **memory;
        let mut outcome = Ok(());
        for (index, kept) in self.kept.iter_mut().enumerate() {
            // What was kept since the step began, and does not belong to it, is for the next.
            if let Some(kept) = kept.take_if(|_| outcome.is_ok() && step.awaits(index)) {
                let wire = self.parameters[index].wire;
                outcome = kept.to_dtype(wire).and_then(|kept| step.arrive(index, kept, plan, memory));
            }
        }
        let outcome = outcome.and_then(|()| step.finish(plan, memory, &mut self.hook)).and_then(|reduced| {
            let Some(Reduced { grads, had_samples }) = reduced else { return Ok(None) };
            if had_samples {
                let all = self.parameters.iter().zip(&grads);
                let missing = all.filter(|(parameter, grad)| grad.is_none() && !parameter.optional);
                let names = missing.map(|(parameter, _)| parameter.name.as_str());
                self.missing_check.judge(names, T::NO_GRADIENT_HINT, &group)?;
            }
            Ok(Some(grads))
        });
        if outcome.is_err() {
            self.forget();
        }
        if let Err(error @ crate::Error::Tensors(_)) = &outcome {
            // The other ranks wait for the rest. Of the group's own errors they hear anyway.
            group.abort(&format!("its step failed: {error}"));
        }
        outcome
    }

    /// A whole step for gradients that are there already, as many as there are parameters.
    ///
    /// # Errors
    /// As of [`finish`](Self::finish); of gradients that do not fit before anything is sent.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// let mine = Array::from(vec![group.rank() as f32; 2]);
    /// let grads = reducer.reduce(vec![Some(mine)], Share::EQUAL)?;
    /// assert_eq!(grads, [Some(Array::from(vec![0.5f32; 2]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn reduce(&mut self, grads: Gradients<T>, share: Share) -> Result<Gradients<T>> {
        if grads.len() != self.parameters.len() {
            let what = format!(
                "got a list of {}, expected {} gradients: one for each parameter, or `None`",
                grads.len(),
                self.parameters.len()
            );
            return Err(Error::misuse(OpKind::AllReduce, what).into());
        }
        for (grad, parameter) in grads.iter().zip(&*self.parameters) {
            grad.iter().try_for_each(|grad| parameter.check(grad))?;
        }
        let here = |(index, grad): (usize, &Option<T>)| grad.as_ref().map(|_| index);
        let part = (share.part()?, StepShares::of(share)?);
        self.start(part, grads.iter().enumerate().filter_map(here), self.site())?;
        for (index, grad) in grads.into_iter().enumerate() {
            if let Some(grad) = grad {
                self.ready(index, grad)?;
            }
        }
        self.finish()
    }

    /// For a rank that has no more batches while others have: takes part in one of their steps without gradients of its own.
    /// `None` when no rank has batches any more.
    ///
    /// The gradients are the means over those that still have some.
    ///
    /// # Errors
    /// As of all steps: a timeout if the others neither make a step nor join in their turn.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// for _ in 0..[1, 3][group.rank()] {
    ///     reducer.reduce(vec![Some(Array::from(vec![1f32; 2]))], Share::EQUAL)?;
    /// }
    /// let mut joined = 0;
    /// while let Some(grads) = reducer.join()? {
    ///     assert_eq!(grads, [Some(Array::from(vec![1f32; 2]))]); // of the rank that has a batch
    ///     joined += 1;
    /// }
    /// assert_eq!(joined, [2, 0][group.rank()]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn join(&mut self) -> Result<Option<Gradients<T>>> {
        self.start((Part::Done, StepShares::default()), [], self.site())?;
        self.end()
    }

    /// Keeps a gradient for the next step, which adds its own to it: accumulation over several batches with communication in the
    /// last alone. Nothing is sent here. The next step's share weighs the sum: of a rank without samples in it, nothing that was kept counts. Where batches are
    /// uneven, [`weigh`](Share::weigh) the losses, and make a step with [equal](Share::EQUAL) shares.
    ///
    /// # Errors
    /// Those of the library, and [`phalanx::Error::Misuse`] for a gradient that does not fit its parameter. Nothing is kept any more then, as after
    /// [`forget`](Self::forget).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.keep(0, Array::from(vec![1f32, 2.0]))?;
    /// let grads = reducer.reduce(vec![Some(Array::from(vec![10f32, 20.0]))], Share::EQUAL)?;
    /// assert_eq!(grads, [Some(Array::from(vec![11f32, 22.0]))]);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    #[doc(alias = "no_sync")]
    pub fn keep(&mut self, index: usize, grad: T) -> Result<()> {
        let outcome = self.add(index, grad);
        if outcome.is_err() {
            self.forget();
        }
        outcome
    }

    /// Drops all that was [kept](Self::keep). For a program that can't have all gradients of a batch: those that it had kept would be added to the next.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.keep(0, Array::from(vec![1f32, 2.0]))?;
    /// reducer.forget();
    /// let grads = reducer.reduce(vec![Some(Array::from(vec![10f32, 20.0]))], Share::EQUAL)?;
    /// assert_eq!(grads, [Some(Array::from(vec![10f32, 20.0]))]);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn forget(&mut self) {
        self.kept.fill_with(|| None);
    }

    fn add(&mut self, index: usize, grad: T) -> Result<()> {
        let parameter = self.parameter(index)?;
        parameter.check(&grad)?;
        let grad = grad.to_dtype(parameter.dtype)?;
        self.kept[index] = Some(match self.kept[index].take() {
            Some(kept) => kept.add(grad)?,
            None => grad,
        });
        Ok(())
    }

    /// Ends the step, if there is one, without its gradients and without what was kept for it, because something failed on this rank. If gradients
    /// overlap, the group is aborted with `reason`, which the other ranks are told: they wait for the rest.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
    /// let mut reducer = Reducer::<Array>::new(parameters, group, 4 << 20, false)?;
    /// reducer.begin(Share::EQUAL, [0])?;
    /// reducer.give_up("the backward pass ran out of memory");
    /// assert!(!reducer.has_begun());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn give_up(&mut self, reason: &str) {
        let Some(step) = self.step.take() else { return };
        self.forget(); // some of it may be in the step already
        if self.overlaps() {
            step.group().abort(reason);
        }
    }

    /// How many buckets of the step that goes on have been sent, or left out because no rank needs them.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Reducer, Share};
    /// # let group = &phalanx::threads(1)[0];
    /// # let parameters = ["1", "2"].map(|name| Parameter::of(name, &Array::from(vec![0f32; 2])));
    /// let mut reducer = Reducer::new(parameters, group, 8, true)?; // a bucket for each of two
    /// reducer.begin(Share::EQUAL, [1, 0])?;
    /// assert_eq!(reducer.launched(), 0);
    /// reducer.ready(1, Array::from(vec![1f32; 2]))?;
    /// assert_eq!(reducer.launched(), 1);
    /// # reducer.ready(0, Array::from(vec![1f32; 2]))?;
    /// # reducer.finish()?;
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn launched(&self) -> usize {
        self.step.as_ref().map_or(0, Step::launched)
    }

    fn parameter(&self, index: usize) -> Result<&Parameter<T::Device>> {
        let all = self.parameters.len();
        let what = || {
            Error::misuse(
                OpKind::AllReduce,
                format!("parameter {index} is out of range: the parameters are 0..{all}"),
            )
        };
        Ok(self.parameters.get(index).ok_or_else(what)?)
    }
}

/// Averages gradients over the group: one step of a [`Reducer`], without its state. Collective.
///
/// The parameters must be the same on all ranks, which is not checked at each call: see [`sync_model`](crate::sync_model).
///
/// # Errors
/// As of [`Reducer::reduce`].
///
/// # Examples
/// ```
/// use phalanx_train::{Array, Parameter, sync_gradients};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
/// let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
/// let mine = Array::from(vec![group.rank() as f32; 2]);
/// let grads = sync_gradients(parameters, vec![Some(mine)], group)?;
/// assert_eq!(grads, [Some(Array::from(vec![0.5f32; 2]))]);
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn sync_gradients<T: Tensor>(
    parameters: impl Into<Arc<[Parameter<T::Device>]>>,
    grads: Gradients<T>,
    group: &ProcessGroup,
) -> Result<Gradients<T>> {
    let cap_bytes = crate::DdpConfig::default().bucket_cap_bytes;
    Reducer::sending(parameters.into(), group, cap_bytes, Sending::Once)?.reduce(grads, Share::EQUAL)
}

fn unprepared() -> crate::Error {
    Error::misuse(OpKind::AllReduce, "no step has begun: call `begin` first").into()
}
