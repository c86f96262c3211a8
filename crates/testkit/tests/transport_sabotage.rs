//! The suite for transports notices what can be wrong with one: each of its cases fails over links that are broken on purpose.

use phalanx_testkit::conformance::transport::{bytes, ends, pressure, waits};
use phalanx_testkit::{End, Links};
use phalanx_transport::{Direction, LinkFault, Transport, Wait, WakeSource};
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    /// Nothing.
    Sound,
    /// Every rank takes itself for rank 0.
    Rank,
    /// Two bytes of what is received change places.
    Order,
    /// A byte is sent twice.
    Again,
    /// An empty part counts as a byte.
    Empty,
    /// Bytes are taken whether or not there is room.
    Boundless,
    /// So much is taken at once and no more, as if the link were busy.
    Busy,
    /// A full link takes nothing for other peers either.
    OneForAll,
    /// What is for a peer goes to the next.
    WrongPeer,
    /// A link that has nothing says that it has.
    NeverSleeps,
    /// Whoever is told to wait is not told when that is over.
    Forgets(Direction),
    /// Only the first of the links that are watched is.
    WatchesOne,
    /// A second waiter takes the place of the first.
    OneWaiter,
    /// The end is told before the last bytes.
    CutsShort,
    /// The end is never told.
    NoEnd,
    /// The end is told once.
    EndsOnce,
    /// A send that fails takes what was to be received with it.
    SendEnds,
    /// The end of one link ends all.
    AllEnd,
    /// Only a call ends a sleep.
    DeafToWakers,
    /// Dropped without a word, and never used.
    DropHangs,
}

/// A link that works, but for the harm.
struct Broken {
    inner: End,
    harm: Harm,
    /// Peers whose end was seen.
    ended: Vec<bool>,
    /// Whether some link was full.
    full: bool,
    used: bool,
    waiters: usize,
}

impl Transport for Broken {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        if self.harm == Harm::Rank { 0 } else { self.inner.rank() }
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn send(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        self.used = true;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        match self.harm {
            Harm::Empty if len == 0 => return Ok(1),
            Harm::OneForAll if self.full => return Ok(0),
            Harm::Busy if len > 1 => {
                let first = parts.iter().find(|part| !part.is_empty()).expect("there are bytes");
                return self.inner.send(peer, &[IoSlice::new(&first[..first.len().min(64)])]);
            }
            Harm::SendEnds if self.ended[peer] => return Err(LinkFault::Closed),
            _ => {}
        }
        let world_size = self.world_size();
        let to = match self.harm {
            Harm::WrongPeer if world_size > 2 => {
                let next = (peer + 1) % world_size;
                if next == self.rank() { (next + 1) % world_size } else { next }
            }
            _ => peer,
        };
        let taken = match self.inner.send(to, parts) {
            Err(fault) => {
                self.ended[peer] = true;
                return Err(fault);
            }
            Ok(taken) => taken,
        };
        self.full |= taken == 0 && len > 0;
        Ok(match self.harm {
            Harm::Boundless => len,
            Harm::Again if taken > 1 => taken - 1,
            _ => taken,
        })
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        self.used = true;
        if (self.harm == Harm::SendEnds && self.ended[peer])
            || (self.harm == Harm::AllEnd && self.ended.contains(&true))
        {
            return Err(LinkFault::Closed);
        }
        if self.harm == Harm::CutsShort && !self.inner.is_linked(peer) {
            return Err(LinkFault::Closed);
        }
        match self.inner.recv(peer, buffer) {
            Err(_) if self.harm == Harm::NoEnd => Ok(0),
            Err(_) if self.harm == Harm::EndsOnce && self.ended[peer] => Ok(0),
            Err(fault) => {
                self.ended[peer] = true;
                Err(fault)
            }
            Ok(n) => {
                if self.harm == Harm::Order && n > 1 {
                    buffer[..n].rotate_left(1);
                }
                Ok(n)
            }
        }
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.inner.is_linked(peer)
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        match self.harm {
            Harm::NeverSleeps => true,
            Harm::Forgets(deaf) if deaf == direction => self.is_ready(peer, direction),
            Harm::WatchesOne if self.world_size() > 3 && peer != 1 => false,
            Harm::OneWaiter
                if self.world_size() == 3 && self.rank() == 0 && peer == 2 && self.waiters > 0 =>
            {
                false
            }
            Harm::OneWaiter => {
                self.waiters += 1;
                self.inner.watch(peer, direction, wait)
            }
            // A waker that nobody wakes.
            Harm::DeafToWakers => {
                *wait = Wait::new().expect("descriptors");
                self.inner.watch(peer, direction, wait)
            }
            _ => self.inner.watch(peer, direction, wait),
        }
    }

    fn wake_source(&self) -> Option<Arc<dyn WakeSource>> {
        self.inner.wake_source()
    }
}

impl Broken {
    /// As `watch`, without leaving anything that would be woken.
    fn is_ready(&mut self, peer: usize, direction: Direction) -> bool {
        let mut nobody = Wait::new().expect("descriptors");
        self.inner.watch(peer, direction, &mut nobody)
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.harm == Harm::DropHangs && !self.used {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}

type Case = fn(&Links);

/// Each case of the suite, with harms that it must notice.
#[rustfmt::skip]
const NOTICED: &[(&str, Case, &[Harm])] = &[
    ("every_rank_knows_its_place", bytes::every_rank_knows_its_place, &[Harm::Rank]),
    ("bytes_arrive_in_order", bytes::bytes_arrive_in_order_whatever_the_lengths, &[Harm::Order, Harm::Again]),
    ("empty_transfers_move_nothing", bytes::empty_transfers_move_nothing, &[Harm::Empty]),
    ("large_transfers_arrive_whole", bytes::large_transfers_arrive_whole, &[Harm::Order, Harm::Boundless]),
    ("every_pair_has_a_link", bytes::every_pair_has_a_link_of_its_own, &[Harm::WrongPeer]),
    ("a_sender_is_held_back", pressure::a_sender_is_held_back_until_its_peer_reads, &[Harm::Boundless, Harm::Forgets(Direction::Send)]),
    ("a_full_link_holds_up_no_other", pressure::a_full_link_holds_up_no_other, &[Harm::OneForAll]),
    ("an_idle_link_takes_a_head", pressure::an_idle_link_takes_a_head_at_once, &[Harm::Busy]),
    ("a_wait_ends_at_its_deadline", waits::a_wait_ends_at_its_deadline, &[Harm::NeverSleeps]),
    ("a_waker_ends_a_wait", waits::a_waker_ends_a_wait, &[Harm::DeafToWakers]),
    ("bytes_end_a_wait", waits::bytes_end_a_wait, &[Harm::Forgets(Direction::Recv)]),
    ("no_wake_up_is_missed", waits::no_wake_up_is_missed, &[Harm::Forgets(Direction::Recv)]),
    ("one_wait_covers_many_links", waits::one_wait_covers_many_links, &[Harm::WatchesOne]),
    ("one_wait_covers_both_directions", waits::one_wait_covers_both_directions, &[Harm::Forgets(Direction::Recv)]),
    ("two_threads_may_wait_at_once", waits::two_threads_may_wait_at_once, &[Harm::OneWaiter]),
    ("what_was_sent_before_the_end", ends::what_was_sent_before_the_end_arrives, &[Harm::CutsShort, Harm::EndsOnce]),
    ("what_was_sent_is_read_also", ends::what_was_sent_is_read_also_after_a_send_failed, &[Harm::SendEnds]),
    ("a_peer_that_dies_ends_a_wait", ends::a_peer_that_dies_ends_a_wait, &[Harm::NoEnd, Harm::Forgets(Direction::Recv)]),
    ("a_peer_that_dies_frees", ends::a_peer_that_dies_frees_whoever_sends_to_it, &[Harm::Forgets(Direction::Send)]),
    ("other_links_live_on", ends::other_links_live_on, &[Harm::AllEnd]),
    ("ends_that_were_never_used_close", ends::ends_that_were_never_used_close, &[Harm::DropHangs]),
];

/// Links in memory, broken in this way.
fn broken(harm: Harm) -> Links {
    Links::thread().map(move |inner| {
        let ended = vec![false; inner.world_size()];
        Box::new(Broken { inner, harm, ended, full: false, used: false, waiters: 0 })
    })
}

#[test]
fn every_case_notices_what_it_is_for() {
    std::thread::scope(|scope| {
        for &(name, case, harms) in NOTICED {
            scope.spawn(move || {
                for &harm in harms {
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        case(&broken(harm).watchdog(Duration::from_secs(3)));
                    }));
                    assert!(outcome.is_err(), "{name} passed over links with {harm:?}");
                }
            });
        }
    });
}

/// The wrapper itself harms nothing: what the cases notice is the harm.
#[test]
fn links_in_which_nothing_is_broken_pass() {
    for (_, case, _) in NOTICED {
        case(&broken(Harm::Sound));
    }
}
