//! The engine of a sharded training: weights come and go, and gradients are dealt out.

use super::flat::Flat;
use super::gathered::{Gathered, Pass};
use super::gradients::{Gradients, PassSending, Sender};
use super::step_sums::StepSums;
use crate::checkpoint::{self, Checkpoint};
use crate::{Array, MissingGradients, Result, Share, Tensor, Weights};
use phalanx::{CallSite, ProcessGroup};

/// Weights and gradients, and who moves them. A model's weights are lent to the calls that need them.
///
/// A pass begins, units are entered and left, or gradients arrive, and the pass ends. With other stages than
/// [`Stage::Weights`](super::Stage::Weights) there are no units. Flats are numbered as they were given; those of a unit are entered by that number.
#[derive(Debug)]
pub struct Engine<S: Tensor> {
    flats: Vec<Flat<S>>,
    gathered: Gathered,
    gradients: Gradients,
    step_sums: StepSums,
    sender: Sender,
    hint: &'static str,
}

impl<S: Tensor> Engine<S> {
    /// Of flats that all ranks have alike. `hint` says what loses gradients in the library.
    pub fn new(
        flats: Vec<Flat<S>>,
        group: &ProcessGroup,
        overlap: bool,
        missing: MissingGradients,
        hint: &'static str,
    ) -> Self {
        let gathered = Gathered::new(&flats, overlap);
        let gradients = Gradients::new(flats.len());
        let step_sums = StepSums::new(&flats, missing);
        let sender = Sender { group: group.clone(), overlap };
        Self { gathered, gradients, step_sums, sender, hint, flats }
    }

    /// The flats.
    pub fn flats(&self) -> &[Flat<S>] {
        &self.flats
    }

    /// The flats, for what changes shards.
    pub fn flats_mut(&mut self) -> &mut [Flat<S>] {
        &mut self.flats
    }

    /// Makes the shards what a checkpoint has under `prefix`.
    ///
    /// # Errors
    /// [`Missing`](checkpoint::Error::Missing) and [`OtherTensor`](checkpoint::Error::OtherTensor): nothing was changed. Those of reading, after which some
    /// shards may have been changed.
    pub fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        for flat in &self.flats {
            flat.extents().iter().try_for_each(|extent| extent.fits(prefix, &flat.shard, from))?;
        }
        for flat in &mut self.flats {
            let extents = flat.extents();
            extents.iter().try_for_each(|extent| extent.load(prefix, &mut flat.shard, from))?;
        }
        Ok(())
    }

    /// The calls that follow count as made there.
    fn called_at(&mut self, site: CallSite) {
        self.sender.group = self.sender.group.with_call_site(site);
    }

    /// A forward pass begins: the weights that stay are what the shards are.
    ///
    /// # Errors
    /// Those of the group and of the library.
    pub fn begin_forward<T: Tensor>(
        &mut self,
        model: &mut (impl Weights<T> + ?Sized),
        site: CallSite,
    ) -> Result<()> {
        self.called_at(site);
        self.gathered.refresh(&self.flats, model, &self.sender.group)?;
        self.gathered.begin(Pass::Forward, &self.flats, &self.sender.group)
    }

    /// The forward pass is over. Whether a unit has worked in it, so that other ranks may wait for this one.
    ///
    /// # Errors
    /// Those of the library.
    pub fn end_forward<T: Tensor>(&mut self, model: &mut (impl Weights<T> + ?Sized)) -> Result<bool> {
        self.gathered.end(&self.flats, model)?;
        Ok(self.gathered.has_gathered)
    }

    /// A backward pass begins, which is the `last` of the step or not, and will complete the gradients of these members of these flats, in this order.
    ///
    /// # Errors
    /// Those of the group, and for shares that are none.
    pub fn begin_backward(
        &mut self,
        reached: &[(usize, usize)],
        share: Share,
        (sending, last): (PassSending, bool),
        site: CallSite,
    ) -> Result<()> {
        self.called_at(site);
        self.gradients.begin(share, sending, reached, &self.sender.group)?;
        self.step_sums.note(share, reached)?;
        if last {
            self.step_sums.ask(&self.sender.group)?;
        }
        self.gathered.begin(Pass::Backward, &self.flats, &self.sender.group)
    }

    /// The backward pass is over: waits for what was sent.
    ///
    /// # Errors
    /// Those of the group and of the library.
    pub fn end_backward<T: Tensor>(&mut self, model: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        self.gathered.end(&self.flats, model)?;
        self.gradients.end(&self.flats, &self.sender)
    }

    /// The last pass of the step is over: this rank's slices of its gradients, of all flats of which any rank has used a weight.
    ///
    /// # Errors
    /// [`ShareMismatch`](crate::Error::ShareMismatch), [`NoGradient`](crate::Error::NoGradient), and those of the group.
    pub fn end_step(&mut self) -> Result<Vec<Option<Array>>> {
        self.step_sums.settle(&self.flats, self.hint, &self.sender.group)?;
        Ok(self.gradients.take())
    }

    /// A step has failed: nothing is left of it.
    pub fn give_up<T: Tensor>(&mut self, model: &mut (impl Weights<T> + ?Sized)) {
        self.gradients.give_up();
        self.step_sums.forget();
        if let Err(error) = self.gathered.end(&self.flats, model) {
            tracing::warn!(%error, "weights of a pass that failed stay in memory");
        }
    }

    /// The unit of a flat begins to work: its weights are here.
    ///
    /// # Errors
    /// [`UnitMismatch`](crate::Error::UnitMismatch), and those of the group and of the library.
    pub fn enter<T: Tensor>(
        &mut self,
        at: usize,
        pass: Pass,
        model: &mut (impl Weights<T> + ?Sized),
    ) -> Result<()> {
        self.gathered.enter(at, pass, &self.flats, model, &self.sender.group)
    }

    /// Counts one more user of a flat's weights, or one less.
    pub fn count(&mut self, at: usize, more: isize) {
        self.gathered.count(at, more);
    }

    /// Work with a flat's weights may be done: if nothing needs them any more they go away.
    ///
    /// # Errors
    /// The library's.
    pub fn settle<T: Tensor>(&mut self, at: usize, model: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        if self.gathered.is_at_work(at) || self.gradients.need(at) {
            return Ok(());
        }
        self.gathered.release(at, &self.flats[at], model)
    }

    /// Takes the gradient of a member of a flat, which is sent if that was the last one.
    ///
    /// # Errors
    /// Those of the group and of the library.
    pub fn arrive<G: Tensor, T: Tensor>(
        &mut self,
        (at, member): (usize, usize),
        grad: &G,
        model: &mut (impl Weights<T> + ?Sized),
    ) -> Result<()> {
        self.gradients.arrive(at, member, grad, &self.flats[at], &self.sender)?;
        self.settle(at, model)
    }

    /// Whether a backward pass goes on.
    pub fn awaits_gradients(&self) -> bool {
        self.gradients.are_awaited()
    }

    /// Flats whose weights are here although they do not stay, or will be; and those whose gradients lie here whole. For tests.
    pub fn in_memory(&self) -> (usize, usize) {
        (self.gathered.visiting(&self.flats), self.gradients.whole())
    }
}
