//! What is received is what was sent.

use super::driver::{Driver, FOREVER, assert_bytes, stream};
use crate::Links;
use crate::oracle::Random;
use phalanx_transport::Direction;
use std::io::IoSlice;

/// Each end is that of one rank, in the order in which they were made.
pub fn every_rank_knows_its_place(links: &Links) {
    for world_size in [1, 2, 5] {
        let places = links.run(world_size, |end| (end.rank(), end.world_size(), end.name().is_empty()));
        let expected: Vec<_> = (0..world_size).map(|rank| (rank, world_size, false)).collect();
        assert_eq!(places, expected, "rank, world size, and whether the name is empty");
    }
}

/// A transport takes and gives what it can; the order of the bytes is that in which they were offered.
pub fn bytes_arrive_in_order_whatever_the_lengths(links: &Links) {
    const LEN: usize = 3 << 20;
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        let (out, expected) = (stream(rank, peer, LEN), stream(peer, rank, LEN));
        let (mut sent, mut received) = (0, Vec::with_capacity(LEN));
        let mut random = Random::new(rank as u64);
        let mut buffer = vec![0; 100_000];
        while sent < LEN || received.len() < LEN {
            let mut moved = 0;
            if sent < LEN {
                // In up to four parts, of which some are empty.
                let offered = &out[sent..(sent + 1 + random.below(90_000)).min(LEN)];
                let (left, right) = offered.split_at(random.below(offered.len() + 1));
                let (middle, last) = right.split_at(random.below(3).min(right.len()));
                let parts = [left, middle, &[], last].map(IoSlice::new);
                let n = end.send(peer, &parts).unwrap_or_else(|fault| panic!("sending: {fault}"));
                assert!(n <= offered.len(), "{n} of {} bytes were taken", offered.len());
                (sent, moved) = (sent + n, moved + n);
            }
            if received.len() < LEN {
                let len = 1 + random.below(buffer.len());
                // Of a message that is as long as that, longer than any cache, or of no known one.
                let read = match random.below(3) {
                    0 => end.recv(peer, &mut buffer[..len]),
                    1 => end.recv_part(peer, &mut buffer[..len], len),
                    _ => end.recv_part(peer, &mut buffer[..len], usize::MAX),
                };
                let n = read.unwrap_or_else(|fault| panic!("receiving: {fault}"));
                received.extend_from_slice(&buffer[..n]);
                moved += n;
            }
            if moved == 0 {
                let send = (sent < LEN).then_some((peer, Direction::Send));
                let recv = (received.len() < LEN).then_some((peer, Direction::Recv));
                let watched: Vec<_> = send.into_iter().chain(recv).collect();
                end.sleep(&watched, FOREVER);
            }
        }
        assert_bytes(&received, &expected, peer);
    });
}

/// Neither an empty list of parts nor empty parts are an end, a message or a fault.
pub fn empty_transfers_move_nothing(links: &Links) {
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let peer = 1 - end.rank();
        for _ in 0..3 {
            assert_eq!(end.send(peer, &[]), Ok(0));
            assert_eq!(end.send(peer, &[IoSlice::new(&[]), IoSlice::new(&[])]), Ok(0));
            end.meet(peer);
        }
    });
}

/// Much more than any link holds, offered at once, in both directions.
pub fn large_transfers_arrive_whole(links: &Links) {
    const LEN: usize = (24 << 20) + 1;
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        let (out, mut received, mut done) = (stream(rank, peer, LEN), vec![0; LEN], (0, 0));
        while done != (LEN, LEN) {
            let before = done;
            if done.0 < LEN {
                done.0 += end.send(peer, &[IoSlice::new(&out[done.0..])]).expect("the link stands");
            }
            if done.1 < LEN {
                done.1 += end.recv(peer, &mut received[done.1..]).expect("the link stands");
            }
            if done == before {
                end.sleep(
                    &[(peer, Direction::Send), (peer, Direction::Recv)][usize::from(done.0 == LEN)..],
                    FOREVER,
                );
            }
        }
        assert_bytes(&received, &stream(peer, rank, LEN), peer);
    });
}

/// Eight ranks, all of which begin to talk to all others at the same moment: no link is made twice, and none is taken for another.
pub fn every_pair_has_a_link_of_its_own(links: &Links) {
    const LEN: usize = 150_000;
    links.run(8, |end| {
        let mut end = Driver::new(end);
        let rank = end.rank();
        let peers: Vec<_> = (0..end.world_size()).filter(|&peer| peer != rank).collect();
        let mut sent = vec![0; end.world_size()];
        let mut received = vec![Vec::new(); end.world_size()];
        let out: Vec<_> = (0..end.world_size()).map(|peer| stream(rank, peer, LEN)).collect();
        let mut buffer = vec![0; 20_000];
        loop {
            let (mut watched, mut moved) = (Vec::new(), false);
            for &peer in &peers {
                if sent[peer] < LEN {
                    let n =
                        end.send(peer, &[IoSlice::new(&out[peer][sent[peer]..])]).expect("the link stands");
                    sent[peer] += n;
                    moved |= n > 0;
                    watched.push((peer, Direction::Send));
                }
                if received[peer].len() < LEN {
                    let len = buffer.len().min(LEN - received[peer].len());
                    let n = end.recv(peer, &mut buffer[..len]).expect("the link stands");
                    received[peer].extend_from_slice(&buffer[..n]);
                    moved |= n > 0;
                    watched.push((peer, Direction::Recv));
                }
            }
            if watched.is_empty() {
                break;
            }
            if !moved {
                end.sleep(&watched, FOREVER);
            }
        }
        for &peer in &peers {
            assert_bytes(&received[peer], &stream(peer, rank, LEN), peer);
            assert!(end.is_linked(peer), "bytes went over the link with rank {peer}");
        }
        // A rank that is done does not end before the others have heard it out.
        peers.iter().for_each(|&peer| end.send_all(peer, b"!"));
        peers.iter().for_each(|&peer| assert_eq!(end.recv_exact(peer, 1), b"!"));
    });
}
