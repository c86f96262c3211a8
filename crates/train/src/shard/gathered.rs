//! Which weights are whole on this rank, and how they become so.

use super::flat::Flat;
use crate::{Error, Result, Tensor, Weights};
use phalanx::backend::copy_slice;
use phalanx::{ProcessGroup, ReduceOp, Work};
use std::collections::HashMap;

/// The bytes before each rank's slice: the number of the flat. By it, ranks that gather different flats notice.
const HEADER: usize = size_of::<u64>();

/// Which pass goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
}

/// Whether the whole of a flat is in memory.
#[derive(Debug)]
enum Presence {
    Away,
    Coming(Work<Vec<u8>>),
    Here,
}

/// The order in which flats were gathered so far; all ranks see the same.
#[derive(Debug, Default)]
struct Order {
    after: HashMap<Option<usize>, usize>,
    last: Option<usize>,
}

/// The weights of all flats. What is gathered when depends on nothing but the order in which units begin their work, so all ranks
/// gather the same.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Whether the next unit's weights are gathered while this one works.
    looks_ahead: bool,
    presence: Vec<Presence>,
    /// How often the unit is at work at the moment, for each flat.
    at_work: Vec<usize>,
    orders: [Order; 2],
    /// The flat that is gathered for a unit whose work has not begun: one at most, so at most two units' weights are in memory.
    ahead: Option<usize>,
    /// Whether those that stay have been gathered, at least once and without trouble.
    have_come: bool,
    /// Whether a unit has worked in this pass.
    pub(super) has_gathered: bool,
}

impl Gathered {
    pub(super) fn new<S>(flats: &[Flat<S>], looks_ahead: bool) -> Self {
        let presence = |flat: &Flat<S>| if flat.stays { Presence::Here } else { Presence::Away };
        Self {
            looks_ahead,
            presence: flats.iter().map(presence).collect(),
            at_work: vec![0; flats.len()],
            orders: Default::default(),
            ahead: None,
            have_come: false,
            has_gathered: false,
        }
    }

    /// Gathers the weights that stay, if any rank's slice of them has changed since.
    pub(super) fn refresh<S: Tensor, T: Tensor>(
        &mut self,
        flats: &[Flat<S>],
        model: &mut (impl Weights<T> + ?Sized),
        group: &ProcessGroup,
    ) -> Result<()> {
        if !flats.iter().any(|flat| flat.stays) {
            return Ok(());
        }
        let mut is_stale = !self.have_come;
        for flat in flats.iter().filter(|flat| flat.stays) {
            is_stale = is_stale || !flat.is_fresh(model)?;
        }
        let mut some_are_stale = [u8::from(is_stale)];
        group.all_reduce(&mut some_are_stale, ReduceOp::Max)?;
        if some_are_stale[0] != 0 {
            self.have_come = false;
            for (at, flat) in flats.iter().enumerate().filter(|(_, flat)| flat.stays) {
                let slices = gather(at, flat, group)?;
                land(at, flats, model, &slices, true)?;
            }
            self.have_come = true;
        }
        Ok(())
    }

    /// A pass begins: what comes first is gathered, if that is known.
    pub(super) fn begin<S: Tensor>(
        &mut self,
        pass: Pass,
        flats: &[Flat<S>],
        group: &ProcessGroup,
    ) -> Result<()> {
        self.has_gathered = false;
        self.orders[pass as usize].last = None;
        self.look_ahead(pass, flats, group)
    }

    /// A unit begins its work in a pass: its weights are here after this.
    pub(super) fn enter<S: Tensor, T: Tensor>(
        &mut self,
        at: usize,
        pass: Pass,
        flats: &[Flat<S>],
        model: &mut (impl Weights<T> + ?Sized),
        group: &ProcessGroup,
    ) -> Result<()> {
        self.has_gathered = true;
        self.ahead.take_if(|ahead| *ahead == at);
        let slices = match std::mem::replace(&mut self.presence[at], Presence::Away) {
            Presence::Here => None,
            Presence::Coming(work) => Some(work.wait()?),
            Presence::Away => Some(gather(at, &flats[at], group)?),
        };
        if let Some(slices) = slices {
            land(at, flats, model, &slices, false)?;
        }
        self.presence[at] = Presence::Here;
        let order = &mut self.orders[pass as usize];
        order.after.insert(order.last, at);
        order.last = Some(at);
        self.look_ahead(pass, flats, group)
    }

    fn look_ahead<S: Tensor>(&mut self, pass: Pass, flats: &[Flat<S>], group: &ProcessGroup) -> Result<()> {
        let order = &self.orders[pass as usize];
        if let (true, None, Some(&next)) = (self.looks_ahead, self.ahead, order.after.get(&order.last))
            && matches!(self.presence[next], Presence::Away)
        {
            let work = group.all_gather_async(&message(next, &flats[next])?)?;
            self.presence[next] = Presence::Coming(work);
            self.ahead = Some(next);
        }
        Ok(())
    }

    /// Counts one more user of these weights, or one less.
    pub(super) fn count(&mut self, at: usize, more: isize) {
        self.at_work[at] = self.at_work[at].saturating_add_signed(more);
    }

    pub(super) fn is_at_work(&self, at: usize) -> bool {
        self.at_work[at] > 0
    }

    pub(super) fn release<S, T: Tensor>(
        &mut self,
        at: usize,
        flat: &Flat<S>,
        model: &mut (impl Weights<T> + ?Sized),
    ) -> Result<()> {
        if !flat.stays {
            self.presence[at] = Presence::Away;
            flat.release(model)?;
        }
        Ok(())
    }

    /// A pass is over: weights that do not stay are away, and those that were gathered in vain.
    pub(super) fn end<S, T: Tensor>(
        &mut self,
        flats: &[Flat<S>],
        model: &mut (impl Weights<T> + ?Sized),
    ) -> Result<()> {
        self.ahead = None;
        self.at_work.fill(0);
        flats.iter().enumerate().try_for_each(|(at, flat)| self.release(at, flat, model))
    }

    /// Flats whose weights are here although they do not stay, or will be.
    pub(super) fn visiting<S>(&self, flats: &[Flat<S>]) -> usize {
        let visits =
            |(flat, presence): &(&Flat<S>, &Presence)| !flat.stays && !matches!(presence, Presence::Away);
        flats.iter().zip(&self.presence).filter(visits).count()
    }
}

/// This rank's message of a flat: its number, and this rank's slice.
fn message<S: Tensor>(at: usize, flat: &Flat<S>) -> Result<Vec<u8>> {
    let mut message = vec![0; HEADER + flat.slice_bytes()];
    let (header, room) = message.split_at_mut(HEADER);
    header.copy_from_slice(&(at as u64).to_le_bytes());
    flat.with_slice(|slice| copy_slice(room, slice))?;
    Ok(message)
}

fn gather<S: Tensor>(at: usize, flat: &Flat<S>, group: &ProcessGroup) -> Result<Vec<u8>> {
    let mine = message(at, flat)?;
    let mut all = vec![0; mine.len() * group.world_size()];
    group.all_gather(&mine, &mut all)?;
    Ok(all)
}

/// Gives the model what all ranks have told of a flat.
fn land<S, T: Tensor>(
    at: usize,
    flats: &[Flat<S>],
    model: &mut (impl Weights<T> + ?Sized),
    all: &[u8],
    are_here: bool,
) -> Result<()> {
    let flat = &flats[at];
    let message = |rank| &all[rank * (HEADER + flat.slice_bytes())..][..HEADER + flat.slice_bytes()];
    let number =
        |rank| u64::from_le_bytes(*message(rank).first_chunk().expect("it begins with a number")) as usize;
    let name = |at: usize| flats.get(at).map_or_else(|| "none".to_owned(), |flat| flat.name.clone());
    if let Some(rank) = (0..flat.world_size).find(|&rank| number(rank) != number(0)) {
        return Err(Error::UnitMismatch { expected: name(number(0)), rank, found: name(number(rank)) });
    }
    flat.fill(model, |rank| &message(rank)[HEADER..], are_here)
}
