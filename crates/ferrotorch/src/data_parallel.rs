//! Data-parallel training: a module whose gradients are those of all ranks.

use crate::backend::Backend;
use crate::error::told;
use crate::parameters::{Named, by_name, gradients, lent, set_gradients, sync_model};
use crate::pass;
use ferrotorch_core::{FerrotorchError, FerrotorchResult, Float, Tensor};
use ferrotorch_nn::{Buffer, Module, Parameter};
use phalanx::CallSite;
use phalanx_train::{Array, DdpConfig, Gradients, Reducer, Share};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A module, of which each rank has a copy, that is trained by all ranks.
///
/// It is a [`Module`] itself, so it stands where its module stood. After [`sync_gradients`](Self::sync_gradients), or a
/// [`backward`](Self::backward) that does both, each parameter's gradient is the mean over all ranks, with the same bits on every rank. A parameter that only
/// some ranks have used counts as zeros on the others; one that no rank has used has no gradient afterwards.
///
/// Parameters are known by their names. One that stands at several places of the module is one.
///
/// # Examples
/// See the [crate](crate).
pub struct DDP<M: Module<T>, T: Float> {
    module: M,
    backend: Arc<dyn Backend>,
    config: DdpConfig,
    /// Made at the first step.
    reducer: Mutex<Option<Reducer<Array>>>,
    _element: std::marker::PhantomData<T>,
}

impl<M: Module<T>, T: Float> std::fmt::Debug for DDP<M, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DDP").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<M: Module<T>, T: Float> DDP<M, T> {
    /// Wraps a module. Nothing is sent: [`broadcast_parameters`](Self::broadcast_parameters) makes weights equal.
    pub fn new(module: M, backend: Arc<dyn Backend>) -> Self {
        Self::with_config(module, backend, DdpConfig::default())
    }

    /// As [`new`](Self::new), with buckets of at most so many bytes. The same on all ranks.
    pub fn with_bucket_size(module: M, backend: Arc<dyn Backend>, bucket_size_bytes: usize) -> Self {
        Self::with_config(module, backend, DdpConfig::default().bucket_cap_bytes(bucket_size_bytes))
    }

    /// As [`new`](Self::new), with settings, the same on all ranks. [`DdpConfig::broadcast_buffers`] is not heeded.
    ///
    /// # Examples
    /// ```
    /// use ferrotorch_nn::Linear;
    /// use phalanx_ferrotorch::{DDP, DdpConfig, Group, Overlap};
    /// use std::sync::Arc;
    ///
    /// let config = DdpConfig::default().overlap(Overlap::Off);
    /// let ddp = DDP::with_config(Linear::<f32>::new(2, 1, true)?, Arc::new(Group::init()?), config);
    /// # Ok::<(), ferrotorch_core::FerrotorchError>(())
    /// ```
    pub fn with_config(module: M, backend: Arc<dyn Backend>, config: DdpConfig) -> Self {
        Self { module, backend, config, reducer: Mutex::default(), _element: std::marker::PhantomData }
    }

    /// The module.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The module, to be changed: which parameters it has must stay.
    pub fn module_mut(&mut self) -> &mut M {
        &mut self.module
    }

    /// The module alone.
    pub fn into_inner(self) -> M {
        self.module
    }

    /// The backend by which ranks communicate.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Makes each parameter's gradient the mean over all ranks, after a backward pass. Collective.
    ///
    /// # Cost
    /// One all_reduce a bucket, and some more of 4 bytes a parameter: who has which gradients. Each gradient is copied out of its tensor and into a
    /// new one.
    ///
    /// # Errors
    /// Those of [`all_reduce`](phalanx::ProcessGroup::all_reduce): a rank is lost or late, or does something else. A module that has other parameters than at the first step.
    /// No parameter has a gradient then, as after `zero_grad`.
    #[track_caller]
    pub fn sync_gradients(&self) -> FerrotorchResult<()> {
        self.sync_gradients_share(Share::EQUAL)
    }

    /// As [`sync_gradients`](Self::sync_gradients): buckets are sent side by side in both.
    ///
    /// # Errors
    /// As for [`sync_gradients`](Self::sync_gradients).
    #[track_caller]
    pub fn overlapped_sync_gradients(&self) -> FerrotorchResult<()> {
        self.sync_gradients()
    }

    /// As [`sync_gradients`](Self::sync_gradients) for local batches of different sizes: the loss was a mean over `share`'s samples. A rank without samples has no
    /// backward pass, and calls this with `Share::new(0, all)`.
    ///
    /// # Errors
    /// As for [`sync_gradients`](Self::sync_gradients). Shares that make no whole batch, which is told on every rank.
    #[track_caller]
    pub fn sync_gradients_share(&self, share: Share) -> FerrotorchResult<()> {
        let (named, site) = (by_name(&self.module), CallSite::caller());
        let reduce = || {
            let mut reducer = self.reducer(&named, site)?;
            made(&mut reducer)?.reduce(gradients(&named)?, share).map_err(told)
        };
        end(&named, reduce())
    }

    /// Runs the backward pass of `loss` and makes each parameter's gradient the mean over all ranks. Collective.
    ///
    /// Where gradients [overlap](phalanx_train::Overlap), buckets are sent while the pass still runs: those of a weight that is used several times once the last of its uses has been
    /// added. Gradients that parameters have already, of earlier passes without synchronisation, are part of the sum.
    ///
    /// # Errors
    /// As for [`sync_gradients`](Self::sync_gradients), and those of the backward pass. A pass that fails in its middle ends the group, since the others wait for the rest.
    #[track_caller]
    pub fn backward(&self, loss: &Tensor<T>) -> FerrotorchResult<()> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// # Errors
    /// As for [`backward`](Self::backward), and for [`sync_gradients_share`](Self::sync_gradients_share).
    ///
    /// # Examples
    /// ```
    /// use ferrotorch_core::grad_fns;
    /// use ferrotorch_nn::{Linear, Module};
    /// use phalanx_ferrotorch::{Backend, DDP, Share, SimulatedBackend};
    /// use std::sync::Arc;
    ///
    /// std::thread::scope(|scope| {
    ///     for backend in SimulatedBackend::create_group(2).unwrap() {
    ///         scope.spawn(move || {
    ///             let rank = backend.rank();
    ///             let ddp = DDP::new(Linear::<f64>::new(1, 1, false).unwrap(), Arc::new(backend));
    ///             // Rank 0 has 3 of 4 samples, all of them 1; rank 1's is 9.
    ///             let x = ferrotorch_core::creation::full(&[1, 1], [1.0, 9.0][rank]).unwrap();
    ///             let loss = grad_fns::reduction::mean(&ddp.forward(&x).unwrap()).unwrap();
    ///             ddp.backward_share(&loss, Share::new([3, 1][rank], 4)).unwrap();
    ///             assert_eq!(ddp.parameters()[0].grad().unwrap().unwrap().data().unwrap(), [3.0]);
    ///         });
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn backward_share(&self, loss: &Tensor<T>, share: Share) -> FerrotorchResult<()> {
        let named = by_name(&self.module);
        let reduced = {
            let mut reducer = self.reducer(&named, CallSite::caller())?;
            if !made(&mut reducer)?.overlaps() {
                drop(reducer);
                ferrotorch_core::backward(loss)?;
                return self.sync_gradients_share(share);
            }
            let Some(taken) = reducer.take() else { return Err(unmade()) };
            let (given_back, reduced) = pass::run(taken, &named, loss, share);
            *reducer = Some(given_back);
            reduced
        };
        end(&named, reduced)
    }

    /// Takes part in a step of ranks that have more batches than this one: true when there was one, with its gradients; false when no rank has any more.
    /// Collective.
    ///
    /// # Errors
    /// As for [`sync_gradients`](Self::sync_gradients).
    #[track_caller]
    pub fn join(&self) -> FerrotorchResult<bool> {
        let named = by_name(&self.module);
        let reduced = {
            let mut reducer = self.reducer(&named, CallSite::caller())?;
            made(&mut reducer)?.join().map_err(told)?
        };
        match reduced {
            Some(reduced) => set_gradients(&named, reduced).map(|()| true),
            None => Ok(false),
        }
    }

    /// Gives all ranks the parameters of rank `root`, bit for bit. Collective; call it before the first step.
    ///
    /// Parameters are changed in place, so an optimizer that has been made before has them too. In `ferrotorch-distributed` the module has other
    /// parameters afterwards.
    ///
    /// # Errors
    /// A rank has another model, which is told on every rank with the first parameter that differs; nothing was changed then. As for
    /// [`broadcast`](phalanx::ProcessGroup::broadcast).
    #[track_caller]
    pub fn broadcast_parameters(&mut self, root: usize) -> FerrotorchResult<()> {
        sync_model(&by_name(&self.module), self.backend.group(), root)
    }

    /// Makes sure that all ranks hold the same parameters, bit for bit. Collective; once an epoch is cheap.
    ///
    /// # Errors
    /// Some differ, which is told on every rank with the first of them by name and who holds which version; the group is fine.
    #[track_caller]
    pub fn verify_parameters(&self) -> FerrotorchResult<()> {
        let named = by_name(&self.module);
        let values = lent(&named)?;
        let all = named.iter().map(|one| one.name.as_str()).zip(&values);
        phalanx_train::verify_parameters(all, self.backend.group()).map_err(told)
    }

    /// The reducer for a step that is called at `site`. It is made if it is not there yet.
    fn reducer(
        &self,
        named: &[Named<T>],
        site: CallSite,
    ) -> FerrotorchResult<MutexGuard<'_, Option<Reducer<Array>>>> {
        let mut reducer = self.reducer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reducer) = &mut *reducer {
            reducer.call_site(site);
        } else {
            let group = &self.backend.group().with_call_site(site.clone());
            let overlap = self.config.overlap.choose(group).map_err(told)?;
            let parameters: Vec<_> = named.iter().map(Named::parameter).collect::<Result<_, _>>()?;
            let mut new =
                Reducer::new(parameters, group, self.config.bucket_cap_bytes, overlap).map_err(told)?;
            new.set_missing_gradients(self.config.missing_gradients);
            new.call_site(site);
            *reducer = Some(new);
        }
        Ok(reducer)
    }
}

/// Ends a step: its gradients are those of all ranks, or, where it failed, none. The loss that is computed next begins anew.
fn end<T: Float>(named: &[Named<T>], reduced: FerrotorchResult<Gradients<Array>>) -> FerrotorchResult<()> {
    let none = || named.iter().map(|_| None).collect();
    match reduced {
        Ok(reduced) => set_gradients(named, reduced),
        Err(error) => set_gradients(named, none()).and(Err(error)),
    }
}

fn made(reducer: &mut Option<Reducer<Array>>) -> FerrotorchResult<&mut Reducer<Array>> {
    reducer.as_mut().ok_or_else(unmade)
}

/// After a panic in a backward pass.
fn unmade() -> FerrotorchError {
    crate::error::refused("an earlier backward pass of this DDP panicked, so it takes part in no more steps")
}

/// That of the wrapped module.
impl<M: Module<T>, T: Float> Module<T> for DDP<M, T> {
    fn forward(&self, input: &Tensor<T>) -> FerrotorchResult<Tensor<T>> {
        self.module.forward(input)
    }

    fn parameters(&self) -> Vec<&Parameter<T>> {
        self.module.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter<T>> {
        self.module.parameters_mut()
    }

    fn named_parameters(&self) -> Vec<(String, &Parameter<T>)> {
        self.module.named_parameters()
    }

    fn buffers(&self) -> Vec<&Buffer<T>> {
        self.module.buffers()
    }

    fn buffers_mut(&mut self) -> Vec<&mut Buffer<T>> {
        self.module.buffers_mut()
    }

    fn named_buffers(&self) -> Vec<(String, &Buffer<T>)> {
        self.module.named_buffers()
    }

    fn train(&mut self) {
        self.module.train();
    }

    fn eval(&mut self) {
        self.module.eval();
    }

    fn is_training(&self) -> bool {
        self.module.is_training()
    }
}
