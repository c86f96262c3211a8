//! A thread that waits sleeps, and wakes when there is a reason to.

use super::driver::{Driver, FOREVER, wait_for};
use crate::Links;
use phalanx_transport::Direction;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

/// While nothing comes, a wait sleeps until its limit. Some waits may end for no reason, but not most.
pub fn a_wait_ends_at_its_deadline(links: &Links) {
    let all = Arc::new(Barrier::new(2));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        let peer = 1 - end.rank();
        end.meet(peer);
        let (begun, mut was_ready) = (Instant::now(), 0);
        for _ in 0..20 {
            was_ready += u32::from(end.sleep(&[(peer, Direction::Recv)], 10 * MS));
        }
        assert!(
            was_ready <= 5,
            "of 20 looks at an idle link, {was_ready} said that something can be received"
        );
        assert!(begun.elapsed() >= 100 * MS, "20 sleeps of 10 ms took {:?}", begun.elapsed());
        all.wait();
        end.meet(peer);
    });
}

/// Another thread of this process ends a wait, also one that has not begun.
pub fn a_waker_ends_a_wait(links: &Links) {
    let all = Arc::new(Barrier::new(2));
    links.run(2, move |end| {
        let mut end = Driver::new(end);
        let peer = 1 - end.rank();
        end.meet(peer);
        for pause in [Duration::ZERO, 20 * MS] {
            let (waker, is_woken) = (end.waker(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(pause);
                    is_woken.store(true, Ordering::Release);
                    waker.wake();
                });
                if pause.is_zero() {
                    std::thread::sleep(20 * MS);
                }
                loop {
                    end.sleep(&[(peer, Direction::Recv)], FOREVER);
                    if is_woken.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
        }
        all.wait();
        end.meet(peer);
    });
}

/// Bytes that come after a rank fell asleep wake it.
pub fn bytes_end_a_wait(links: &Links) {
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        for turn in 0..6u8 {
            if usize::from(turn % 2) == rank {
                std::thread::sleep(15 * MS);
                end.send_all(peer, &[turn]);
            } else {
                assert_eq!(end.recv_exact(peer, 1), [turn]);
            }
        }
    });
}

/// Two ranks that each wait for the other again and again, without a pause: a wake-up between the look and the sleep is not lost.
pub fn no_wake_up_is_missed(links: &Links) {
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let (rank, peer) = (end.rank(), 1 - end.rank());
        for turn in 0..2000u16 {
            if rank == 0 {
                end.send_all(peer, &turn.to_le_bytes());
            }
            // Looks before it sleeps, so that it often does so in the very moment in which the bytes come.
            assert_eq!(end.recv_exact(peer, 2), turn.to_le_bytes());
            if rank == 1 {
                end.send_all(peer, &turn.to_le_bytes());
            }
        }
    });
}

/// Whichever of many peers sends, one wait for all of them ends.
pub fn one_wait_covers_many_links(links: &Links) {
    const WORLD: usize = 6;
    links.run(WORLD, |end| {
        let mut end = Driver::new(end);
        let peers: Vec<_> = (1..WORLD).collect();
        if end.rank() > 0 {
            end.meet(0);
            assert_eq!(end.recv_exact(0, 1), b"?");
            std::thread::sleep(5 * MS);
            return end.send_all(0, b".");
        }
        peers.iter().for_each(|&peer| end.meet(peer));
        let watched: Vec<_> = peers.iter().map(|&peer| (peer, Direction::Recv)).collect();
        for peer in peers {
            end.send_all(peer, b"?");
            let mut byte = [0];
            loop {
                match end.recv(peer, &mut byte).expect("the link stands") {
                    0 => drop(end.sleep(&watched[peer - 1..], FOREVER)),
                    _ => break assert_eq!(byte, *b"."),
                }
            }
        }
    });
}

/// One wait for both directions of a link ends for either.
pub fn one_wait_covers_both_directions(links: &Links) {
    links.run(2, |end| {
        let mut end = Driver::new(end);
        let peer = 1 - end.rank();
        let both = [(peer, Direction::Send), (peer, Direction::Recv)];
        end.meet(peer);
        if end.rank() == 1 {
            std::thread::sleep(10 * MS);
            end.send_all(0, b"first");
            assert_eq!(end.recv_exact(0, 6), b"second");
            return;
        }
        // There is room, and nobody reads: the wait for that ends at once, whatever else it waits for.
        end.sleep(&both, FOREVER);
        assert_eq!(end.recv_exact(1, 5), b"first");
        end.sleep(&both, FOREVER);
        end.send_all(1, b"second");
    });
}

/// Two threads of a rank, each with a wait of its own: the program's and the group's. What one waits for wakes that one, whatever the other does.
pub fn two_threads_may_wait_at_once(links: &Links) {
    links.run(3, |end| {
        let mut end = Driver::new(end);
        if end.rank() > 0 {
            end.meet(0);
            assert_eq!(end.recv_exact(0, 1), b"?");
            std::thread::sleep(10 * MS * end.rank() as u32);
            end.send_all(0, b".");
            // Until rank 0 has heard both.
            return assert_eq!(end.recv_exact(0, 1), b"!");
        }
        (1..3).for_each(|peer| end.meet(peer));
        // Both watch before anybody answers. A link may say that it is ready because of something else.
        let waits = [1, 2].map(|peer| {
            let mut wait = wait_for(&*end.end);
            let is_ready = end.watch(peer, Direction::Recv, &mut wait);
            (peer, wait, is_ready)
        });
        let end = Mutex::new(end);
        std::thread::scope(|scope| {
            for (peer, mut wait, mut is_ready) in waits {
                let end = &end;
                scope.spawn(move || {
                    let lock = || end.lock().expect("nobody panics with it");
                    lock().send_all(peer, b"?");
                    let mut byte = [0];
                    loop {
                        if !is_ready {
                            wait.sleep(FOREVER);
                        }
                        let mut locked = lock();
                        if locked.recv(peer, &mut byte).expect("the link stands") == 1 {
                            break;
                        }
                        wait.clear();
                        is_ready = locked.watch(peer, Direction::Recv, &mut wait);
                    }
                });
            }
        });
        let mut end = end.into_inner().expect("nobody panicked with it");
        (1..3).for_each(|peer| end.send_all(peer, b"!"));
    });
}
