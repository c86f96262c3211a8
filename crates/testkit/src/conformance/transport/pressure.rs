//! A link holds so much and no more, and that concerns no other link.

use super::driver::{Driver, assert_bytes, stream};
use crate::Links;
use phalanx_transport::{Direction, HEAD_LEN_MAX};
use std::io::IoSlice;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

/// More than a link may hold. The systems' buffers are some MiB.
const HELD_MAX: usize = 96 << 20;
/// How long nothing must be taken for a link to be full: what the system holds may grow for a while.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// What [`fill`] sends again and again.
fn part(from: usize, to: usize) -> Vec<u8> {
    stream(from, to, 1 << 20)
}

/// Sends until the link takes nothing more; how much it took.
fn fill(end: &mut Driver, peer: usize) -> usize {
    let part = part(end.rank(), peer);
    let (mut taken, mut refused) = (0, 0);
    while refused < 3 {
        // Bytes that were not taken are offered again.
        match end.send(peer, &[IoSlice::new(&part[taken % part.len()..])]).expect("the link stands") {
            0 => {
                refused += 1;
                std::thread::sleep(QUIET_TIME / 2);
            }
            n => (taken, refused) = (taken + n, 0),
        }
        assert!(taken <= HELD_MAX, "nobody reads, and the link took {taken} bytes");
    }
    taken
}

/// A rank that sends faster than its peer reads is held back, in a sleep that ends when there is room again.
pub fn a_sender_is_held_back_until_its_peer_reads(links: &Links) {
    let is_full = Arc::new(Barrier::new(2));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        end.meet(peer);
        if rank == 0 {
            let taken = fill(&mut end, 1);
            end.sleep(&[(1, Direction::Send)], QUIET_TIME);
            is_full.wait();
            let part = part(0, 1);
            end.send_all(1, &part[taken % part.len()..]);
            end.send_all(1, &(taken as u64).to_le_bytes());
            end.recv_exact(1, 1);
        } else {
            is_full.wait();
            std::thread::sleep(QUIET_TIME / 2);
            let part = part(0, 1);
            // Whole parts, then how much of them had been taken before this rank began to read.
            let (mut parts, mut first) = (0, end.recv_exact(0, 8));
            while first == part[..8] {
                assert_bytes(&end.recv_exact(0, part.len() - 8), &part[8..], 0);
                (parts, first) = (parts + 1, end.recv_exact(0, 8));
            }
            let taken = u64::from_le_bytes(first.try_into().expect("eight bytes")) as usize;
            assert_eq!(parts, taken / part.len() + 1, "whole parts, of {taken} bytes that were taken first");
            end.send_all(0, b"!");
        }
    });
}

/// A peer that does not read holds up only those bytes that are for it.
pub fn a_full_link_holds_up_no_other(links: &Links) {
    let is_done = Arc::new(Barrier::new(3));
    links.run(3, move |end| {
        let mut end = Driver::new(end);
        let rank = end.rank();
        (0..3).filter(|&peer| peer != rank).for_each(|peer| end.meet(peer));
        let taken = if rank == 0 { fill(&mut end, 1) } else { 0 };
        if rank != 1 {
            let peer = 2 - rank;
            for turn in 0..50 {
                let (ours, theirs) = (stream(rank, turn, 5000), stream(peer, turn, 5000));
                end.send_all(peer, &ours);
                assert_bytes(&end.recv_exact(peer, theirs.len()), &theirs, peer);
            }
            // Also in the other direction of the full link.
            if rank == 0 {
                assert_eq!(end.recv_exact(1, 5), b"hello");
            }
        } else {
            end.send_all(0, b"hello");
        }
        is_done.wait();
        match rank {
            0 => {
                end.send_all(2, &(taken as u64).to_le_bytes());
                end.recv_exact(1, 1);
            }
            1 => {
                let taken = end.recv_exact(2, 8);
                let taken = u64::from_le_bytes(taken.try_into().expect("eight bytes")) as usize;
                assert_bytes(
                    &end.recv_exact(0, taken),
                    &part(0, 1).into_iter().cycle().take(taken).collect::<Vec<_>>(),
                    0,
                );
                end.send_all(0, b"!");
                end.send_all(2, b"!");
            }
            _ => {
                let taken = end.recv_exact(0, 8);
                end.send_all(1, &taken);
                end.recv_exact(1, 1);
            }
        }
    });
}

/// All that stands before the payload of a frame goes at once over a link on which nothing waits, whether or not its peer reads.
pub fn an_idle_link_takes_a_head_at_once(links: &Links) {
    let all = Arc::new(Barrier::new(4));
    links.run(4, move |end| {
        let mut end = Driver::new(end);
        let rank = end.rank();
        let peers: Vec<_> = (0..4).filter(|&peer| peer != rank).collect();
        peers.iter().for_each(|&peer| end.meet(peer));
        for &peer in &peers {
            let head = stream(rank, peer, HEAD_LEN_MAX);
            let taken = end.send(peer, &[IoSlice::new(&head)]).expect("the link stands");
            assert_eq!(taken, HEAD_LEN_MAX, "bytes of a head that were taken at once");
        }
        all.wait();
        for &peer in &peers {
            assert_bytes(&end.recv_exact(peer, HEAD_LEN_MAX), &stream(peer, rank, HEAD_LEN_MAX), peer);
        }
    });
}

/// A link takes all bytes that are [sent at once](phalanx_transport::Transport::send_at_once), or none of them.
pub fn what_is_sent_at_once_is_sent_whole_or_not_at_all(links: &Links) {
    let (is_full, all_sent) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(Vec::new())));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        end.meet(peer);
        if rank == 0 {
            let mut all = Vec::new();
            for len in [1, 60, 100, 1000, 5000].into_iter().cycle().take(1000) {
                let bytes = stream(0, 1, len);
                let (head, body) = bytes.split_at(len / 3);
                let parts = [head, body].map(IoSlice::new);
                if end.send_at_once(1, &parts).expect("the link stands") {
                    all.extend(bytes);
                }
            }
            *all_sent.lock().expect("nobody panicked") = all;
            is_full.wait();
            end.recv_exact(1, 1);
        } else {
            is_full.wait();
            let all = std::mem::take(&mut *all_sent.lock().expect("nobody panicked"));
            assert_bytes(&end.recv_exact(0, all.len()), &all, 0);
            end.send_all(0, b"!");
        }
    });
}
