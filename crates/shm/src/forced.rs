//! Ways that a program or its environment has forced.

use phalanx_algo::{MemoryCall, MemoryWay};
use phalanx_core::OpKind;

/// The ways that are taken whatever is recommended, each for its operation. Usually there are none.
#[derive(Debug, Default)]
pub(crate) struct Forced {
    ways: Vec<(OpKind, MemoryWay)>,
    /// What could not be taken, and whether that was told.
    obstacles: Vec<(NotTaken, bool)>,
}

/// A forced way that could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotTaken {
    /// The operation.
    pub op: OpKind,
    /// The way that was forced for it.
    pub way: MemoryWay,
    /// Why it could not be taken.
    pub why: &'static str,
}

/// The way of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) way: MemoryWay,
    pub(crate) is_forced: bool,
}

impl Forced {
    pub(crate) fn force(&mut self, op: OpKind, way: MemoryWay) {
        self.ways.retain(|(forced, _)| *forced != op);
        self.ways.push((op, way));
    }

    /// The way of `call`, which is a call of `called` or a part of it.
    #[inline]
    pub(crate) fn choose(&mut self, called: OpKind, call: &MemoryCall) -> Choice {
        if self.ways.is_empty() {
            return Choice { way: call.recommended(), is_forced: false };
        }
        self.choose_among(called, call)
    }

    #[cold]
    fn choose_among(&mut self, called: OpKind, call: &MemoryCall) -> Choice {
        let forced = self.ways.iter().find(|(op, _)| *op == called).map(|(_, way)| *way);
        // A call that moves nothing is a barrier, whatever it is called.
        let Some(way) = forced.filter(|way| MemoryWay::of(call.op).contains(way)) else {
            return Choice { way: call.recommended(), is_forced: false };
        };
        match call.obstacle(way) {
            None => Choice { way, is_forced: true },
            Some(why) => {
                let obstacle = NotTaken { op: called, way, why };
                if !self.obstacles.iter().any(|(known, _)| *known == obstacle) {
                    self.obstacles.push((obstacle, false));
                }
                Choice { way: call.recommended(), is_forced: false }
            }
        }
    }

    pub(crate) fn not_taken(&mut self) -> Option<NotTaken> {
        let (obstacle, is_told) = self.obstacles.iter_mut().find(|(_, is_told)| !*is_told)?;
        *is_told = true;
        Some(*obstacle)
    }
}
