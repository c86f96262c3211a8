//! The engine of a sharded model, which its units and its operations in candle's graph share.

use crate::element::with_element;
use crate::shard::flat::Flat;
use crate::shard::gradients::{Gradients, Sender, Sending};
use crate::shard::step_sums::StepSums;
use crate::shard::weights::{Pass, Weights};
use crate::{Error, MissingGradients, Result, Share};
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Tensor, TensorId, WithDType};
use phalanx::{CallSite, ProcessGroup};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Weights and gradients, and who moves them.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) flats: Vec<Flat>,
    pub(crate) weights: Weights,
    pub(crate) gradients: Gradients,
    step_sums: StepSums,
    sender: Sender,
    /// The flat of each weight that the model has, and its index among the members there.
    places: HashMap<TensorId, (usize, usize)>,
}

impl Engine {
    pub(crate) fn new(
        flats: Vec<Flat>,
        group: &ProcessGroup,
        overlap: bool,
        missing: MissingGradients,
    ) -> Self {
        let weights = Weights::new(&flats, overlap);
        let gradients = Gradients::new(flats.len());
        let step_sums = StepSums::new(&flats, missing);
        let places = flats.iter().enumerate().flat_map(|(at, flat)| {
            flat.members.iter().enumerate().map(move |(member, m)| (m.tensor.id(), (at, member)))
        });
        let places = places.collect();
        let sender = Sender { group: group.clone(), overlap };
        Self { weights, gradients, step_sums, sender, places, flats }
    }

    /// The calls that follow count as made there.
    fn called_at(&mut self, site: CallSite) {
        self.sender.group = self.sender.group.with_call_site(site);
    }

    pub(crate) fn begin_forward(&mut self, site: CallSite) -> Result<()> {
        self.called_at(site);
        self.weights.refresh(&self.flats, &self.sender.group)?;
        self.weights.begin(Pass::Forward, &self.flats, &self.sender.group)
    }

    pub(crate) fn end_forward(&mut self) -> Result<()> {
        self.weights.end(&self.flats)
    }

    /// A backward pass begins, which is the `last` of the step or not.
    pub(crate) fn begin_backward(
        &mut self,
        loss: &Tensor,
        share: Share,
        (sending, last): (Sending, bool),
        site: CallSite,
    ) -> Result<()> {
        self.called_at(site);
        let nodes = loss.sorted_nodes();
        let reached: Vec<_> = nodes.iter().filter_map(|node| self.places.get(&node.id()).copied()).collect();
        self.gradients.begin(share, sending, &reached, &self.sender.group)?;
        self.step_sums.note(share, &reached)?;
        if last {
            self.step_sums.ask(&self.sender.group)?;
        }
        self.weights.begin(Pass::Backward, &self.flats, &self.sender.group)
    }

    pub(crate) fn end_backward(&mut self) -> Result<()> {
        self.weights.end(&self.flats)?;
        self.gradients.end(&self.flats, &self.sender)
    }

    /// The last pass of the step is over: this rank's slices of its gradients, of all flats of which any rank has used a weight.
    pub(crate) fn end_step(&mut self) -> Result<Vec<Option<Tensor>>> {
        self.step_sums.settle(&self.flats, &self.sender.group)?;
        Ok(self.gradients.take())
    }

    /// A step has failed: nothing is left of it.
    pub(crate) fn give_up(&mut self) {
        self.gradients.give_up();
        self.step_sums.forget();
        if let Err(error) = self.weights.end(&self.flats) {
            tracing::warn!(%error, "weights of a pass that failed stay in memory");
        }
    }

    /// The unit of a flat begins to work: its weights are here.
    fn enter(&mut self, at: usize, pass: Pass) -> Result<()> {
        self.weights.enter(at, pass, &self.flats, &self.sender.group)
    }

    /// Work with a flat's weights may be done: if nothing needs them any more they go away.
    fn settle(&mut self, at: usize) -> Result<()> {
        if self.weights.is_at_work(at) || self.gradients.need(at) {
            return Ok(());
        }
        self.weights.release(at, &self.flats[at])
    }

    fn arrive(&mut self, weight: &Tensor, grad: &Tensor) -> Result<()> {
        let Some(&(at, member)) = self.places.get(&weight.id()) else { return Ok(()) };
        self.gradients.arrive(at, member, grad, &self.flats[at], &self.sender)?;
        self.settle(at)
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
        if self.with(|engine| engine.gradients.are_awaited()) != Some(true) {
            candle_core::bail!(
                "gradients of a sharded model go through its own `backward`, not through that of the loss"
            )
        }
        self.amid(work)
    }

    pub(crate) fn enter(&self, at: usize) -> candle_core::Result<()> {
        self.amid(|engine| {
            engine.enter(at, Pass::Forward)?;
            engine.weights.count(at, 1);
            Ok(())
        })
    }

    pub(crate) fn leave(&self, at: usize) -> candle_core::Result<()> {
        self.amid(|engine| {
            engine.weights.count(at, -1);
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
                    engine.weights.count(self.flat, has_in.into());
                }
                Side::In => {
                    engine.weights.count(self.flat, -1);
                    engine.settle(self.flat)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(grad_res.clone()))
    }
}
