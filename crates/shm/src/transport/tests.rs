//! Pipes between two ranks, which are threads of this process or one thread: what arrives, who is woken, and what is lent.

use super::*;
use crate::create;
use phalanx_transport::Waker;
use std::time::Instant;

fn pair() -> [ShmTransport; 2] {
    let file = create(pipes_len(2)).unwrap();
    [0, 1].map(|rank| ShmTransport::join(&file, rank, 2).unwrap())
}

/// A small generator of lengths and bytes.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// Sleeps until bytes can move.
fn wait(end: &mut ShmTransport, direction: Direction, wait: &mut Wait) {
    let peer = 1 - end.rank;
    if !end.watch(peer, direction, wait) {
        wait.sleep(Duration::from_secs(20));
    }
}

fn on_door(end: &ShmTransport) -> Wait {
    Wait::on(Waker::at(end.wake_source().unwrap()))
}

#[test]
fn a_rank_joins_once() {
    let file = create(pipes_len(2)).unwrap();
    let _one = ShmTransport::join(&file, 1, 2).unwrap();
    let error = ShmTransport::join(&file, 1, 2).unwrap_err();
    assert!(error.to_string().contains("as rank 1, as another has"), "{error}");
    let _zero = ShmTransport::join(&file, 0, 2).unwrap();
}

#[test]
fn bytes_arrive_in_order_whatever_the_lengths_and_whoever_sleeps() {
    const TOTAL: usize = 10 << 20;
    let byte = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 16) as u8;
    let [mut zero, mut one] = pair();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut sent, mut seed, mut waiting) = (0, 1, on_door(&zero));
            while sent < TOTAL {
                let longest = if random(&mut seed).is_multiple_of(8) { 100_000 } else { 300 };
                let len = (random(&mut seed) % longest).min(TOTAL - sent);
                let bytes: Vec<u8> = (sent..sent + len).map(byte).collect();
                let (head, body) = bytes.split_at(len / 3);
                let n = zero.send(1, &[IoSlice::new(head), IoSlice::new(body)]).unwrap();
                sent += n;
                if n < len {
                    wait(&mut zero, Direction::Send, &mut waiting);
                }
            }
        });
        let (mut got, mut seed, mut waiting) = (0, 2, on_door(&one));
        let mut buffer = vec![0; 300_000];
        loop {
            let len = 1 + random(&mut seed) % buffer.len();
            match one.recv(0, &mut buffer[..len]) {
                Ok(0) => wait(&mut one, Direction::Recv, &mut waiting),
                Ok(n) => {
                    assert!(buffer[..n].iter().enumerate().all(|(i, &b)| b == byte(got + i)));
                    got += n;
                }
                Err(fault) => break assert_eq!((fault, got), (LinkFault::Closed, TOTAL)),
            }
        }
    });
}

/// Sends `bytes` in frames with a head of some bytes, as the wire does, and waits where nothing is taken.
fn send_all(end: &mut ShmTransport, bytes: &[u8]) -> Result<(), LinkFault> {
    let (mut done, mut waiting) = (0, on_door(end));
    while done < bytes.len() {
        let head = if done == 0 { 40 } else { 0 };
        let (head, body) = bytes[done..].split_at(head.min(bytes.len() - done));
        match end.send(1 - end.rank, &[IoSlice::new(head), IoSlice::new(body)])? {
            0 => wait(end, Direction::Send, &mut waiting),
            n => done += n,
        }
    }
    Ok(())
}

#[test]
fn long_messages_arrive_whole_and_in_order_however_they_are_read() {
    let [mut zero, mut one] = pair();
    let lens = [3 << 20, LEND_BYTES + 40, 17, LEND_BYTES - 1, 1 << 20, 5 << 20, LEND_BYTES + 41, 3];
    let message = |round: usize, len: usize| -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ round as u8).collect()
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (round, len) in lens.into_iter().cycle().take(40).enumerate() {
                send_all(&mut zero, &message(round, len)).unwrap();
            }
        });
        let (mut seed, mut waiting) = (3, on_door(&one));
        for (round, len) in lens.into_iter().cycle().take(40).enumerate() {
            let (mut got, mut done) = (vec![0; len], 0);
            while done < len {
                // All that is left, or some of it.
                let most = [len, 10_000, CHUNK, 300_000][random(&mut seed) % 4].min(len - done);
                match one.recv(0, &mut got[done..done + most]).unwrap() {
                    0 => wait(&mut one, Direction::Recv, &mut waiting),
                    n => done += n,
                }
            }
            assert!(got == message(round, len), "message {round} of {len} bytes");
        }
        let link = one.links[0].as_ref().unwrap();
        assert!(link.taker.has_taken(), "some were lent");
    });
}

#[test]
fn what_is_longer_than_the_caches_is_timed_on_its_way_out_of_the_ring() {
    let [mut zero, mut one] = pair();
    let long = vec![7; 1 << 20];
    for (whole, is_timed) in [(1000, false), (long.len(), true)] {
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(&mut zero, &long).unwrap());
            let (mut got, mut done, mut waiting) = (vec![0; long.len()], 0, on_door(&one));
            while done < long.len() {
                // Too little for a loan to be welcome.
                let end = long.len().min(done + LEND_BYTES - 1);
                match one.recv_part(0, &mut got[done..end], whole).unwrap() {
                    0 => wait(&mut one, Direction::Recv, &mut waiting),
                    n => done += n,
                }
            }
            assert!(got == long);
        });
        assert_eq!(one.links[0].as_ref().unwrap().incoming.has_long_reads(), is_timed, "of {whole} bytes");
    }
}

#[test]
fn what_was_lent_and_withdrawn_is_not_taken() {
    let [mut zero, mut one] = pair();
    let bytes = vec![7; 2 * LEND_BYTES];
    let mut got = vec![0; bytes.len()];
    // Says that loans are welcome.
    assert_eq!(one.recv(0, &mut got), Ok(0));
    assert_eq!(zero.send(1, &[IoSlice::new(&bytes[..8]), IoSlice::new(&bytes[8..])]), Ok(8));
    assert_eq!(one.recv(0, &mut got), Ok(8));
    zero.withdraw();
    drop(bytes);
    assert_eq!(one.recv(0, &mut got[8..]), Ok(0));
    let mut waiting = on_door(&one);
    assert!(!one.watch(0, Direction::Recv, &mut waiting), "nothing comes any more");
    drop(zero);
    assert_eq!(one.recv(0, &mut got[8..]), Err(LinkFault::Closed));
}

#[test]
fn a_lender_hears_that_the_other_end_has_closed() {
    let [mut zero, mut one] = pair();
    let bytes = vec![7; 2 * LEND_BYTES];
    assert_eq!(one.recv(0, &mut vec![0; LEND_BYTES]), Ok(0));
    assert_eq!(zero.send(1, &[IoSlice::new(&bytes)]), Ok(0));
    assert_eq!(zero.send_at_once(1, &[IoSlice::new(&[7])]), Ok(false), "nothing goes past what is lent");
    let mut waiting = on_door(&zero);
    assert!(!zero.watch(1, Direction::Send, &mut waiting));
    drop(one);
    assert!(zero.watch(1, Direction::Send, &mut waiting));
    assert_eq!(zero.send(1, &[IoSlice::new(&bytes)]), Err(LinkFault::Closed));
}

#[test]
fn local_threads_ring_as_well_and_it_is_remembered() {
    let [mut zero, _one] = pair();
    let mut waiting = on_door(&zero);
    let begun = Instant::now();
    waiting.waker().clone().wake();
    wait(&mut zero, Direction::Recv, &mut waiting);
    assert!(begun.elapsed() < Duration::from_secs(15), "it had been woken before");
    let waker = waiting.waker().clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        let begun = Instant::now();
        wait(&mut zero, Direction::Recv, &mut waiting);
        assert!(begun.elapsed() < Duration::from_secs(15));
    });
    let begun = Instant::now();
    waiting.sleep(Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(10), "and is heard once");
}

#[test]
fn who_waits_for_a_rank_that_closes_is_woken() {
    let [mut zero, one] = pair();
    let mut waiting = on_door(&zero);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(one);
        });
        let begun = Instant::now();
        let fault = loop {
            match zero.recv(1, &mut [0; 4]) {
                Ok(_) => wait(&mut zero, Direction::Recv, &mut waiting),
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, LinkFault::Closed);
        assert!(begun.elapsed() < Duration::from_secs(15));
    });
    assert_eq!(zero.send(1, &[IoSlice::new(b"hello")]), Err(LinkFault::Closed));
    assert!(!zero.is_linked(1));
}

#[test]
fn memory_of_the_pipes_is_bounded() {
    for world_size in [2, 3, 8, 64, 128, 1000] {
        let of_a_rank = pipes_len(world_size) / world_size;
        assert!(of_a_rank <= (5 << 20), "{world_size} ranks: {of_a_rank} bytes each");
        assert!(ring_len(world_size).is_power_of_two());
    }
    assert_eq!(ring_len(2), RING_LEN_MAX);
    assert_eq!(ring_len(2000), RING_LEN_MIN);
}
