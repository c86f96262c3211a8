//! One step: counts which ranks have which gradients, sends buckets in their order, and gives the reduced gradients back.

use crate::memory::{Memory, Reduction};
use crate::ready_buckets::ReadyBuckets;
use crate::share::Part;
use crate::{Gradients, Plan, Result, ShareSums, StepShares, Tensor};
use phalanx::error::OpKind;
use phalanx::{DType, Error, ProcessGroup, ReduceOp, Work};
use phalanx_compress::CommHook;

/// A step that is being made. The operations of all ranks are the same whether they overlap or not: one that counts who has which
/// gradients, then the buckets in the order of the plan, without those that nobody uses.
#[derive(Debug)]
pub(crate) struct Step {
    group: ProcessGroup,
    part: Part,
    shares: StepShares,
    /// Which gradients this rank has said it has.
    mine: Vec<bool>,
    /// Which of them have come.
    laid: Vec<bool>,
    ready_buckets: ReadyBuckets,
    counts: Counts,
    /// Whether a hook adds up the gradients of 32 bits.
    hooked: bool,
    /// Whether buckets are sent as soon as they are complete.
    overlap: bool,
}

/// The result of a step in which some rank takes part.
#[derive(Debug)]
pub(crate) struct Reduced<T> {
    /// The reduced gradients of all parameters for which any rank has one.
    pub(crate) grads: Gradients<T>,
    /// Whether any rank had samples.
    pub(crate) had_samples: bool,
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
    /// How many ranks have a gradient, for each variable.
    users: Vec<u32>,
    /// Their shares.
    sums: ShareSums,
}

impl Known {
    fn is_used(&self, members: &[usize]) -> bool {
        members.iter().any(|&member| self.users[member] > 0)
    }
}

/// This rank's part of the sum over the ranks: which gradients it has, and its share.
fn question(mine: &[bool], shares: &StepShares) -> Vec<u32> {
    mine.iter().map(|&yes| yes.into()).chain(shares.words()).collect()
}

fn answer(mut words: Vec<u32>) -> Known {
    let sums = ShareSums::new(&words.split_off(words.len().saturating_sub(StepShares::WORDS)));
    Known { users: words, sums }
}

impl Step {
    /// `mine`: the parameters of which this rank has a gradient. Where nothing overlaps, those count whose gradients come.
    pub(crate) fn begin<T: Tensor>(
        group: ProcessGroup,
        (part, shares): (Part, StepShares),
        mine: Vec<bool>,
        hooked: bool,
        overlap: bool,
        plan: &Plan<T::Device>,
        memory: &mut dyn Memory<T>,
    ) -> Result<Self> {
        let mut counts = Counts::Later;
        let mut missing = vec![0; plan.buckets().len()];
        if overlap {
            counts = Counts::Asked(group.all_reduce_async(question(&mine, &shares), ReduceOp::Sum)?);
            for (index, &mine) in mine.iter().enumerate() {
                if mine {
                    missing[plan.home(index).0] += 1;
                } else {
                    memory.skip(index)?;
                }
            }
        }
        let laid = vec![false; mine.len()];
        Ok(Self {
            group,
            part,
            shares,
            mine,
            laid,
            ready_buckets: ReadyBuckets::new(missing),
            counts,
            hooked,
            overlap,
        })
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Whether the gradient of a parameter may still come.
    pub(crate) fn awaits(&self, index: usize) -> bool {
        !self.laid[index] && (self.mine[index] || !self.overlap)
    }

    /// Takes the gradient of a parameter, in the type in which it travels.
    pub(crate) fn arrive<T: Tensor>(
        &mut self,
        index: usize,
        grad: T,
        plan: &Plan<T::Device>,
        memory: &mut dyn Memory<T>,
    ) -> Result<()> {
        if !self.part.counts() {
            return Ok(());
        }
        if self.laid[index] || (self.overlap && !self.mine[index]) {
            let name = &plan.parameters()[index].name;
            let what = match self.laid[index] {
                true => format!("`{name}` has a second gradient in this step; add up gradients before"),
                false => {
                    format!("`{name}` has a gradient, but was not announced when the step began")
                }
            };
            return Err(Error::misuse(OpKind::AllReduce, what).into());
        }
        let scale = self.operator(grad.dtype()).0;
        memory.lay(index, grad, scale)?;
        self.laid[index] = true;
        if self.overlap {
            self.ready_buckets.arrived(plan.home(index).0);
        }
        self.launch(plan, memory)
    }

    /// Sends the buckets whose turn has come.
    fn launch<T: Tensor>(&mut self, plan: &Plan<T::Device>, memory: &mut dyn Memory<T>) -> Result<()> {
        if !self.overlap {
            return Ok(());
        }
        while let Some(at) = self.ready_buckets.next() {
            let bucket = &plan.buckets()[at];
            // What is used here is sent. Whether the rest is, the others have to say.
            let is_used = bucket.members.iter().any(|&member| self.mine[member])
                || self.known()?.is_used(&bucket.members);
            if is_used {
                let op = self.operator(bucket.dtype).1;
                memory.launch(at, Reduction { group: &self.group, op, hook: None })?;
            }
        }
        Ok(())
    }

    pub(crate) fn launched(&self) -> usize {
        self.ready_buckets.launched()
    }

    fn known(&mut self) -> Result<&Known> {
        self.counts = match std::mem::replace(&mut self.counts, Counts::Later) {
            Counts::Later => {
                let mut sums = question(&self.mine, &self.shares);
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

    /// The factor by which gradients are multiplied before they are combined, and the operator.
    ///
    /// An average needs no pass of its own over the gradients. But a hook may send f32 in fewer bits, in which sums are soon infinite.
    fn operator(&self, dtype: DType) -> (Option<f64>, ReduceOp) {
        let equal = match (self.part, &self.counts) {
            (Part::Equal, _) => true,
            (Part::Weighted(_), _) => false,
            // It does as the others do.
            (Part::Done, Counts::Known(known)) => known.sums.weighted == 0,
            (Part::Done, _) => true,
        };
        match self.part {
            _ if equal && !(self.hooked && dtype == DType::F32) => (None, ReduceOp::Avg),
            Part::Weighted(weight) => (Some(weight), ReduceOp::Sum),
            _ => (Some(1.0 / self.group.world_size() as f64), ReduceOp::Sum),
        }
    }

    /// Waits for all gradients, and gives those that any rank has. `None` if no rank takes part.
    ///
    /// Shares that don't fit are refused before anything is sent, or, where gradients are under way by then, when all have landed: the same
    /// operations on all ranks either way.
    pub(crate) fn finish<T: Tensor>(
        mut self,
        plan: &Plan<T::Device>,
        memory: &mut dyn Memory<T>,
        hook: &mut Option<Box<dyn CommHook>>,
    ) -> Result<Option<Reduced<T>>> {
        for index in 0..self.mine.len() {
            let (is_announced, is_here) = (self.mine[index], self.laid[index]);
            if self.overlap && is_announced && !is_here {
                // The backward pass had nothing for it.
                memory.skip(index)?;
                self.ready_buckets.arrived(plan.home(index).0);
            } else if !self.overlap && !is_here {
                memory.skip(index)?;
            }
        }
        if !self.overlap {
            self.mine.clone_from(&self.laid);
        }
        let known = self.known()?.clone();
        let Known { users, sums } = &known;
        if sums.working == 0 {
            return Ok(None);
        }
        if !self.overlap {
            self.shares.check(sums, &self.group)?;
        }
        self.launch(plan, memory)?;
        // The mean over those that take part, where some do not any more.
        let missing = sums.weighted == 0 && (sums.working as usize) < self.group.world_size();
        let factor = missing.then(|| self.group.world_size() as f64 / f64::from(sums.working));
        let mut grads: Gradients<T> = self.mine.iter().map(|_| None).collect();
        for (at, bucket) in plan.buckets().iter().enumerate() {
            if !known.is_used(&bucket.members) {
                continue;
            }
            if !self.overlap {
                let op = self.operator(bucket.dtype).1;
                let hook = hook.as_mut().map(|hook| &mut **hook as &mut dyn CommHook);
                memory.launch(at, Reduction { group: &self.group, op, hook })?;
            }
            memory.land(at)?;
            for &index in bucket.members.iter().filter(|&&index| users[index] > 0) {
                let mut grad = memory.lift(index)?;
                if let Some(factor) = factor {
                    grad.multiply(factor)?;
                }
                grads[index] = Some(grad.to_dtype(plan.parameters()[index].dtype)?);
            }
        }
        if self.overlap {
            self.shares.check(sums, &self.group)?;
        }
        Ok(Some(Reduced { grads, had_samples: sums.counting > 0 }))
    }
}
