//! The engine of a sharded model, which its units and its operations in candle's graph share.

use crate::element::with_element;
use crate::error::NO_GRADIENT_HINT;
use crate::sendable::Candle;
use crate::shard::weights::{ModelWeights, shard_var, tensor};
use crate::{Error, MissingGradients, Result, Share};
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Tensor, TensorId, Var, WithDType};
use phalanx::{CallSite, ProcessGroup};
use phalanx_checkpoint::Checkpoint;
use phalanx_train::shard_parts::{Flat, Pass, PassSending};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The engine, and what it moves: the model's weights.
#[derive(Debug)]
pub(crate) struct Engine {
    inner: phalanx_train::shard_parts::Engine<Candle>,
    model: ModelWeights,
    /// The shards, as optimizers are given them.
    pub(crate) shards: Vec<Var>,
    /// The flat of each weight that the model has, and its index among the members there.
    places: HashMap<TensorId, (usize, usize)>,
}

impl Engine {
    pub(crate) fn new(
        flats: Vec<Flat<Candle>>,
        model: ModelWeights,
        group: &ProcessGroup,
        overlap: bool,
        missing: MissingGradients,
    ) -> Result<Self> {
        let shards = flats.iter().map(|flat| shard_var(&flat.shard)).collect::<candle_core::Result<_>>()?;
        let places = flats.iter().enumerate().flat_map(|(at, flat)| {
            let members = flat.members.iter().enumerate();
            members.map(|(member, m)| (model.0[m.index].tensor.id(), (at, member))).collect::<Vec<_>>()
        });
        let places = places.collect();
        let inner = phalanx_train::shard_parts::Engine::new(flats, group, overlap, missing, NO_GRADIENT_HINT);
        Ok(Self { inner, model, shards, places })
    }

    pub(crate) fn flats(&self) -> &[Flat<Candle>] {
        self.inner.flats()
    }

    pub(crate) fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        self.inner.load(prefix, from)
    }

    pub(crate) fn begin_forward(&mut self, site: CallSite) -> Result<()> {
        Ok(self.inner.begin_forward(&mut self.model, site)?)
    }

    /// Whether a unit has worked.
    pub(crate) fn end_forward(&mut self) -> Result<bool> {
        Ok(self.inner.end_forward(&mut self.model)?)
    }

    /// A backward pass begins, which is the `last` of the step or not.
    pub(crate) fn begin_backward(
        &mut self,
        loss: &Tensor,
        share: Share,
        sending: (PassSending, bool),
        site: CallSite,
    ) -> Result<()> {
        let nodes = loss.sorted_nodes();
        let reached: Vec<_> = nodes.iter().filter_map(|node| self.places.get(&node.id()).copied()).collect();
        Ok(self.inner.begin_backward(&reached, share, sending, site)?)
    }

    pub(crate) fn end_backward(&mut self) -> Result<()> {
        Ok(self.inner.end_backward(&mut self.model)?)
    }

    /// The last pass of the step is over: this rank's slices of its gradients, of all flats of which any rank has used a weight.
    pub(crate) fn end_step(&mut self) -> Result<Vec<Option<Tensor>>> {
        let grads = self.inner.end_step()?.into_iter();
        Ok(grads.map(|grad| grad.map(tensor).transpose()).collect::<phalanx_train::Result<_>>()?)
    }

    /// A step has failed: nothing is left of it.
    pub(crate) fn give_up(&mut self) {
        self.inner.give_up(&mut self.model);
    }

    /// The unit of a flat begins to work: its weights are here.
    fn enter(&mut self, at: usize, pass: Pass) -> Result<()> {
        Ok(self.inner.enter(at, pass, &mut self.model)?)
    }

    /// Work with a flat's weights may be done: if nothing needs them any more they go away.
    fn settle(&mut self, at: usize) -> Result<()> {
        Ok(self.inner.settle(at, &mut self.model)?)
    }

    fn arrive(&mut self, weight: &Tensor, grad: &Tensor) -> Result<()> {
        let Some(&at) = self.places.get(&weight.id()) else { return Ok(()) };
        Ok(self.inner.arrive(at, &Candle::local(grad)?, &mut self.model)?)
    }

    /// Flats whose weights are in memory although they do not stay, and those whose gradients lie here whole.
    #[cfg(test)]
    pub(crate) fn in_memory(&self) -> (usize, usize) {
        self.inner.in_memory()
    }
}

/// The engine of a model for candle's operations, which find it here once the model is built.
#[derive(Debug, Default)]
pub(crate) struct EngineHandle {
    engine: Mutex<Option<Engine>>,
    /// The error behind one of candle's: candle's operations can't pass ours on.
    error: Mutex<Option<Error>>,
}

impl EngineHandle {
    pub(crate) fn open(&self, engine: Engine) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    /// Calls `work` with the engine, if there is one yet.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(work)
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps an error for whoever called candle, and returns one for candle.
    pub(crate) fn reported<R>(&self, outcome: Result<R>) -> candle_core::Result<R> {
        outcome.map_err(|error| {
            let what = candle_core::Error::Msg(error.to_string());
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            what
        })
    }

    /// Calls `work` with the engine in the middle of one of candle's passes.
    fn amid<R>(&self, work: impl FnOnce(&mut Engine) -> Result<R>) -> candle_core::Result<R> {
        let Some(outcome) = self.with(work) else {
            candle_core::bail!("the model is still being built: its weights are not those of rank 0 yet")
        };
        self.reported(outcome)
    }

    /// As [`amid`](Self::amid), of a backward pass of ours.
    fn amid_backward<R>(&self, work: impl FnOnce(&mut Engine) -> Result<R>) -> candle_core::Result<R> {
        if self.with(|engine| engine.inner.awaits_gradients()) != Some(true) {
            candle_core::bail!(
                "gradients of a sharded model go through its own `backward`, not through that of the loss"
            )
        }
        self.amid(work)
    }

    pub(crate) fn enter(&self, at: usize) -> candle_core::Result<()> {
        self.amid(|engine| {
            engine.enter(at, Pass::Forward)?;
            engine.inner.count(at, 1);
            Ok(())
        })
    }

    pub(crate) fn leave(&self, at: usize) -> candle_core::Result<()> {
        self.amid(|engine| {
            engine.inner.count(at, -1);
            engine.settle(at)
        })
    }
}

/// Finds the engine while the model lives.
fn find(handle: &Weak<EngineHandle>) -> candle_core::Result<Arc<EngineHandle>> {
    handle.upgrade().ok_or_else(|| candle_core::Error::Msg("the sharded model is gone".into()))
}

/// Makes what the model has of a weight: of memory that is filled later, and whose gradient goes to the engine.
pub(crate) struct Weight {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) handle: Weak<EngineHandle>,
}

impl CustomOp1 for Weight {
    fn name(&self) -> &'static str {
        "phalanx-weight"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let storage = with_element!(self.dtype,
            T => T::to_cpu_storage_owned(Vec::new()),
            other => candle_core::bail!("weights can't be {}", other.as_str()),
        );
        Ok((storage, self.shape.clone()))
    }

    fn bwd(&self, _: &Tensor, res: &Tensor, grad_res: &Tensor) -> candle_core::Result<Option<Tensor>> {
        find(&self.handle)?.amid_backward(|engine| engine.arrive(res, grad_res))?;
        Ok(None)
    }
}

/// An operation at the border of a unit, which copies its input. Its backward tells the engine that the backward pass has come here.
pub(crate) struct Border {
    pub(crate) handle: Weak<EngineHandle>,
    /// The flat of the unit.
    pub(crate) flat: usize,
    pub(crate) side: Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    In,
    /// The output, at which the backward pass begins with the unit. Whether the pass comes to the input, too, depends on the unit's input.
    Out {
        has_in: bool,
    },
}

impl fmt::Debug for Border {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Border").field("flat", &self.flat).field("side", &self.side).finish_non_exhaustive()
    }
}

impl CustomOp1 for Border {
    fn name(&self) -> &'static str {
        "phalanx-unit"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        Ok((storage.to_dtype(layout, storage.dtype())?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad_res: &Tensor) -> candle_core::Result<Option<Tensor>> {
        find(&self.handle)?.amid_backward(|engine| {
            match self.side {
                Side::Out { has_in } => {
                    engine.enter(self.flat, Pass::Backward)?;
                    engine.inner.count(self.flat, has_in.into());
                }
                Side::In => {
                    engine.inner.count(self.flat, -1);
                    engine.settle(self.flat)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(grad_res.clone()))
    }
}
