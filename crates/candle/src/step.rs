//! One step: whose gradients are there, which buckets are on their way, and what comes of them.

use crate::Result;
use crate::bucket::{Bucket, Launches};
use crate::element::{bytes_mut, unsupported_dtype, with_element};
use crate::model::Parameter;
use crate::reducer::{Memory, Plan};
use crate::share::Part;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, WithDType};
use phalanx::{OpKind, ProcessGroup, ReduceOp, Work};
use phalanx_compress::CommHook;
use std::ops::Range;

/// A step that is being made. The operations of all ranks are the same whether they overlap or not: one that counts who has which
/// gradients, then the buckets in the order of the plan, without those that nobody uses.
#[derive(Debug)]
pub(crate) struct Step {
    group: ProcessGroup,
    part: Part,
    /// Which gradients this rank has said it has.
    mine: Vec<bool>,
    /// In the types in which they travel.
    grads: Vec<Option<Tensor>>,
    launches: Launches,
    counts: Counts,
    /// Whether a hook adds up the gradients of 32 bits.
    hooked: bool,
}

/// How many ranks have which gradients.
#[derive(Debug)]
enum Counts {
    /// Asked for after the backward pass.
    Later,
    Asked(Work<Vec<u32>>),
    Known(Known),
}

#[derive(Debug, Clone)]
struct Known {
    /// Of each variable: ranks with a gradient.
    users: Vec<u32>,
    /// Ranks that take part, and those of them whose shares are not equal.
    working: u32,
    weighted: u32,
}

impl Known {
    fn is_used(&self, members: &[usize]) -> bool {
        members.iter().any(|&member| self.users[member] > 0)
    }
}

/// What this rank says of itself: for a sum over the ranks.
fn question(mine: &[bool], part: Part) -> Vec<u32> {
    let own = [part != Part::Done, matches!(part, Part::Weighted(_))];
    mine.iter().chain(&own).map(|&yes| yes.into()).collect()
}

fn answer(mut sums: Vec<u32>) -> Known {
    let weighted = sums.pop().unwrap_or(0);
    let working = sums.pop().unwrap_or(0);
    Known { users: sums, working, weighted }
}

impl Step {
    /// `mine`: the variables of which this rank has a gradient.
    pub(crate) fn begin(
        group: &ProcessGroup,
        part: Part,
        mine: Vec<bool>,
        hooked: bool,
        plan: &mut Plan,
    ) -> Result<Self> {
        let mut counts = Counts::Later;
        let mut missing = vec![0; plan.buckets.len()];
        if let Memory::Each(slots) = &mut plan.memory {
            counts = Counts::Asked(group.all_reduce_async(question(&mine, part), ReduceOp::Sum)?);
            for (index, (bucket, home)) in plan.homes.iter().enumerate() {
                if mine[index] {
                    missing[*bucket] += 1;
                } else {
                    slots[*bucket].bytes()?[home.clone()].fill(0);
                }
            }
        }
        let grads = vec![None; mine.len()];
        Ok(Self { group: group.clone(), part, mine, grads, launches: Launches::new(missing), counts, hooked })
    }

    /// Takes the gradient of a variable.
    pub(crate) fn arrive(&mut self, index: usize, grad: Tensor, plan: &mut Plan) -> Result<()> {
        if !self.part.counts() {
            return Ok(());
        }
        if let (Memory::Each(slots), true) = (&mut plan.memory, self.mine[index]) {
            let (bucket, home) = &plan.homes[index];
            let scale = self.operator(grad.dtype()).0;
            lay(&grad, &mut slots[*bucket].bytes()?[home.clone()], scale)?;
            self.launches.arrived(*bucket);
        }
        self.grads[index] = Some(grad);
        self.launch(plan)
    }

    /// Sends the buckets whose turn has come.
    fn launch(&mut self, plan: &mut Plan) -> Result<()> {
        let Memory::Each(slots) = &mut plan.memory else { return Ok(()) };
        while let Some(at) = self.launches.next() {
            let bucket = &plan.buckets[at];
            // What is used here is sent. Whether the rest is, the others have to say.
            let is_used = bucket.members.iter().any(|&member| self.mine[member])
                || self.known()?.is_used(&bucket.members);
            if is_used {
                slots[at].launch(&self.group, self.operator(bucket.dtype).1)?;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn launched(&self) -> usize {
        self.launches.launched()
    }

    fn known(&mut self) -> Result<&Known> {
        self.counts = match std::mem::replace(&mut self.counts, Counts::Later) {
            Counts::Later => {
                let mut sums = question(&self.mine, self.part);
                self.group.all_reduce(&mut sums, ReduceOp::Sum)?;
                Counts::Known(answer(sums))
            }
            Counts::Asked(work) => Counts::Known(answer(work.wait()?)),
            Counts::Known(known) => Counts::Known(known),
        };
        match &self.counts {
            Counts::Known(known) => Ok(known),
            _ => unreachable!("they are known by now"),
        }
    }

    /// By what gradients are multiplied before they are combined, and how they are.
    ///
    /// An average needs no pass of its own over the gradients. But where sums go from rank to rank they are rounded to the type, in
    /// which those of f16 are soon infinite.
    fn operator(&self, dtype: DType) -> (Option<f64>, ReduceOp) {
        let equal = match (self.part, &self.counts) {
            (Part::Equal, _) => true,
            (Part::Weighted(_), _) => false,
            // It does as the others do.
            (Part::Done, Counts::Known(known)) => known.weighted == 0,
            (Part::Done, _) => true,
        };
        match self.part {
            _ if equal && dtype != DType::F16 && !(self.hooked && dtype == DType::F32) => {
                (None, ReduceOp::Avg)
            }
            Part::Weighted(weight) => (Some(weight), ReduceOp::Sum),
            _ => (Some(1.0 / self.group.world_size() as f64), ReduceOp::Sum),
        }
    }

    /// Waits for all gradients and leaves them in `grads`. False if no rank takes part.
    pub(crate) fn finish(
        mut self,
        parameters: &[Parameter],
        plan: &mut Plan,
        hook: &mut Option<Box<dyn CommHook>>,
        grads: &mut GradStore,
    ) -> Result<bool> {
        match &mut plan.memory {
            Memory::Each(slots) => {
                // Announced, but the backward pass had nothing for it.
                for (index, (bucket, home)) in plan.homes.iter().enumerate() {
                    if self.mine[index] && self.grads[index].is_none() {
                        slots[*bucket].bytes()?[home.clone()].fill(0);
                        self.launches.arrived(*bucket);
                    }
                }
            }
            _ => self.mine = self.grads.iter().map(Option::is_some).collect(),
        }
        let known = self.known()?.clone();
        if known.working == 0 {
            return Ok(false);
        }
        self.launch(plan)?;
        // The mean over those that take part, where some do not any more.
        let missing = known.weighted == 0 && (known.working as usize) < self.group.world_size();
        let factor = missing.then(|| self.group.world_size() as f64 / f64::from(known.working));
        let Plan { buckets, homes, memory } = plan;
        for (at, bucket) in buckets.iter().enumerate() {
            if !known.is_used(&bucket.members) {
                continue;
            }
            let mut tensors = Vec::new();
            for &index in bucket.members.iter().filter(|&&index| known.users[index] > 0) {
                let tensor = match self.grads[index].take() {
                    Some(grad) => grad,
                    None => Tensor::zeros(parameters[index].var.shape(), bucket.dtype, &Device::Cpu)?,
                };
                tensors.push((index, tensor));
            }
            let shapes: Vec<&[usize]> = bucket.members.iter().map(|&m| parameters[m].var.dims()).collect();
            let op = self.operator(bucket.dtype).1;
            let mut all_reduce = |bytes: &mut [u8]| match hook {
                Some(hook) if bucket.dtype == DType::F32 => {
                    let gradients = bytemuck::cast_slice_mut(bytes);
                    let bucket = phalanx_compress::Bucket { index: at, gradients, shapes: &shapes };
                    hook.reduce(bucket, &self.group)
                }
                _ => all_reduce(&self.group, bucket.dtype, bytes, op),
            };
            self.reduce(at, bucket, homes, &tensors, memory, &mut all_reduce)?;
            for (index, tensor) in tensors {
                if let Some(factor) = factor {
                    bytes_mut(&tensor, |bytes| multiply(bucket.dtype, bytes, factor))?;
                }
                let var = &parameters[index].var;
                grads.insert(var, tensor.to_dtype(var.dtype())?);
            }
        }
        Ok(true)
    }

    /// Leaves the gradients of a bucket in `tensors`, in their own memory: the reduced ones, by `all_reduce` if they are not on their way.
    fn reduce(
        &self,
        at: usize,
        bucket: &Bucket,
        homes: &[(usize, Range<usize>)],
        tensors: &[(usize, Tensor)],
        memory: &mut Memory,
        all_reduce: &mut dyn FnMut(&mut [u8]) -> phalanx::Result<()>,
    ) -> Result<()> {
        let (scale, _) = self.operator(bucket.dtype);
        let words: &mut [u64] = match memory {
            Memory::Each(slots) => {
                slots[at].land()?;
                return lift(tensors, homes, slots[at].bytes()?);
            }
            Memory::One(words) => words,
            Memory::Private(words) => words,
        };
        if let ([_], [(_, alone)]) = (&bucket.members[..], tensors) {
            bytes_mut(alone, |bytes| {
                if let Some(scale) = scale {
                    multiply(bucket.dtype, bytes, scale);
                }
                all_reduce(bytes)
            })??;
            return Ok(());
        }
        let len = bucket.elements * bucket.dtype.size_in_bytes();
        let bytes = &mut bytemuck::cast_slice_mut(words)[..len];
        let mut laid = tensors.iter().peekable();
        for &index in &bucket.members {
            let place = &mut bytes[homes[index].1.clone()];
            match laid.next_if(|(laid, _)| *laid == index) {
                Some((_, grad)) => lay(grad, place, scale)?,
                None => place.fill(0),
            }
        }
        all_reduce(bytes)?;
        lift(tensors, homes, bytes)
    }
}

#[track_caller]
pub(crate) fn all_reduce(
    group: &ProcessGroup,
    dtype: DType,
    bytes: &mut [u8],
    op: ReduceOp,
) -> phalanx::Result<()> {
    with_element!(dtype,
        T => group.all_reduce::<T>(bytemuck::cast_slice_mut(bytes), op),
        _ => Err(unsupported_dtype(group, OpKind::AllReduce, dtype)),
    )
}

/// Copies a gradient to its place in a bucket.
fn lay(grad: &Tensor, place: &mut [u8], scale: Option<f64>) -> Result<()> {
    bytes_mut(grad, |bytes| place.copy_from_slice(bytes))?;
    if let Some(scale) = scale {
        multiply(grad.dtype(), place, scale);
    }
    Ok(())
}

/// Copies gradients from their places in a bucket.
fn lift(tensors: &[(usize, Tensor)], homes: &[(usize, Range<usize>)], bucket: &[u8]) -> Result<()> {
    for (index, tensor) in tensors {
        bytes_mut(tensor, |bytes| bytes.copy_from_slice(&bucket[homes[*index].1.clone()]))?;
    }
    Ok(())
}

/// Multiplies elements, and rounds once.
pub(crate) fn multiply(dtype: DType, bytes: &mut [u8], by: f64) {
    with_element!(dtype,
        T => for x in bytemuck::cast_slice_mut::<u8, T>(bytes) {
            *x = T::from_f64(x.to_f64() * by);
        },
        _ => {} // `all_reduce` refuses it in a moment
    );
}
