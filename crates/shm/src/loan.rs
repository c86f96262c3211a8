//! Loans: the bytes of a long message stay where they are, and both ends copy them from there to where they belong.
//!
//! In a ring each byte is copied twice, and its lines go from one core to the other. The end that sends can lend the bytes instead: it says where they lie, and waits
//! until they were taken. The end that receives reads them in that memory. Where it has a place for many, it opens the place: then it copies the first bytes, while the lender
//! copies the last, in chunks that each claims. A lender that does something else meanwhile is not needed.
//!
//! Nobody touches memory that is its owner's again:
//!
//! - The lender may give up at any time. It then [withdraws](crate::lease::Closed) before its memory is its caller's again, and who has read looks afterwards whether it had.
//! - A place is open only while the receiving end is here, in the middle of taking. Before it goes it closes the place, and waits until the lender's
//!   copy of one chunk is over. See also `lease.rs`.

use crate::region::Line;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use std::ops::Range;

/// Bytes of a chunk: so many that a system call costs little beside them, so few that neither end waits long for the other's last one. With 64 KiB messages of 1 MiB took a sixth longer.
pub(crate) const CHUNK: usize = 256 << 10;

/// What the ends of a pipe share about loans. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Loan {
    offer: Line<Offer>,
    place: Line<Place>,
    /// Chunks of the open place that were claimed: by the taker, from the first on, in the upper half; by the lender, from the last on, in the lower.
    claimed: Line<AtomicU64>,
}

/// The lender writes it.
#[repr(C)]
#[derive(Debug)]
struct Offer {
    /// Loans that were made. Written last.
    number: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    /// Whether it is writing to a place.
    writes: AtomicU32,
    /// The last turn in which it claimed a chunk and could not write it.
    failed: AtomicU64,
}

/// The taker writes it.
#[repr(C)]
#[derive(Debug)]
struct Place {
    /// Odd while a place is open. Written last.
    turn: AtomicU64,
    addr: AtomicU64,
    /// Where in what was lent the bytes of the place begin, and how many they are.
    start: AtomicU64,
    len: AtomicU64,
    /// Loans that were taken to their end.
    taken: AtomicU64,
    /// Whether loans are welcome: they can be read.
    is_welcome: AtomicU32,
}

/// The lending end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Lender {
    number: u64,
    /// Bytes lent and not known to be taken.
    lent: Option<usize>,
}

/// The taking end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Taker {
    taken: u64,
    /// Bytes taken of the loan after those.
    done: usize,
    turn: u64,
    /// What was lent can't be read.
    is_stuck: bool,
}

/// Bytes that are lent: where they lie in the lender's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// How the taking end copies to a place, and what it does while it waits for the lender's last chunk.
pub(crate) trait Copies {
    type Error;
    /// Copies from an address of the lender to a range of the place.
    fn read(&mut self, addr: u64, range: Range<usize>) -> Result<(), Self::Error>;
    /// Called again and again until the lender has written its chunk; true if the lender has ended.
    fn waits(&mut self) -> bool;
}

impl Loan {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let (word, flag) = (|| AtomicU64::new(0), || AtomicU32::new(0));
        Self {
            offer: Line(Offer { number: word(), addr: word(), len: word(), writes: flag(), failed: word() }),
            place: Line(Place {
                turn: word(),
                addr: word(),
                start: word(),
                len: word(),
                taken: word(),
                is_welcome: flag(),
            }),
            claimed: Line(word()),
        }
    }

    /// The taking end says that it can take loans.
    pub(crate) fn welcome(&self) {
        self.place.0.is_welcome.store(1, Ordering::Relaxed);
    }

    pub(crate) fn is_welcome(&self) -> bool {
        self.place.0.is_welcome.load(Ordering::Relaxed) != 0
    }

    /// Whether the lender writes to a place.
    fn is_written(&self) -> bool {
        self.offer.0.writes.load(Ordering::Acquire) != 0
    }

    /// The next of so many chunks for the one whose claims `one` counts.
    fn claim(&self, count: u64, one: u64) -> Option<u64> {
        let mut claimed = self.claimed.0.load(Ordering::Relaxed);
        loop {
            let (front, back) = (claimed >> 32, claimed & u64::from(u32::MAX));
            if front + back >= count {
                return None;
            }
            let next = claimed.wrapping_add(one);
            match self.claimed.0.compare_exchange_weak(claimed, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(if one == BACK { count - 1 - back } else { front }),
                Err(now) => claimed = now,
            }
        }
    }
}

const FRONT: u64 = 1 << 32;
const BACK: u64 = 1;

fn chunk(index: u64, len: usize) -> Range<usize> {
    let start = index as usize * CHUNK;
    start..len.min(start + CHUNK)
}

impl Lender {
    /// Whether bytes are lent, or were and have been taken and that is not known yet.
    pub(crate) fn lends(&self) -> bool {
        self.lent.is_some()
    }

    /// Lends `len` bytes at this address of the own memory. Nothing may be lent already.
    pub(crate) fn lend(&mut self, loan: &Loan, addr: u64, len: usize) {
        self.number += 1;
        self.lent = Some(len);
        let offer = &loan.offer.0;
        offer.addr.store(addr, Ordering::Relaxed);
        offer.len.store(len as u64, Ordering::Relaxed);
        // With all that was written to the pipe before.
        offer.number.store(self.number, Ordering::Release);
    }

    /// How many bytes were lent, if they have been taken.
    pub(crate) fn ended(&mut self, loan: &Loan) -> Option<usize> {
        let len = self.lent?;
        // With the other end's last look at them.
        (loan.place.0.taken.load(Ordering::Acquire) == self.number).then(|| {
            self.lent = None;
            len
        })
    }

    /// Whether there is something to do: the bytes were taken, or a place is open in which chunks are left.
    pub(crate) fn is_ready(&self, loan: &Loan) -> bool {
        let place = &loan.place.0;
        if place.taken.load(Ordering::Acquire) == self.number {
            return true;
        }
        let is_open = place.turn.load(Ordering::Acquire) % 2 == 1;
        let claimed = loan.claimed.0.load(Ordering::Relaxed);
        let count = (place.len.load(Ordering::Relaxed) as usize).div_ceil(CHUNK) as u64;
        is_open && (claimed >> 32) + (claimed & u64::from(u32::MAX)) < count
    }

    /// Copies a chunk of what is lent to the other end's place, if one is open: `write` does, given an address there and a range of what is lent, and says whether it could. False if
    /// there was nothing to do.
    pub(crate) fn help(&self, loan: &Loan, write: impl FnOnce(u64, Range<usize>) -> bool) -> bool {
        let (Some(lent), place) = (self.lent, &loan.place.0) else { return false };
        let turn = place.turn.load(Ordering::Acquire);
        if turn % 2 == 0 {
            return false;
        }
        loan.offer.0.writes.store(1, Ordering::Relaxed);
        let _writes = Writes(&loan.offer.0.writes);
        // Pairs with the fence in `close`: either we see that the place is closed, or who closes it sees that we write.
        fence(Ordering::SeqCst);
        if place.turn.load(Ordering::Relaxed) != turn {
            return false;
        }
        let [addr, start, len] =
            [&place.addr, &place.start, &place.len].map(|word| word.load(Ordering::Relaxed));
        let (start, len) = (start as usize, len as usize);
        // Whatever the other end has written there, nothing is touched but what is lent.
        if start.checked_add(len).is_none_or(|end| end > lent) {
            return false;
        }
        let Some(index) = loan.claim(len.div_ceil(CHUNK) as u64, BACK) else { return false };
        let range = chunk(index, len);
        let to = addr.wrapping_add(range.start as u64);
        if !write(to, start + range.start..start + range.end) {
            loan.offer.0.failed.store(turn, Ordering::Relaxed);
        }
        true
    }
}

/// A place that is open, until this ends, also if its owner panics.
struct Open<'l, C: Copies> {
    loan: &'l Loan,
    turn: u64,
    copies: &'l mut C,
}

impl<C: Copies> Drop for Open<'_, C> {
    /// Closes the place, and waits until the lender writes nothing there, or has ended.
    fn drop(&mut self) {
        self.loan.place.0.turn.store(self.turn + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.loan.is_written() && !self.copies.waits() {}
    }
}

/// The lender writes to a place until this ends, also if it panics.
struct Writes<'l>(&'l AtomicU32);

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Taker {
    /// What is lent and not taken to its end, if anything is; without what was taken of it.
    #[inline]
    pub(crate) fn offered(&self, loan: &Loan) -> Option<Lent> {
        let offer = &loan.offer.0;
        // With all that was written to the pipe before.
        if offer.number.load(Ordering::Acquire) != self.taken + 1 || self.is_stuck {
            return None;
        }
        let len = (offer.len.load(Ordering::Relaxed) as usize).saturating_sub(self.done);
        let addr = offer.addr.load(Ordering::Relaxed).wrapping_add(self.done as u64);
        (len > 0).then_some(Lent { addr, len })
    }

    /// Whether a loan was ever taken.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_taken(&self) -> bool {
        self.taken > 0
    }

    /// What is lent can't be read, now or later.
    pub(crate) fn give_up(&mut self) {
        self.is_stuck = true;
    }

    /// Copies `len` bytes of what is lent by itself.
    pub(crate) fn take<C: Copies>(&mut self, lent: Lent, len: usize, copies: &mut C) -> Result<(), C::Error> {
        copies.read(lent.addr, 0..len)?;
        self.done += len;
        Ok(())
    }

    /// Copies `len` bytes of what is lent to the place at `addr`, with the lender if that comes; `opened` is called when it can.
    pub(crate) fn take_together<C: Copies>(
        &mut self,
        loan: &Loan,
        lent: Lent,
        (addr, len): (u64, usize),
        copies: &mut C,
        opened: impl FnOnce(),
    ) -> Result<(), C::Error> {
        let (place, count) = (&loan.place.0, len.div_ceil(CHUNK) as u64);
        let words = [
            (&place.addr, addr),
            (&place.start, self.done as u64),
            (&place.len, len as u64),
            (&loan.claimed.0, 0),
        ];
        words.into_iter().for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let turn = self.turn + 1;
        self.turn += 2;
        place.turn.store(turn, Ordering::Release);
        let open = Open { loan, turn, copies };
        opened();
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(index) = loan.claim(count, FRONT)
        {
            let range = chunk(index, len);
            outcome = open.copies.read(lent.addr.wrapping_add(range.start as u64), range);
        }
        drop(open);
        outcome?;
        // It has ended in the middle of a chunk, or could not write one.
        if loan.is_written() || loan.offer.0.failed.load(Ordering::Relaxed) == turn {
            let back = loan.claimed.0.load(Ordering::Relaxed) & u64::from(u32::MAX);
            let first = count.saturating_sub(back) as usize * CHUNK;
            if first < len {
                copies.read(lent.addr.wrapping_add(first as u64), first..len)?;
            }
        }
        self.done += len;
        Ok(())
    }

    /// Whether the loan was taken to its end. If so, the lender is told that its memory is its own again.
    pub(crate) fn ends(&mut self, loan: &Loan) -> bool {
        let is_at_end = self.done as u64 >= loan.offer.0.len.load(Ordering::Relaxed);
        if is_at_end {
            (self.taken, self.done) = (self.taken + 1, 0);
            loan.place.0.taken.store(self.taken, Ordering::Release);
        }
        is_at_end
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
