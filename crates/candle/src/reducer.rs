//! Gradients of all ranks into gradients of the global batch.

use crate::Result;
use crate::bucket::{Bucket, Item, plan};
use crate::element::{require_cpu, with_element};
use crate::model::Parameter;
use crate::share::Part;
use crate::slot::{Slot, slot};
use crate::step::Step;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId};
use phalanx::{Error, OpKind, ProcessGroup, SharedBuffer};
use phalanx_compress::CommHook;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// The variables that can have a gradient, the buckets their gradients travel in, and the step that is being made.
pub(crate) struct Reducer {
    pub(crate) parameters: Vec<Parameter>,
    /// What travels for each.
    pub(crate) items: Vec<Item>,
    /// Where a variable stands among them.
    places: HashMap<TensorId, usize>,
    cap_bytes: usize,
    /// Whether buckets are sent as soon as they are complete.
    pub(crate) overlap: bool,
    plan: Option<Plan>,
    step: Option<Step>,
    /// Gradients of earlier losses that the next step sends, too.
    kept: GradStore,
    /// What adds up gradients of 32 bits, in place of an all_reduce.
    pub(crate) hook: Option<Box<dyn CommHook>>,
}

/// Which gradients travel together, and where.
pub(crate) struct Plan {
    pub(crate) buckets: Vec<Bucket>,
    /// Of each variable: its bucket, and its bytes in there.
    pub(crate) homes: Vec<(usize, Range<usize>)>,
    pub(crate) memory: Memory,
}

/// What buckets travel in.
pub(crate) enum Memory {
    /// One after the other in the same: a small one that stays in the cache. A gradient that is alone travels from where it lies.
    One(SharedBuffer<u64>),
    /// As `One`, where nothing is kept from step to step.
    Private(Vec<u64>),
    /// Each in its own, for they are in flight together.
    Each(Vec<Box<dyn Slot>>),
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buckets = self.plan.as_ref().map(|plan| &plan.buckets);
        f.debug_struct("Reducer")
            .field("overlap", &self.overlap)
            .field("buckets", &buckets)
            .finish_non_exhaustive()
    }
}

impl Reducer {
    /// For the floating-point variables of `parameters`, which are in name order. `wire` says in what type the gradients of one travel.
    pub(crate) fn new(
        mut parameters: Vec<Parameter>,
        wire: impl Fn(&Parameter) -> DType,
        cap_bytes: usize,
        overlap: bool,
        group: &ProcessGroup,
    ) -> Result<Self> {
        // Others, such as counters, never have a gradient.
        parameters.retain(|p| p.var.dtype().is_float());
        for Parameter { var, .. } in &parameters {
            require_cpu(group, OpKind::AllReduce, var.device())?;
        }
        let items =
            parameters.iter().map(|p| Item { dtype: wire(p), elements: p.var.elem_count() }).collect();
        let places = parameters.iter().enumerate().map(|(at, p)| (p.var.id(), at)).collect();
        let kept = GradStore::default();
        Ok(Self { parameters, items, places, cap_bytes, overlap, plan: None, step: None, kept, hook: None })
    }

    /// Has `hook` add up gradients from the next step on. It blocks, so nothing overlaps.
    pub(crate) fn set_hook(&mut self, hook: Box<dyn CommHook>) {
        self.hook = Some(hook);
        self.overlap = false;
        self.plan = None;
    }

    /// The variables that `loss` depends on, in the order in which the backward pass completes their gradients.
    pub(crate) fn reached(&self, loss: &Tensor) -> Vec<usize> {
        loss.sorted_nodes().iter().filter_map(|node| self.places.get(&node.id()).copied()).collect()
    }

    /// Plans the buckets, if that has not been done: in `order`, as rank 0 gives it. Collective then.
    #[track_caller]
    pub(crate) fn prepare(
        &mut self,
        group: &ProcessGroup,
        order: impl FnOnce(&Self) -> Vec<usize>,
    ) -> Result<()> {
        if self.plan.is_some() {
            return Ok(());
        }
        let mut told = vec![u32::MAX; self.items.len()];
        if group.rank() == 0 {
            order(self).into_iter().zip(&mut told).for_each(|(index, told)| *told = index as u32);
        }
        group.broadcast(&mut told, 0)?;
        let mut known = vec![false; self.items.len()];
        let order: Vec<usize> = told
            .into_iter()
            .map(|index| index as usize)
            .filter(|&index| known.get_mut(index).is_some_and(|known| !std::mem::replace(known, true)))
            .collect();
        let buckets = plan(&self.items, &order, self.cap_bytes);
        tracing::debug!(
            buckets = buckets.len(),
            ready = order.len(),
            overlap = self.overlap,
            "buckets planned"
        );
        let memory = if self.overlap {
            let slots = buckets.iter().map(|bucket| {
                with_element!(bucket.dtype, T => slot::<T>(group, bucket.elements), _ => unreachable!("floats only"))
            });
            Memory::Each(slots.collect::<phalanx::Result<_>>()?)
        } else {
            Memory::One(group.alloc(room(&buckets))?)
        };
        self.plan = Some(self.homes(buckets, memory));
        Ok(())
    }

    /// Plans the buckets by name, for one step.
    pub(crate) fn prepare_alone(&mut self) {
        let order: Vec<usize> = (0..self.items.len()).collect();
        let buckets = plan(&self.items, &order, self.cap_bytes);
        let memory = Memory::Private(vec![0; room(&buckets)]);
        self.plan = Some(self.homes(buckets, memory));
    }

    fn homes(&self, buckets: Vec<Bucket>, memory: Memory) -> Plan {
        let mut homes = vec![(0, 0..0); self.items.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            let mut end = 0;
            for &member in &bucket.members {
                let start = end;
                end += self.items[member].bytes();
                homes[member] = (at, start..end);
            }
        }
        Plan { buckets, homes, memory }
    }

    /// Begins a step, for which this rank has gradients of the variables `used`, and of those that it has kept.
    pub(crate) fn begin(&mut self, group: &ProcessGroup, part: Part, used: &[usize]) -> Result<()> {
        let mut mine = vec![false; self.items.len()];
        if part.counts() {
            used.iter().for_each(|&index| mine[index] = true);
            for (mine, Parameter { var, .. }) in mine.iter_mut().zip(&self.parameters) {
                *mine |= self.kept.get(var).is_some();
            }
        } else {
            self.kept = GradStore::default();
        }
        let plan = self.plan.as_mut().ok_or_else(unprepared)?;
        self.step = Some(Step::begin(group, part, mine, self.hook.is_some(), plan)?);
        Ok(())
    }

    /// Takes the gradient of a variable, complete but for what was kept, as the backward pass reports it; gives it back if no step is
    /// being made.
    pub(crate) fn arrive(&mut self, id: TensorId, grad: &Tensor) -> Result<Option<Tensor>> {
        let (Some(step), Some(plan), Some(&index)) = (&mut self.step, &mut self.plan, self.places.get(&id))
        else {
            return Ok(Some(grad.clone()));
        };
        let var = &self.parameters[index].var;
        let grad = match self.kept.remove(var) {
            Some(kept) => kept.add(&grad.to_dtype(var.dtype())?)?,
            None => grad.clone(),
        };
        step.arrive(index, grad.to_dtype(self.items[index].dtype)?.contiguous()?, plan)?;
        Ok(None)
    }

    /// Ends the step: `grads` has more gradients of this rank, and then those of the global batch. False if no rank takes part any more:
    /// nothing was sent then.
    pub(crate) fn finish(&mut self, grads: &mut GradStore) -> Result<bool> {
        for index in 0..self.parameters.len() {
            let var = self.parameters[index].var.clone();
            if let Some(grad) = grads.remove(&var).or_else(|| self.kept.remove(&var)) {
                self.arrive(var.id(), &grad)?;
            }
        }
        // What was kept for others than our variables.
        grads.extend(std::mem::take(&mut self.kept))?;
        let plan = self.plan.as_mut().ok_or_else(unprepared)?;
        let step = self.step.take().ok_or_else(unprepared)?;
        step.finish(&self.parameters, plan, &mut self.hook, grads)
    }

    /// No step is being made any more.
    pub(crate) fn give_up(&mut self) {
        self.step = None;
    }

    /// Adds gradients to those that the next step sends.
    pub(crate) fn keep(&mut self, grads: GradStore) -> Result<()> {
        Ok(self.kept.extend(grads)?)
    }

    /// Buckets under way.
    #[cfg(test)]
    pub(crate) fn launched(&self) -> usize {
        self.step.as_ref().map_or(0, Step::launched)
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.plan.as_ref().map(|plan| &plan.memory)
    }

    /// Which variables have a gradient in `grads`. Refuses those that do not fit their variables before anything is sent.
    pub(crate) fn check(&self, grads: &GradStore, group: &ProcessGroup) -> Result<Vec<usize>> {
        let mut used = Vec::new();
        for (index, Parameter { name, var }) in self.parameters.iter().enumerate() {
            let Some(grad) = grads.get(var) else { continue };
            require_cpu(group, OpKind::AllReduce, grad.device())?;
            if (grad.dtype(), grad.shape()) != (var.dtype(), var.shape()) {
                let what = format!(
                    "the gradient of `{name}` is {:?} {:?}, but the variable is {:?} {:?}",
                    grad.dtype(),
                    grad.dims(),
                    var.dtype(),
                    var.dims()
                );
                return Err(Error::misuse(OpKind::AllReduce, what).into());
            }
            used.push(index);
        }
        Ok(used)
    }
}

/// Words of memory that the largest bucket of several gradients needs; one that is alone travels from where it lies.
fn room(buckets: &[Bucket]) -> usize {
    let shared = buckets.iter().filter(|bucket| bucket.members.len() > 1);
    let bytes = shared.map(|bucket| bucket.elements * bucket.dtype.size_in_bytes()).max().unwrap_or(0);
    bytes.div_ceil(size_of::<u64>())
}

fn unprepared() -> Error {
    Error::misuse(OpKind::AllReduce, "a step was begun without buckets, or ended without a beginning")
}
