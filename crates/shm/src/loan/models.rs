//! The protocol of loans under every order in which the two ends can meet.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    loan: Loan,
    /// Two chunks of the taker's memory, each of one word. loom's cell panics if both ends touch one at once.
    place: [UnsafeCell<u64>; 2],
}

struct Taking<'s>(&'s Shared);

impl Copies for Taking<'_> {
    type Error = ();

    fn read(&mut self, addr: u64, range: Range<usize>) -> Result<(), ()> {
        // SAFETY: loom checks what is claimed here.
        self.0.place[range.start / CHUNK].with_mut(|chunk| unsafe { *chunk = addr });
        Ok(())
    }

    fn waits(&mut self) -> bool {
        thread::yield_now();
        false
    }
}

/// Takes a loan of two chunks at this address.
fn take(shared: &Shared, taker: &mut Taker, addr: u64) {
    let lent = loop {
        match taker.offered(&shared.loan) {
            Some(lent) => break lent,
            None => thread::yield_now(),
        }
    };
    taker.take_together(&shared.loan, lent, (0, 2 * CHUNK), &mut Taking(shared), || {}).unwrap();
    // The memory is its owner's again: nobody else touches it.
    for (i, chunk) in shared.place.iter().enumerate() {
        // SAFETY: loom checks what is claimed here.
        let found = chunk.with_mut(|chunk| unsafe { std::mem::take(&mut *chunk) });
        assert_eq!(found, addr + (i * CHUNK) as u64, "of this loan, by whichever end");
    }
    assert!(taker.ends(&shared.loan));
}

#[test]
fn all_is_copied_once_and_nobody_writes_to_a_closed_place() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Shared { loan: Loan::new(), place: [UnsafeCell::new(0), UnsafeCell::new(0)] });
        let theirs = shared.clone();
        let lender = thread::spawn(move || {
            let mut lender = Lender::default();
            for addr in [1, 1 << 32] {
                lender.lend(&theirs.loan, addr, 2 * CHUNK);
                while lender.ended(&theirs.loan).is_none() {
                    let write = |to: u64, range: Range<usize>| {
                        // SAFETY: loom checks what is claimed here.
                        theirs.place[to as usize / CHUNK]
                            .with_mut(|chunk| unsafe { *chunk = addr + range.start as u64 });
                        true
                    };
                    if !lender.help(&theirs.loan, write) {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut taker = Taker::default();
        take(&shared, &mut taker, 1);
        take(&shared, &mut taker, 1 << 32);
        lender.join().unwrap();
    });
}
