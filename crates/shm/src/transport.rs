//! The pipes between the ranks of a group on one host, as a transport.
//!
//! They lie in a segment of their own:
//!
//! ```text
//! | rank 0 | … | rank P-1 | pipe 0→0, 0→1 … 0→P-1, 1→0 … | ring 0→0, 0→1 … |
//! ```
//!
//! Nobody touches the pipe from a rank to itself, so it takes addresses but no memory; nor does any other take some before it is used.

use crate::cells::{Cells, Hand};
use crate::futex::Futex;
use crate::letters::{FEW_LETTERS, MANY_LETTERS};
use crate::memory::Memory;
use crate::pipe::{End, Pipe, Room, pipe_len};
use crate::span::Span;
use crate::staging_probe::lines_are_handed_back;
use crate::sync::{AtomicU32, Ordering};
use phalanx_core::{Error, Result};
use phalanx_transport::{Direction, LinkFault, OwnerProcess, Transport, Wait, WakeSource};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the longest ring. A quarter of it was a quarter slower from 64 KiB on, because the ends wait for each other; four
/// times as much was no faster.
const RING_LEN_MAX: usize = 256 << 10;
/// Bytes of the shortest ring.
const RING_LEN_MIN: usize = 4 << 10;
// What `Transport` asks for.
const _: () = assert!(RING_LEN_MIN >= phalanx_transport::HEAD_LEN_MAX);
/// Bytes of all rings that a rank writes, unless they would be shorter than the shortest.
const RINGS_LEN_MAX: usize = 4 << 20;

const PAGE: usize = 4096;

/// The words that a rank writes for all others. All zero at first.
#[repr(C, align(128))]
#[derive(Debug)]
struct Rank {
    /// Whether a process has joined as this rank.
    joined: AtomicU32,
    /// Whether the rank's ends are closed; what it wrote can still be read.
    closed: AtomicU32,
    /// Its threads sleep on this.
    waker: Futex,
}

const fn ring_len(world_size: usize) -> usize {
    let mut len = RING_LEN_MAX;
    while len > RING_LEN_MIN && len * world_size > RINGS_LEN_MAX {
        len /= 2;
    }
    len
}

/// Whether pairs may have cells: only where their rings are the longest.
const fn may_have_cells(world_size: usize) -> bool {
    ring_len(world_size) == RING_LEN_MAX
}

const fn letters(world_size: usize) -> usize {
    if may_have_cells(world_size) { MANY_LETTERS } else { FEW_LETTERS }
}

const fn rings_offset(world_size: usize) -> usize {
    let pipes = world_size * world_size * pipe_len(letters(world_size));
    (world_size * size_of::<Rank>() + pipes).next_multiple_of(PAGE)
}

/// Bytes of the segment with the pipes of a group: about 512 KiB a rank for two ranks, and at most 4 MiB a rank up to
/// a thousand ranks. Memory is taken page by page, for the pipes that are used.
pub const fn pipes_len(world_size: usize) -> usize {
    rings_offset(world_size) + world_size * world_size * ring_len(world_size)
}

/// The mapped segment.
#[derive(Debug)]
struct Segment {
    memory: Memory,
    world_size: usize,
    /// What follows from the number of ranks, computed once: the letters of a pipe, where the rings begin, and the length of each.
    letters: usize,
    rings_offset: usize,
    ring_len: usize,
}

impl Segment {
    fn rank(&self, rank: usize) -> &Rank {
        assert!(rank < self.world_size);
        let at = self.memory.at(rank * size_of::<Rank>(), size_of::<Rank>()).cast::<Rank>();
        // SAFETY: mapped for as long as `self`, aligned (the mapping is, to a page), zero or written as atomics only.
        unsafe { at.as_ref() }
    }

    fn index(&self, from: usize, to: usize) -> usize {
        assert!(from < self.world_size && to < self.world_size);
        from * self.world_size + to
    }

    fn pipe(&self, from: usize, to: usize) -> &Pipe {
        let len = pipe_len(self.letters);
        let at = self.memory.at(self.world_size * size_of::<Rank>() + self.index(from, to) * len, len);
        // A pointer to what ends with a slice has that slice's length.
        let pipe = std::ptr::slice_from_raw_parts(at.as_ptr(), self.letters) as *const Pipe;
        // SAFETY: mapped for as long as `self`, as long as a pipe with so many letters is, aligned (all sizes are multiples of 128), zero or
        // written as atomics only.
        unsafe { &*pipe }
    }

    fn ring(&self, from: usize, to: usize) -> Span {
        let len = self.ring_len;
        let at = self.memory.at(self.rings_offset + self.index(from, to) * len, len);
        // SAFETY: mapped for as long as the transport, whose ends alone use it; between the two ends the counters
        // of the pipe, or the owner of a cell, say whose each byte is.
        unsafe { Span::new(at.as_ptr(), len) }
    }

    /// Through what bytes go from rank to rank. Cells take the second half of both rings.
    fn room(&self, from: usize, to: usize, has_cells: bool) -> Room {
        let ring = self.ring(from, to);
        if !has_cells {
            return Room { ring, cells: Cells::NONE };
        }
        let len = ring.len();
        let rings = [self.ring(from.min(to), from.max(to)), self.ring(from.max(to), from.min(to))];
        let cells = Cells::new(rings.map(|ring| ring.part(len / 2..len)));
        Room { ring: ring.part(0..len / 2), cells }
    }
}

/// What one rank knows of the two pipes between it and another.
#[derive(Debug)]
struct Link {
    outgoing: End,
    incoming: End,
    has_cells: bool,
    hand: Hand,
}

impl Link {
    /// Nothing was moved. Whoever makes its link first decides whether the pair has cells.
    #[cold]
    fn new(segment: &Segment, rank: usize, peer: usize) -> Self {
        let len = segment.ring_len;
        let wants_cells = may_have_cells(segment.world_size) && !lines_are_handed_back();
        let has_cells = segment.pipe(rank.min(peer), rank.max(peer)).has_cells(wants_cells);
        let capacity = if has_cells { len / 2 } else { len };
        Self {
            outgoing: End::new(Direction::Send, capacity),
            incoming: End::new(Direction::Recv, capacity),
            has_cells,
            hand: Hand::of_end(usize::from(rank > peer)),
        }
    }
}

/// The waker on which the threads of one rank sleep.
#[derive(Debug)]
struct RankWaker {
    segment: Arc<Segment>,
    rank: usize,
}

impl RankWaker {
    fn futex(&self) -> &Futex {
        &self.segment.rank(self.rank).waker
    }
}

impl WakeSource for RankWaker {
    fn wakes(&self) -> u32 {
        self.futex().value()
    }

    fn wake(&self) {
        self.futex().bump();
    }

    fn sleep(&self, wakes: u32, limit: Duration) {
        self.futex().wait(wakes, limit);
    }
}

/// One rank's ends of the pipes between it and the others of a group on one host.
///
/// Dropping it closes them: the others read what was written, then find them [`Closed`](LinkFault::Closed). A rank that is
/// killed closes nothing; who waits for it must be told by others, who wake its [`wake_source`](Transport::wake_source).
///
/// # Cost
/// A message is copied twice. There is no system call unless the peer sleeps, which is woken with one.
///
/// # Examples
/// ```
/// # fn main() -> phalanx_core::Result<()> {
/// use phalanx_shm::{ShmTransport, create, pipes_len};
/// use phalanx_transport::Transport;
///
/// let file = create(pipes_len(2))?; // by one rank, which passes it to the other
/// let [mut zero, mut one] = [ShmTransport::join(&file, 0, 2)?, ShmTransport::join(&file, 1, 2)?];
/// assert_eq!(zero.send(1, &[std::io::IoSlice::new(b"hello")]), Ok(5));
/// let mut buffer = [0; 8];
/// assert_eq!(one.recv(0, &mut buffer), Ok(5));
/// assert_eq!(&buffer[..5], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ShmTransport {
    segment: Arc<Segment>,
    owner_process: OwnerProcess,
    rank: usize,
    wakers: Vec<Arc<RankWaker>>,
    /// By peer; `None` before it is used.
    links: Vec<Option<Link>>,
}

impl ShmTransport {
    /// The ends of `rank` in the segment `file`: [`create`](crate::create)d with [`pipes_len`] by one rank and given to the
    /// others. Each rank joins once.
    ///
    /// # Errors
    /// [`Io`](phalanx_core::Error::Io) if the memory cannot be mapped, or somebody has joined as `rank`.
    ///
    /// # Panics
    /// If `rank` is not below `world_size`.
    pub fn join(file: impl AsFd, rank: usize, world_size: usize) -> Result<Self> {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        let memory = Memory::map(file, pipes_len(world_size))?;
        let segment = Arc::new(Segment {
            memory,
            world_size,
            letters: letters(world_size),
            rings_offset: rings_offset(world_size),
            ring_len: ring_len(world_size),
        });
        // Two would both write what is one rank's alone.
        if segment.rank(rank).joined.swap(1, Ordering::Relaxed) != 0 {
            let error = std::io::Error::new(ErrorKind::AlreadyExists, "a rank joins once");
            let doing = format!("joining the pipes in shared memory as rank {rank}, as another has");
            return Err(Error::io(doing, error));
        }
        let waker = |rank| Arc::new(RankWaker { segment: segment.clone(), rank });
        Ok(Self {
            owner_process: OwnerProcess::here(),
            rank,
            wakers: (0..world_size).map(waker).collect(),
            links: (0..world_size).map(|_| None).collect(),
            segment,
        })
    }

    fn is_closed(&self, peer: usize) -> bool {
        self.segment.rank(peer).closed.load(Ordering::Acquire) != 0
    }

    #[inline]
    fn link(&mut self, peer: usize) -> Parts<'_> {
        let Self { segment, rank, wakers, links, .. } = self;
        let link = links[peer].get_or_insert_with(|| Link::new(segment, *rank, peer));
        Parts { link, segment, waker: &wakers[peer] }
    }
}

/// What a link with a peer takes to use it.
struct Parts<'a> {
    link: &'a mut Link,
    segment: &'a Segment,
    waker: &'a RankWaker,
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.segment.world_size
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        if self.is_closed(peer) {
            return Err(LinkFault::Closed);
        }
        let (from, to) = (self.rank, peer);
        let Parts { link: Link { outgoing, hand, has_cells, .. }, segment, waker } = self.link(peer);
        let (pipe, room) = (segment.pipe(from, to), segment.room(from, to, *has_cells));
        Ok(outgoing.write(pipe, room, hand, bytes, &|| waker.wake()))
    }

    fn takes(&mut self, peer: usize, len: usize) -> bool {
        let rank = self.rank;
        let Parts { link, segment, .. } = self.link(peer);
        link.outgoing.takes(segment.pipe(rank, peer), len)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        // Before the bytes: those that were written before it was closed are not overlooked.
        let is_closed = self.is_closed(peer);
        let (from, to) = (peer, self.rank);
        let Parts { link: Link { incoming, hand, has_cells, .. }, segment, waker } = self.link(peer);
        let (pipe, room) = (segment.pipe(from, to), segment.room(from, to, *has_cells));
        match incoming.read(pipe, room, hand, buffer, &|| waker.wake()) {
            0 if is_closed => Err(LinkFault::Closed),
            n => Ok(n),
        }
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        !self.is_closed(peer)
    }

    fn watch(&mut self, peer: usize, direction: Direction, _wait: &mut Wait) -> bool {
        let rank = self.rank;
        let Parts { link, segment, .. } = self.link(peer);
        let is_ready = match direction {
            Direction::Send => link.outgoing.is_ready(segment.pipe(rank, peer)),
            Direction::Recv => link.incoming.is_ready(segment.pipe(peer, rank)),
        };
        is_ready || self.is_closed(peer)
    }

    fn wake_source(&self) -> Option<Arc<dyn WakeSource>> {
        Some(self.wakers[self.rank].clone())
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        if !self.owner_process.is_here() {
            return;
        }
        self.segment.rank(self.rank).closed.store(1, Ordering::Release);
        // Whoever has not seen it has not looked since it is woken here.
        self.wakers.iter().for_each(|waker| waker.wake());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
}
