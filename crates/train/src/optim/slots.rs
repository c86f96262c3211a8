//! What an optimizer remembers of each weight, and its checkpoints.

use crate::checkpoint::{self, Checkpoint, Extent, State, add, fits, has, read_whole};
use crate::model::{Entry, compare};
use crate::{Parameter, Result, Tensor, element};
use phalanx::{Error, ProcessGroup};

/// Weights, and what is remembered of each: tensors like it, of kinds that have names.
#[derive(Debug)]
pub(super) struct Slots<T: Tensor> {
    /// The optimizer's name, for errors.
    optimizer: &'static str,
    kinds: &'static [&'static str],
    slots: Vec<Slot<T>>,
}

/// A weight, and what is remembered of it.
#[derive(Debug)]
pub(super) struct Slot<T: Tensor> {
    weight: Parameter<T::Device>,
    /// The parts of named weights that it is made of, if it is a rank's shard.
    parts: Option<Vec<Extent>>,
    /// A tensor for each kind, or none before the first step.
    moments: Vec<T>,
}

impl<T: Tensor> Slots<T> {
    pub(super) fn new<'n, 'm>(
        optimizer: &'static str,
        kinds: &'static [&'static str],
        weights: impl IntoIterator<Item = (&'n str, &'m T)>,
    ) -> Self {
        let slot = |(name, weight): (&str, &T)| Slot {
            weight: Parameter::of(name, weight),
            parts: None,
            moments: Vec::new(),
        };
        Self { optimizer, kinds, slots: weights.into_iter().map(slot).collect() }
    }

    /// For shards, each of which is made of parts of named weights.
    pub(super) fn of_shards<'m>(
        optimizer: &'static str,
        kinds: &'static [&'static str],
        shards: impl IntoIterator<Item = (&'m T, Vec<Extent>)>,
    ) -> Self {
        let slot = |(shard, parts): (&T, Vec<Extent>)| Slot {
            weight: Parameter::of("a shard", shard),
            parts: Some(parts),
            moments: Vec::new(),
        };
        Self { optimizer, kinds, slots: shards.into_iter().map(slot).collect() }
    }

    pub(super) fn weights(&self) -> impl Iterator<Item = &Parameter<T::Device>> {
        self.slots.iter().map(|slot| &slot.weight)
    }

    /// Makes zeros for all weights.
    pub(super) fn begin(&mut self) -> Result<()> {
        let kinds = self.kinds.len();
        self.slots.iter_mut().try_for_each(|slot| slot.begin(kinds))
    }

    /// The places of weights that have a gradient, with what is remembered of them; refuses gradients that are not like their weights.
    pub(super) fn with_gradients<'s>(
        &'s mut self,
        grads: &'s [Option<T>],
    ) -> Result<impl Iterator<Item = (usize, &'s mut Slot<T>, &'s T)>> {
        let (optimizer, weights) = (self.optimizer, self.slots.len());
        let refuse = |what| Err(Error::config(format!("{optimizer} {what}")).into());
        if grads.len() != weights {
            let what = format!(
                "was given {} gradients for {weights} weights: pass one for each, or `None`",
                grads.len()
            );
            return refuse(what);
        }
        for (Slot { weight, .. }, grad) in self.slots.iter().zip(grads) {
            if let Some(grad) = grad
                && (grad.dtype(), grad.dims()) != (weight.dtype, &weight.dims[..])
            {
                let found = format!("{} {:?}", grad.dtype(), grad.dims());
                return refuse(format!(
                    "was given {found} as the gradient of `{}`, which is {} {:?}",
                    weight.name, weight.dtype, weight.dims
                ));
            }
        }
        let all = self.slots.iter_mut().zip(grads).enumerate();
        Ok(all.filter_map(|(index, (slot, grad))| Some((index, slot, grad.as_ref()?))))
    }

    /// Copies what `root` remembers to all ranks, bit for bit: weights of which it remembers nothing begin anew. Collective.
    #[track_caller]
    pub(super) fn sync(&mut self, group: &ProcessGroup, root: usize) -> Result<()> {
        let group = &group.with_call_site(group.site());
        if self.slots.iter().any(|slot| slot.parts.is_some()) {
            let what =
                "of shards cannot be copied to other ranks: each optimises another part; load a checkpoint";
            return Err(Error::config(format!("{} {what}", self.optimizer)).into());
        }
        let entries = self.weights().map(|weight| Entry::new(&*weight.name, weight.dtype, &weight.dims));
        compare(entries.collect(), group, root)?;
        let mut slots: Vec<_> = self.slots.iter_mut().collect();
        slots.sort_by(|a, b| a.weight.name.cmp(&b.weight.name));
        let known = slots.iter().map(|slot| !slot.moments.is_empty()).collect::<Vec<_>>();
        let known = group.broadcast_object((group.rank() == root).then_some(known), root)?;
        for (slot, known) in slots.into_iter().zip(known) {
            if !known {
                slot.moments.clear();
                continue;
            }
            slot.begin(self.kinds.len())?;
            for moment in &mut slot.moments {
                let dtype = moment.dtype();
                moment.write(|bytes| element::broadcast(group, dtype, bytes, root))??;
            }
        }
        Ok(())
    }

    /// Adds what is remembered to a state: `PREFIX.KIND.NAME`.
    pub(super) fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) {
        for Slot { weight, parts, moments } in &self.slots {
            for (kind, moment) in self.kinds.iter().zip(moments) {
                let prefix = format!("{prefix}.{kind}");
                match parts {
                    None => add(state, format!("{prefix}.{}", weight.name), moment),
                    Some(parts) => parts.iter().for_each(|part| part.save::<T, _>(&prefix, moment, state)),
                }
            }
        }
    }

    /// Remembers what a checkpoint has. Where `all` is false weights of which it has nothing begin anew; else they are an error, and nothing is changed.
    pub(super) fn load(&mut self, prefix: &str, from: &Checkpoint, all: bool) -> checkpoint::Result<()> {
        let kinds = self.kinds;
        let names = || kinds.iter().map(|kind| format!("{prefix}.{kind}"));
        let mut known = Vec::new();
        for slot in &mut self.slots {
            known.push(all || names().all(|prefix| slot.is_in(&prefix, from)));
        }
        for (slot, _) in self.slots.iter_mut().zip(&known).filter(|(_, known)| **known) {
            slot.begin(kinds.len())?;
            for (prefix, moment) in names().zip(&slot.moments) {
                match &slot.parts {
                    None => fits(&format!("{prefix}.{}", slot.weight.name), checkpoint::info(moment), from)?,
                    Some(parts) => parts.iter().try_for_each(|part| part.fits(&prefix, moment, from))?,
                }
            }
        }
        for (slot, known) in self.slots.iter_mut().zip(known) {
            if !known {
                slot.moments.clear();
            }
            for (prefix, moment) in names().zip(&mut slot.moments) {
                match &slot.parts {
                    None => read_whole(&format!("{prefix}.{}", slot.weight.name), moment, from)?,
                    Some(parts) => parts.iter().try_for_each(|part| part.load(&prefix, moment, from))?,
                }
            }
        }
        Ok(())
    }
}

impl<T: Tensor> Slot<T> {
    /// Makes zeros, if there is nothing yet.
    pub(super) fn begin(&mut self, kinds: usize) -> Result<()> {
        let Parameter { dtype, dims, device, .. } = &self.weight;
        while self.moments.len() < kinds {
            self.moments.push(T::zeros(*dtype, dims, device)?);
        }
        Ok(())
    }

    pub(super) fn moments(&mut self) -> &mut [T] {
        &mut self.moments
    }

    fn is_in(&self, prefix: &str, from: &Checkpoint) -> bool {
        match &self.parts {
            None => has(&format!("{prefix}.{}", self.weight.name), from),
            Some(parts) => parts.iter().all(|part| part.is_in(prefix, from)),
        }
    }
}
