//! Loans whose ends are in one thread: who copies what, and what becomes of it if the other end goes away.

use super::*;
use std::cell::RefCell;

/// What is lent, and where it belongs: addresses count from 0.
struct Both {
    loan: Loan,
    lender: RefCell<Lender>,
    taker: Taker,
    lent: Vec<u8>,
    place: RefCell<Vec<u8>>,
    /// Chunks that the lender has written.
    helped: RefCell<usize>,
}

/// The taker's copies; `between` happens before each.
struct Taking<'a, F: FnMut()> {
    both: &'a Parts<'a>,
    between: F,
    has_ended: bool,
}

/// What both ends touch.
struct Parts<'a> {
    lent: &'a [u8],
    place: &'a RefCell<Vec<u8>>,
}

impl<F: FnMut()> Copies for Taking<'_, F> {
    type Error = ();

    fn read(&mut self, addr: u64, range: Range<usize>) -> Result<(), ()> {
        (self.between)();
        if self.has_ended {
            return Err(());
        }
        let from = addr as usize..addr as usize + range.len();
        self.both.place.borrow_mut()[range].copy_from_slice(&self.both.lent[from]);
        Ok(())
    }

    fn waits(&mut self) -> bool {
        self.has_ended = true;
        true
    }
}

impl Both {
    fn new(len: usize) -> Self {
        let lent: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        let mut lender = Lender::default();
        let loan = Loan::new();
        lender.lend(&loan, 0, len);
        Self {
            loan,
            lender: RefCell::new(lender),
            taker: Taker::default(),
            place: RefCell::new(vec![0; len]),
            lent,
            helped: RefCell::new(0),
        }
    }

    /// Takes `len` bytes together; `helps` is how often the lender helps before each copy of the taker, and `can_write` whether it can.
    fn take_together(&mut self, len: usize, helps: usize, can_write: bool) -> Result<(), ()> {
        let Self { loan, lender, taker, lent, place, helped } = self;
        let parts = Parts { lent, place };
        let at = taker.done;
        let help = || {
            for _ in 0..helps {
                let write = |addr: u64, range: Range<usize>| {
                    *helped.borrow_mut() += 1;
                    if can_write {
                        let to = addr as usize..addr as usize + range.len();
                        place.borrow_mut()[to].copy_from_slice(&lent[range]);
                    }
                    can_write
                };
                lender.borrow_mut().help(loan, write);
            }
        };
        let offered = taker.offered(loan).unwrap();
        assert_eq!(offered, Lent { addr: at as u64, len: lent.len() - at });
        let mut copies = Taking { both: &parts, between: help, has_ended: false };
        taker.take_together(loan, offered, (0, len), &mut copies, || {})
    }
}

#[test]
fn the_taker_copies_all_where_the_lender_does_not_come() {
    let len = 5 * CHUNK + 3;
    let mut both = Both::new(len);
    both.take_together(len, 0, true).unwrap();
    assert!(*both.place.borrow() == both.lent);
    assert!(both.taker.ends(&both.loan) && both.taker.offered(&both.loan).is_none());
    assert_eq!(both.lender.borrow_mut().ended(&both.loan), Some(len));
    assert!(!both.lender.borrow().lends());
}

#[test]
fn each_chunk_is_copied_by_one_end() {
    for (helps, expected) in [(1, 3), (2, 4), (9, 5)] {
        let len = 5 * CHUNK + 3;
        let mut both = Both::new(len);
        both.take_together(len, helps, true).unwrap();
        assert!(*both.place.borrow() == both.lent);
        assert_eq!(*both.helped.borrow(), expected, "{helps}");
    }
}

#[test]
fn what_the_lender_could_not_write_the_taker_reads() {
    let len = 4 * CHUNK;
    let mut both = Both::new(len);
    both.take_together(len, 1, false).unwrap();
    assert!(*both.place.borrow() == both.lent && *both.helped.borrow() > 0);
}

#[test]
fn a_loan_is_taken_in_parts() {
    let mut both = Both::new(4 * CHUNK);
    let first = CHUNK + 5;
    both.take_together(first, 1, true).unwrap();
    assert!(both.place.borrow()[..first] == both.lent[..first]);
    assert!(!both.taker.ends(&both.loan) && both.lender.borrow_mut().ended(&both.loan).is_none());
    let rest = 3 * CHUNK - 5;
    both.take_together(rest, 1, true).unwrap();
    assert!(both.place.borrow()[..rest] == both.lent[first..]);
    assert!(both.taker.ends(&both.loan));
}

/// As a process that is killed while it writes.
#[test]
fn what_a_lender_that_has_ended_was_writing_is_not_taken_for_written() {
    let mut both = Both::new(2 * CHUNK);
    both.loan.offer.0.writes.store(1, Ordering::Relaxed);
    both.loan.claimed.0.store(0, Ordering::Relaxed);
    let Both { loan, taker, lent, place, .. } = &mut both;
    let parts = Parts { lent, place };
    let claims = || {
        loan.claim(2, BACK);
    };
    let mut copies = Taking { both: &parts, between: claims, has_ended: false };
    let offered = taker.offered(loan).unwrap();
    assert!(taker.take_together(loan, offered, (0, 2 * CHUNK), &mut copies, || {}).is_err());
    assert_eq!(taker.done, 0);
}

#[test]
fn nonsense_of_the_other_end_leads_nowhere() {
    let mut both = Both::new(2 * CHUNK);
    let place = &both.loan.place.0;
    for (start, len) in [(1, 2 * CHUNK), (usize::MAX, 2), (0, usize::MAX), (2 * CHUNK, 1)] {
        place.start.store(start as u64, Ordering::Relaxed);
        place.len.store(len as u64, Ordering::Relaxed);
        place.turn.store(1, Ordering::Relaxed);
        let write = |_: u64, range: Range<usize>| panic!("{range:?}");
        assert!(!both.lender.borrow_mut().help(&both.loan, write), "{start}, {len}");
    }
    for number in [0, 2, u64::MAX] {
        both.loan.offer.0.number.store(number, Ordering::Relaxed);
        assert_eq!(both.taker.offered(&both.loan), None, "{number}");
    }
    both.loan.offer.0.number.store(1, Ordering::Relaxed);
    both.taker.give_up();
    assert_eq!(both.taker.offered(&both.loan), None);
}

#[test]
fn a_place_does_not_stay_open_if_its_owner_panics() {
    let mut both = Both::new(2 * CHUNK);
    let Both { loan, taker, lent, place, .. } = &mut both;
    let parts = Parts { lent, place };
    let mut copies = Taking { both: &parts, between: || panic!("on purpose"), has_ended: false };
    let offered = taker.offered(loan).unwrap();
    let take = || taker.take_together(loan, offered, (0, 2 * CHUNK), &mut copies, || {});
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(take)).is_err());
    assert_eq!(loan.place.0.turn.load(Ordering::Relaxed) % 2, 0);
}
