//! Pinned memory for copies between host and device: used again and again, for the driver waits for the device to free it, and only so much of it.

use crate::context::Context;
use crate::pinned::Pinned;
use crate::wait::wait_until;
use phalanx_core::{Deadline, Error, Result};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest piece for copies, of which a longer copy takes several.
pub(crate) const LONGEST: usize = 8 << 20;
/// The shortest; each kind is twice as long as the one before.
const SHORTEST: usize = 4 << 10;
/// Pieces of a kind have so many bytes together, or there are four of them.
const OF_A_KIND: usize = 8 << 20;
/// How long a copy waits for a piece that is free: for the streams that use all there are.
const FREE_TIME: Duration = Duration::from_secs(60);
/// How long a device that is closed waits for the copy of each piece.
const LAST_COPIES: Duration = Duration::from_secs(1);

/// Pieces of pinned memory that copies take in turn.
pub(crate) struct Pool {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Pieces that nobody has; the device may still use them.
    pieces: Vec<Pinned>,
    /// How many of each length there are, here and elsewhere.
    made: Vec<(usize, usize)>,
}

/// A piece for one copy. It goes back to the pool, where the device may still use it.
pub(crate) struct Lent<'a> {
    pool: &'a Pool,
    piece: Option<Pinned>,
}

impl Deref for Lent<'_> {
    type Target = Pinned;

    fn deref(&self) -> &Pinned {
        self.piece.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Pinned {
        self.piece.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.piece.take().into_iter().for_each(|piece| self.pool.give_back(piece));
    }
}

impl State {
    /// The shortest that is long enough.
    fn free(&mut self, len: usize) -> Option<Pinned> {
        let fits = |(_, piece): &(usize, &Pinned)| piece.len() >= len && piece.memory().is_unused();
        let found = self.pieces.iter().enumerate().filter(fits).min_by_key(|(_, piece)| piece.len())?.0;
        Some(self.pieces.swap_remove(found))
    }

    fn made(&mut self, len: usize) -> &mut usize {
        let at = self.made.iter().position(|(of, _)| *of == len).unwrap_or_else(|| {
            self.made.push((len, 0));
            self.made.len() - 1
        });
        &mut self.made[at].1
    }
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), state: Mutex::default() }
    }

    /// A piece of at least so many bytes, at most [`LONGEST`], which no stream uses. If there are as many as there may be, and all in use, this waits for one.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): for too long. [`Library`](Error::Library): there is not enough memory.
    pub(crate) fn for_copy(&self, len: usize) -> Result<Lent<'_>> {
        let len = Self::kind(len);
        let most = (OF_A_KIND / len).max(4);
        let (deadline, mut found) = (Deadline::after(Instant::now(), FREE_TIME), None);
        let has_found = wait_until(&deadline, || {
            let mut state = self.lock();
            found = state.free(len);
            if found.is_none() && *state.made(len) < most {
                found = Some(self.make(&mut state, len)?);
            }
            Ok(found.is_some())
        })?;
        let piece = found.filter(|_| has_found).ok_or_else(|| Error::Unavailable {
            what: format!("pinned memory for a copy within {:.0} s", FREE_TIME.as_secs_f64()),
            tried: format!("{most} pieces of {len} bytes, which streams of {} use", self.context),
        })?;
        Ok(Lent { pool: self, piece: Some(piece) })
    }

    /// As [`for_copy`](Self::for_copy) for who must not wait, because others wait for it: it brings its own bound.
    pub(crate) fn at_once(&self, len: usize) -> Result<Pinned> {
        let (len, mut state) = (Self::kind(len), self.lock());
        state.free(len).map_or_else(|| self.make(&mut state, len), Ok)
    }

    /// For the next copy; the device may still use it.
    pub(crate) fn give_back(&self, piece: Pinned) {
        self.lock().pieces.push(piece);
    }

    /// Frees what is left when the device is closed. If it `is_stuck`, nothing waits for it.
    pub(crate) fn close(&self, is_stuck: bool) {
        let pieces = std::mem::take(&mut self.lock().pieces);
        let patience = if is_stuck { Duration::ZERO } else { LAST_COPIES };
        for piece in pieces {
            // What is left of an operation that was aborted is over soon; what is not must stay.
            if !matches!(piece.memory().wait(patience), Ok(true)) {
                std::mem::forget(piece);
            }
        }
    }

    fn kind(len: usize) -> usize {
        len.next_power_of_two().max(SHORTEST)
    }

    fn make(&self, state: &mut State, len: usize) -> Result<Pinned> {
        let piece = Pinned::new(&self.context, len)?;
        *state.made(len) += 1;
        Ok(piece)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
