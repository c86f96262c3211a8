//! The pipes between the ranks of a group on one host, as a transport.
//!
//! They lie in a segment of their own:
//!
//! ```text
//! | rank 0 | … | rank P-1 | pipe 0→0, 0→1 … 0→P-1, 1→0 … | loan 0→0, 0→1 … | ring 0→0, 0→1 … |
//! ```
//!
//! Nobody touches the pipe from a rank to itself, so it takes addresses but no memory; nor does any other take some before it is used.

use crate::cells::{Cells, Hand};
use crate::futex::Futex;
use crate::lease::Closed;
use crate::letters::{LONG_LETTERS, SHORT_LETTERS, Shape};
use crate::loan::{CHUNK, Lender, Loan, Taker};
use crate::memory::Memory;
use crate::peer_memory::{Identity, PeerMemory, is_gone};
use crate::pipe::{End, Pipe, Room, pipe_len};
use crate::reading::Reading;
use crate::span::Span;
use crate::staging_probe::lines_are_handed_back;
use crate::sync::{AtomicU32, Ordering};
use phalanx_core::{Error, Result};
use phalanx_transport::{
    Direction, FRAME_LEN_MAX, LinkFault, OwnerProcess, Patience, Transport, Wait, WakeSource,
};
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

/// The bytes from which a part of a message is lent: then they must stay where they are until they were sent. Shorter ones are copied, and may be offered from another
/// place when they are offered again.
pub const LEND_BYTES: usize = 512 << 10;

const PAGE: usize = 4096;

/// The words that a rank writes for all others. All zero at first.
#[repr(C, align(128))]
#[derive(Debug)]
struct Rank {
    /// Whether a process has joined as this rank.
    joined: AtomicU32,
    /// Whether the rank's ends are closed; what it wrote can still be read.
    closed: AtomicU32,
    /// Whether what it lends is not its own any more.
    withdrawn: Closed,
    identity: Identity,
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

/// Whether there are so few ranks that pairs may have more than a ring: cells, and loans.
const fn are_few(world_size: usize) -> bool {
    ring_len(world_size) == RING_LEN_MAX
}

const fn letters(world_size: usize) -> Shape {
    if are_few(world_size) { LONG_LETTERS } else { SHORT_LETTERS }
}

const fn loans_offset(world_size: usize) -> usize {
    world_size * size_of::<Rank>() + world_size * world_size * pipe_len(letters(world_size))
}

const fn rings_offset(world_size: usize) -> usize {
    let loans = if are_few(world_size) { world_size * world_size * size_of::<Loan>() } else { 0 };
    (loans_offset(world_size) + loans).next_multiple_of(PAGE)
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
    /// What follows from the number of ranks, computed once: the letters of a pipe, where loans begin if there are any, where the rings begin, and the length of each.
    letters: Shape,
    loans_offset: Option<usize>,
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
        let pipe = std::ptr::slice_from_raw_parts(at.as_ptr(), self.letters.all_words()) as *const Pipe;
        // SAFETY: mapped for as long as `self`, as long as a pipe with such letters is, aligned (all sizes are multiples of 128), zero or
        // written as atomics only.
        unsafe { &*pipe }
    }

    /// What rank `from` lends to rank `to`, where there are so few that it can.
    #[inline]
    fn loan(&self, from: usize, to: usize) -> Option<&Loan> {
        let len = size_of::<Loan>();
        let at = self.memory.at(self.loans_offset? + self.index(from, to) * len, len).cast::<Loan>();
        // SAFETY: mapped for as long as `self`, aligned (all sizes are multiples of 128), zero or written as atomics only.
        Some(unsafe { at.as_ref() })
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
    /// Through what bytes go out, and come in.
    rooms: [Room; 2],
    hand: Hand,
    lender: Lender,
    taker: Taker,
    memory: PeerMemory,
}

impl Link {
    /// Nothing was moved. Whoever makes its link first decides whether the pair has cells.
    #[cold]
    fn new(segment: &Segment, rank: usize, peer: usize) -> Self {
        let len = segment.ring_len;
        let wants_cells = are_few(segment.world_size) && !lines_are_handed_back();
        let has_cells = segment.pipe(rank.min(peer), rank.max(peer)).has_cells(wants_cells);
        let capacity = if has_cells { len / 2 } else { len };
        let rooms = [segment.room(rank, peer, has_cells), segment.room(peer, rank, has_cells)];
        Self {
            outgoing: End::new(Direction::Send, capacity),
            incoming: End::new(Direction::Recv, capacity),
            rooms,
            hand: Hand::of_end(usize::from(rank > peer)),
            lender: Lender::default(),
            taker: Taker::default(),
            memory: PeerMemory::Unknown,
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
/// A message is copied twice. There is no system call unless the peer sleeps, which is woken with one. A part of a message of [`LEND_BYTES`] or more is copied once, by both ends together, where the
/// kernel copies between the two processes and is not much slower than they are: that is measured once a process, in a millisecond, and
/// each end then has a descriptor of the other's process.
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
    /// With which a peer's last copy into a buffer is waited for.
    patience: Option<Arc<dyn Patience>>,
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
            loans_offset: are_few(world_size).then(|| loans_offset(world_size)),
            rings_offset: rings_offset(world_size),
            ring_len: ring_len(world_size),
        });
        // Two would both write what is one rank's alone.
        if segment.rank(rank).joined.swap(1, Ordering::Relaxed) != 0 {
            let error = std::io::Error::new(ErrorKind::AlreadyExists, "a rank joins once");
            let doing = format!("joining the pipes in shared memory as rank {rank}, as another has");
            return Err(Error::io(doing, error));
        }
        segment.rank(rank).identity.is_of(rank);
        let waker = |rank| Arc::new(RankWaker { segment: segment.clone(), rank });
        Ok(Self {
            owner_process: OwnerProcess::here(),
            rank,
            wakers: (0..world_size).map(waker).collect(),
            links: (0..world_size).map(|_| None).collect(),
            patience: None,
            segment,
        })
    }

    fn is_closed(&self, peer: usize) -> bool {
        self.segment.rank(peer).closed.load(Ordering::Acquire) != 0
    }

    #[inline]
    fn link(&mut self, peer: usize) -> Parts<'_> {
        let Self { segment, rank, wakers, links, patience, .. } = self;
        let link = links[peer].get_or_insert_with(|| Link::new(segment, *rank, peer));
        Parts { link, segment, waker: &wakers[peer], patience: patience.as_deref() }
    }

    #[inline]
    fn write(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> usize {
        let (from, to) = (self.rank, peer);
        let Parts { link: Link { outgoing, hand, rooms: [room, _], .. }, segment, waker, .. } =
            self.link(peer);
        outgoing.write(segment.pipe(from, to), room, hand, bytes, &|| waker.wake())
    }

    /// Tells `peer`, whose messages are long, that it may lend, if that is so.
    fn welcome(&mut self, peer: usize) {
        let (from, to) = (peer, self.rank);
        let Parts { link: Link { memory, .. }, segment, .. } = self.link(peer);
        if let Some(loan) = segment.loan(from, to).filter(|loan| !loan.is_welcome())
            && memory.reach(&segment.rank(peer).identity, &segment.rank(to).identity, peer).is_some()
        {
            loan.welcome();
        }
    }

    /// Goes on with what is lent to `peer`, and is offered again: so many bytes were taken.
    fn lend_on(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Option<usize> {
        let (from, to) = (self.rank, peer);
        let Parts { link: Link { lender, memory, .. }, segment, .. } = self.link(peer);
        let loan = segment.loan(from, to)?;
        let body = bytes.last().map_or(&[][..], |body| body);
        if lender.is_ready(loan)
            && let Some(process) =
                memory.reach(&segment.rank(peer).identity, &segment.rank(from).identity, peer)
        {
            while lender.help(loan, |addr, range| {
                // SAFETY: the bytes are borrowed, and only read.
                let span = unsafe { Span::new(body.as_ptr().cast_mut(), body.len()) };
                range.end <= body.len() && process.write(addr, span.part(range)).is_ok()
            }) {}
        }
        lender.ended(loan)
    }

    /// Lends `body`, after which nothing may be written until it is taken. False if the other end takes no loans.
    fn lend(&mut self, peer: usize, body: &[u8]) -> bool {
        let (from, to) = (self.rank, peer);
        let Parts { link: Link { lender, outgoing, .. }, segment, waker, .. } = self.link(peer);
        let pipe = segment.pipe(from, to);
        let Some(loan) = segment.loan(from, to).filter(|loan| loan.is_welcome()) else { return false };
        lender.lend(loan, body.as_ptr().expose_provenance() as u64, body.len());
        if outgoing.is_waited_for(pipe) {
            waker.wake();
        }
        true
    }

    /// Takes what `peer` lends, if it does.
    fn take(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let (from, to) = (peer, self.rank);
        let Parts { link: Link { incoming, taker, memory, .. }, segment, waker, patience } = self.link(peer);
        let pipe = segment.pipe(from, to);
        let Some(loan) = segment.loan(from, to) else { return Ok(0) };
        let Some(lent) = taker.offered(loan) else { return Ok(0) };
        let Some(process) = memory.reach(&segment.rank(peer).identity, &segment.rank(to).identity, peer)
        else {
            taker.give_up();
            return Err(LinkFault::Nonsense("a loan that was not welcome".into()));
        };
        let len = lent.len.min(buffer.len());
        // SAFETY: the buffer is borrowed, and used through this span alone until it goes; the other end writes there only while `take_together` goes on.
        let place = unsafe { Span::new(buffer.as_mut_ptr(), len) };
        let mut copies = Reading::new(peer, process, place, patience);
        let taken = if len <= CHUNK {
            // There is nothing for the lender to do.
            taker.take(lent, len, &mut copies)
        } else {
            let opened = || {
                if incoming.is_waited_for(pipe) {
                    waker.wake();
                }
            };
            taker.take_together(loan, lent, (place.addr(), len), &mut copies, opened)
        };
        match taken {
            // One that has withdrawn has failed, and so will this rank: those who know why tell it.
            Ok(()) if !segment.rank(peer).withdrawn.was_open() => {}
            Err(error) if is_gone(&error) => {}
            Ok(()) => {
                if taker.ends(loan) && incoming.is_waited_for(pipe) {
                    waker.wake();
                }
                return Ok(len);
            }
            Err(error) => {
                taker.give_up();
                return Err(LinkFault::Unreachable(format!("reading its memory: {error}")));
            }
        }
        taker.give_up();
        Ok(0)
    }
}

/// What a link with a peer takes to use it.
struct Parts<'a> {
    link: &'a mut Link,
    segment: &'a Segment,
    waker: &'a RankWaker,
    patience: Option<&'a dyn Patience>,
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

    /// What is lent goes as fast as memory: to begin anew costs more than the wait of a message behind it.
    fn frame_len(&self) -> usize {
        FRAME_LEN_MAX
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        if self.links[peer].as_ref().is_some_and(|link| link.lender.lends()) {
            return match self.lend_on(peer, bytes) {
                None if self.is_closed(peer) => Err(LinkFault::Closed),
                taken => Ok(taken.unwrap_or(0)),
            };
        }
        if self.is_closed(peer) {
            return Err(LinkFault::Closed);
        }
        if let Some((body, head)) = bytes.split_last()
            && body.len() >= LEND_BYTES
        {
            let len: usize = head.iter().map(|part| part.len()).sum();
            let written = if len == 0 { 0 } else { self.write(peer, head) };
            if written < len || self.lend(peer, body) {
                return Ok(written);
            }
            if written > 0 {
                return Ok(written + self.write(peer, std::slice::from_ref(body)));
            }
        }
        Ok(self.write(peer, bytes))
    }

    #[inline]
    fn send_at_once(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<bool, LinkFault> {
        if self.is_closed(peer) {
            return Err(LinkFault::Closed);
        }
        let (rank, len) = (self.rank, bytes.iter().map(|part| part.len()).sum());
        let Parts { link, segment, .. } = self.link(peer);
        if link.lender.lends() || !link.outgoing.takes(segment.pipe(rank, peer), len) {
            return Ok(false);
        }
        match self.write(peer, bytes) {
            n if n == len => Ok(true),
            _ => Err(LinkFault::Nonsense("it has read less than it had before".into())),
        }
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        self.recv_part(peer, buffer, buffer.len())
    }

    fn recv_part(&mut self, peer: usize, buffer: &mut [u8], whole: usize) -> Result<usize, LinkFault> {
        // Before the bytes: those that were written before it was closed are not overlooked.
        let is_closed = self.is_closed(peer);
        let (from, to) = (peer, self.rank);
        let Parts { link: Link { incoming, hand, rooms: [_, room], taker, .. }, segment, waker, .. } =
            self.link(peer);
        let pipe = segment.pipe(from, to);
        let mut n = incoming.read(pipe, room, hand, buffer, whole, &|| waker.wake());
        if n == 0 && segment.loan(from, to).is_some_and(|loan| taker.offered(loan).is_some()) {
            // What was written before it was lent comes first, and is seen now.
            n = incoming.read(pipe, room, hand, buffer, whole, &|| waker.wake());
            if n == 0 {
                return self.take(peer, buffer);
            }
        }
        if buffer.len() >= LEND_BYTES {
            self.welcome(peer);
        }
        match n {
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
            Direction::Send if link.lender.lends() => {
                let pipe = segment.pipe(rank, peer);
                link.outgoing.asks(pipe);
                segment.loan(rank, peer).is_some_and(|loan| link.lender.is_ready(loan))
            }
            Direction::Send => link.outgoing.is_ready(segment.pipe(rank, peer)),
            Direction::Recv => {
                let pipe = segment.pipe(peer, rank);
                // In this order: the first asks to be woken.
                link.incoming.is_ready(pipe)
                    || segment.loan(peer, rank).is_some_and(|loan| link.taker.offered(loan).is_some())
            }
        };
        is_ready || self.is_closed(peer)
    }

    fn withdraw(&mut self) {
        self.segment.rank(self.rank).withdrawn.close(self.rank);
    }

    fn wait_with(&mut self, patience: Arc<dyn Patience>) {
        self.patience = Some(patience);
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
        self.segment.rank(self.rank).withdrawn.close(self.rank);
        self.segment.rank(self.rank).closed.store(1, Ordering::Release);
        // Whoever has not seen it has not looked since it is woken here.
        self.wakers.iter().for_each(|waker| waker.wake());
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
