//! Gradients of all ranks into each rank's slice of the gradients of the global batch.

use super::flat::Flat;
use super::layout::kept;
use crate::element::{Float, with_float};
use crate::{Array, Part, Result, Share, Tensor};
use bytemuck::{cast_slice, cast_slice_mut};
use phalanx::error::OpKind;
use phalanx::{Element, Error, ProcessGroup, ReduceOp, Work};
use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// Reductions that are under way at once, at most: each holds a whole flat's gradients.
const IN_FLIGHT_MAX: usize = 2;

/// The gradients of all flats.
#[derive(Debug)]
pub(super) struct Gradients {
    /// This rank's own gradients that are not sent yet, in the type in which weights are kept.
    whole: Vec<Option<Array>>,
    /// This rank's slices of what has been reduced.
    reduced: Vec<Option<Array>>,
    in_flight: VecDeque<(usize, InFlight)>,
    /// Whether the shares of this step are equal.
    equal: Option<bool>,
    pass: Option<Pass>,
}

/// A backward pass that goes on.
#[derive(Debug)]
struct Pass {
    part: Part,
    /// How many gradients are still to come, for each flat.
    missing: Vec<usize>,
    /// Whether the flat is still to be sent in this pass, because any rank has gradients; for each flat.
    to_send: Vec<bool>,
    /// Whether a flat is sent as soon as it is complete.
    early: bool,
}

/// Waits for this rank's slice.
struct InFlight(Box<dyn FnOnce() -> Result<Array> + Send>);

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlight")
    }
}

/// When gradients of a pass are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassSending {
    /// Gradients are sent in a later pass.
    Not,
    /// After it.
    After,
    /// While it runs, each flat as soon as it is complete.
    During,
}

impl Gradients {
    pub(super) fn new(flats: usize) -> Self {
        Self {
            whole: vec![None; flats],
            reduced: vec![None; flats],
            in_flight: VecDeque::new(),
            equal: None,
            pass: None,
        }
    }

    /// A backward pass begins, that will complete the gradients of these members of these flats, in this order.
    ///
    /// Flats are sent in the order in which they are complete, which is the same on all ranks if the passes are alike. If they are not,
    /// because a rank leaves a weight out, nothing is sent before the pass is over, and then flat by flat.
    pub(super) fn begin(
        &mut self,
        share: Share,
        sending: PassSending,
        reached: &[(usize, usize)],
        group: &ProcessGroup,
    ) -> Result<()> {
        let part = share.part()?;
        let is_equal = part == Part::Equal;
        if *self.equal.get_or_insert(is_equal) != is_equal {
            let what = "some losses of this step have equal shares and others a number of samples; give all of them a number of samples, or none";
            return Err(Error::misuse(OpKind::ReduceScatter, what).into());
        }
        let mut missing = vec![0; self.whole.len()];
        let mut order = XxHash3_64::new();
        for &(flat, member) in reached {
            missing[flat] += 1;
            order.write_u64(flat as u64);
            order.write_u64(member as u64);
        }
        let (mut to_send, mut are_alike) = (vec![false; missing.len()], true);
        if sending != PassSending::Not {
            let order = order.finish();
            let mine = missing.iter().zip(&self.whole).map(|(&n, whole)| u64::from(n > 0 || whole.is_some()));
            let mut all: Vec<u64> = mine.chain([order, !order]).collect();
            group.all_reduce(&mut all, ReduceOp::Max)?;
            let [flags @ .., most, not_least] = &all[..] else { unreachable!("two were added") };
            are_alike = *most == !not_least;
            to_send = flags.iter().map(|&flag| flag != 0).collect();
        }
        let early = sending == PassSending::During && are_alike;
        self.pass = Some(Pass { part, missing, to_send, early });
        Ok(())
    }

    pub(super) fn are_awaited(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether the pass that goes on may still need the weights of a flat.
    pub(super) fn need(&self, at: usize) -> bool {
        self.pass.as_ref().is_some_and(|pass| !pass.early || pass.missing[at] > 0)
    }

    /// Takes the gradient of a member of flat `at`, and sends the flat if that was the last one.
    pub(super) fn arrive<S, T: Tensor>(
        &mut self,
        at: usize,
        member: usize,
        grad: &T,
        flat: &Flat<S>,
        sender: &Sender,
    ) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        if pass.part.counts() {
            let whole = match &mut self.whole[at] {
                Some(whole) => whole,
                none => none.insert(zeros(flat)?),
            };
            let weight = if let Part::Weighted(weight) = pass.part { weight } else { 1.0 };
            add(whole, flat.members[member].place.start, grad, weight)?;
        }
        pass.missing[at] = pass.missing[at].saturating_sub(1);
        if pass.early && pass.missing[at] == 0 {
            self.send(at, flat, sender)?;
        }
        Ok(())
    }

    fn send<S>(&mut self, at: usize, flat: &Flat<S>, sender: &Sender) -> Result<()> {
        let whole = match self.whole[at].take() {
            Some(whole) => whole,
            None => zeros(flat)?,
        };
        if let Some(pass) = &mut self.pass {
            pass.to_send[at] = false;
        }
        while self.in_flight.len() >= IN_FLIGHT_MAX {
            self.land()?;
        }
        let equal = self.equal.unwrap_or(true);
        let whole = whole.to_dtype(flat.dtype)?;
        let slice = with_float!(flat.dtype,
            E => sender.send::<E>(whole, equal)?,
            _ => unreachable!("weights are floats"),
        );
        self.in_flight.push_back((at, slice));
        Ok(())
    }

    /// Waits for the oldest reduction.
    fn land(&mut self) -> Result<()> {
        if let Some((at, slice)) = self.in_flight.pop_front() {
            let slice = slice.0()?;
            let wide = kept(slice.dtype());
            let slice = slice.to_dtype(wide)?;
            self.reduced[at] = Some(match self.reduced[at].take() {
                Some(before) => before.add(slice)?,
                None => slice,
            });
        }
        Ok(())
    }

    /// The pass is over: sends what is left of it, and waits for all.
    pub(super) fn end<S>(&mut self, flats: &[Flat<S>], sender: &Sender) -> Result<()> {
        for (at, flat) in flats.iter().enumerate() {
            if self.pass.as_ref().is_some_and(|pass| pass.to_send[at]) {
                self.send(at, flat, sender)?;
            }
        }
        while !self.in_flight.is_empty() {
            self.land()?;
        }
        self.pass = None;
        Ok(())
    }

    /// The step is over: this rank's slices of its gradients. None for flats of which no rank has used a weight.
    pub(super) fn take(&mut self) -> Vec<Option<Array>> {
        self.equal = None;
        self.reduced.iter_mut().map(Option::take).collect()
    }

    /// Forgets all of the step.
    pub(super) fn give_up(&mut self) {
        *self = Self::new(self.whole.len());
    }

    /// Flats whose gradients lie here whole.
    pub(super) fn whole(&self) -> usize {
        self.whole.iter().flatten().count()
    }
}

/// How gradients are reduced.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) group: ProcessGroup,
    /// Whether the program goes on meanwhile.
    pub(super) overlap: bool,
}

impl Sender {
    fn send<E: Element>(&self, whole: Array, equal: bool) -> Result<InFlight>
    where
        Vec<E>: TryFrom<Array, Error = crate::Error>,
        Array: From<Vec<E>>,
    {
        let mut all: Vec<E> = whole.try_into()?;
        let op = if equal { ReduceOp::Avg } else { ReduceOp::Sum };
        let len = all.len() / self.group.world_size();
        if self.overlap {
            let work: Work<Vec<E>> = self.group.reduce_scatter_async(all, op)?;
            return Ok(InFlight(Box::new(move || Ok(Array::from(work.wait()?)))));
        }
        self.group.reduce_scatter_in_place(&mut all, op)?;
        let slice = Array::from(all[self.group.rank() * len..][..len].to_vec());
        Ok(InFlight(Box::new(move || Ok(slice))))
    }
}

/// No gradients, yet.
fn zeros<S>(flat: &Flat<S>) -> Result<Array> {
    Array::zeros(kept(flat.dtype), &[flat.slice * flat.world_size], &())
}

/// Adds a gradient to a flat's, from element `start`.
fn add<T: Tensor>(whole: &mut Array, start: usize, grad: &T, weight: f64) -> Result<()> {
    let (to, from) = (whole.dtype(), grad.dtype());
    whole.write(|whole| {
        grad.read(|grad| {
            with_float!(to,
                W => with_float!(from,
                    G => add_run::<W, G>(&mut cast_slice_mut::<u8, W>(whole)[start..], cast_slice(grad), weight),
                    _ => unreachable!("gradients are floats"),
                ),
                _ => unreachable!("weights are floats"),
            );
        })
    })?
}

fn add_run<W: Float, G: Float>(whole: &mut [W], grad: &[G], weight: f64) {
    let weight = W::from_f64(weight);
    for (sum, &grad) in whole.iter_mut().zip(grad) {
        *sum = *sum + W::from_f64(grad.to_f64()) * weight;
    }
}
