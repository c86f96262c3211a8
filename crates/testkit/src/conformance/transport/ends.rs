//! A rank ends, in order or not: its peers read what it sent, then hear that it is gone, and no link between others is touched.

use super::driver::{Driver, FOREVER, assert_bytes, stream};
use crate::Links;
use phalanx_transport::{Direction, LinkFault};
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Far longer than a rank that is about to wait takes to fall asleep, beside other tests too.
const FALLS_ASLEEP: Duration = Duration::from_millis(200);

/// Unwinds this thread as a panic does, without its words on stderr; the end that `rank` has goes in that.
fn dies(rank: impl FnOnce()) {
    let died = catch_unwind(AssertUnwindSafe(|| {
        rank();
        resume_unwind(Box::new("a rank that dies"));
    }));
    drop(died);
}

/// The end stays the end.
fn assert_closed(end: &mut Driver, peer: usize) {
    for _ in 0..3 {
        assert_eq!(
            end.recv(peer, &mut [0; 8]),
            Err(LinkFault::Closed),
            "a link with rank {peer} that has ended"
        );
    }
    // There is nothing to wait for any more: neither way ends in a sleep.
    end.sleep(&[(peer, Direction::Recv)], FOREVER);
    end.sleep(&[(peer, Direction::Send)], FOREVER);
    assert!(!end.is_linked(peer), "the link with rank {peer} has ended");
}

/// What a rank sent before it ended is read to its last byte, and only then the end: as much as every link holds when nobody reads, after the
/// sender has ended; and more, while it ends.
pub fn what_was_sent_before_the_end_arrives(links: &Links) {
    for (len, is_held) in [(3000, true), (1 << 20, false)] {
        let has_ended = Arc::new(Barrier::new(2));
        links.run(2, move |end| {
            let mut end = Driver::new(end);
            let peer = 1 - end.rank();
            end.meet(peer);
            assert!(end.is_linked(peer), "bytes went both ways");
            // Nobody ends before both have looked.
            end.meet(peer);
            if peer == 0 {
                end.send_all(0, &stream(1, 0, len));
                drop(end);
                if is_held {
                    has_ended.wait();
                }
                return;
            }
            if is_held {
                has_ended.wait();
            }
            let (bytes, fault) = end.recv_to_end(1);
            assert_bytes(&bytes, &stream(1, 0, len), 1);
            assert_eq!(fault, LinkFault::Closed);
            assert_closed(&mut end, 1);
        });
    }
}

/// A half-closed link: this rank finds out by sending that its peer has ended, and still reads what that had sent.
pub fn what_was_sent_is_read_also_after_a_send_failed(links: &Links) {
    let has_ended = Arc::new(Barrier::new(2));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        end.meet(1 - end.rank());
        if end.rank() == 1 {
            end.send_all(0, &stream(1, 0, 3000));
            drop(end);
            has_ended.wait();
            return;
        }
        has_ended.wait();
        let (part, mut taken) = (stream(0, 1, 1 << 20), 0);
        while let Ok(n) = end.send(1, &[IoSlice::new(&part[taken % part.len()..])]) {
            taken += n;
            end.sleep(&[(1, Direction::Send)], Duration::from_millis(10));
        }
        assert!(end.send(1, &[IoSlice::new(&part)]).is_err(), "a link that has failed stays so");
        let (bytes, _) = end.recv_to_end(1);
        assert_bytes(&bytes, &stream(1, 0, 3000), 1);
        assert_closed(&mut end, 1);
    });
}

/// A rank that waits for one whose thread unwinds is woken, and hears that it is gone.
pub fn a_peer_that_dies_ends_a_wait(links: &Links) {
    let wait_next = Arc::new(Barrier::new(3));
    links.run(3, move |end| {
        let mut end = Driver::new(end);
        let rank = end.rank();
        (0..3).filter(|&peer| peer != rank).for_each(|peer| end.meet(peer));
        wait_next.wait();
        if rank == 2 {
            return dies(move || {
                std::thread::sleep(FALLS_ASLEEP);
                drop(end);
            });
        }
        assert_eq!(end.recv_to_end(2), (Vec::new(), LinkFault::Closed));
        assert_closed(&mut end, 2);
        end.meet(1 - rank);
    });
}

/// A rank that waits for room on a link is woken when its reader dies.
pub fn a_peer_that_dies_frees_whoever_sends_to_it(links: &Links) {
    let is_full = Arc::new(Barrier::new(2));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        end.meet(1 - end.rank());
        if end.rank() == 1 {
            return dies(|| {
                // Has begun to read, and reads no more.
                end.recv_exact(0, 100);
                is_full.wait();
                std::thread::sleep(FALLS_ASLEEP);
                drop(end);
            });
        }
        let (part, mut taken, mut was_full) = (stream(0, 1, 1 << 20), 0, false);
        while let Ok(n) = end.send(1, &[IoSlice::new(&part[taken % part.len()..])]) {
            taken += n;
            if n == 0 {
                if !was_full {
                    is_full.wait();
                    was_full = true;
                }
                end.sleep(&[(1, Direction::Send)], FOREVER);
            }
        }
    });
}

/// The end of one rank is no concern of the links between others.
pub fn other_links_live_on(links: &Links) {
    links.run(3, |end| {
        let mut end = Driver::new(end);
        let rank = end.rank();
        (0..3).filter(|&peer| peer != rank).for_each(|peer| end.meet(peer));
        if rank == 2 {
            return;
        }
        let peer = 1 - rank;
        for turn in 0..20 {
            end.send_all(peer, &stream(rank, turn, 40_000));
            assert_bytes(&end.recv_exact(peer, 40_000), &stream(peer, turn, 40_000), peer);
        }
        assert_eq!(end.recv_to_end(2).1, LinkFault::Closed);
        assert!(end.is_linked(peer));
        end.meet(peer);
    });
}

/// Groups are made and dropped without a word; nothing of that hangs, and the next ones are not hurt.
pub fn ends_that_were_never_used_close(links: &Links) {
    for _ in 0..5 {
        links.run(3, drop);
        // Rank 0 talks to rank 1 alone.
        links.run(3, |end| {
            if end.rank() < 2 {
                let mut end = Driver::new(end);
                end.meet(1 - end.rank());
            }
        });
    }
}
