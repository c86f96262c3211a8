//! Ranks as threads of one process: a byte pipe in memory for each ordered pair of ranks.
//!
//! For tests, examples, and programs whose ranks share a process. A pipe holds at most one mebibyte.

use crate::direction::Direction;
use crate::transport::{LinkFault, Transport};
use crate::wait::Wait;
use crate::{OwnerProcess, Waker};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PIPE_LEN_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    closed: bool,
    /// Threads that sleep until there is something to read, or room to write.
    readers: Vec<Waker>,
    writers: Vec<Waker>,
}

fn wake(wakers: &mut Vec<Waker>) {
    wakers.drain(..).for_each(|waker| waker.wake());
}

/// The pipes of one group; each rank opens its end once.
#[derive(Debug, Clone)]
pub struct Pipes {
    world_size: usize,
    /// `pipes[from * world_size + to]`.
    pipes: Arc<Vec<Mutex<Pipe>>>,
}

impl Pipes {
    /// Pipes between `world_size` ranks.
    pub fn new(world_size: usize) -> Self {
        Self { world_size, pipes: Arc::new((0..world_size * world_size).map(|_| Mutex::default()).collect()) }
    }

    /// The end of `rank`.
    ///
    /// # Panics
    /// If `rank` is not below the world size.
    pub fn end(&self, rank: usize) -> ThreadTransport {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        ThreadTransport { owner_process: OwnerProcess::here(), rank, pipes: self.clone() }
    }

    fn pipe(&self, from: usize, to: usize) -> MutexGuard<'_, Pipe> {
        self.pipes[from * self.world_size + to].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank's end of all its pipes. Dropping it closes them; what was sent can still be received.
#[derive(Debug)]
pub struct ThreadTransport {
    owner_process: OwnerProcess,
    rank: usize,
    pipes: Pipes,
}

impl Transport for ThreadTransport {
    fn name(&self) -> &'static str {
        "thread"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.pipes.world_size
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let mut pipe = self.pipes.pipe(self.rank, peer);
        if pipe.closed {
            return Err(LinkFault::Closed);
        }
        let mut taken = 0;
        for part in bytes {
            let n = part.len().min(PIPE_LEN_MAX - pipe.bytes.len());
            pipe.bytes.extend(&part[..n]);
            taken += n;
        }
        if taken > 0 {
            wake(&mut pipe.readers);
        }
        Ok(taken)
    }

    fn send_at_once(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<bool, LinkFault> {
        // Nobody else writes to it.
        let room = PIPE_LEN_MAX - self.pipes.pipe(self.rank, peer).bytes.len();
        let takes = bytes.iter().map(|part| part.len()).sum::<usize>() <= room;
        if takes { self.send(peer, bytes).map(|_| true) } else { Ok(false) }
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let mut pipe = self.pipes.pipe(peer, self.rank);
        let n = buffer.len().min(pipe.bytes.len());
        if n == 0 {
            return if pipe.closed { Err(LinkFault::Closed) } else { Ok(0) };
        }
        let (front, back) = pipe.bytes.as_slices();
        let from_front = n.min(front.len());
        buffer[..from_front].copy_from_slice(&front[..from_front]);
        buffer[from_front..n].copy_from_slice(&back[..n - from_front]);
        pipe.bytes.drain(..n);
        wake(&mut pipe.writers);
        Ok(n)
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        !self.pipes.pipe(self.rank, peer).closed
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        let (mut pipe, ready) = match direction {
            Direction::Send => {
                let pipe = self.pipes.pipe(self.rank, peer);
                let ready = pipe.closed || pipe.bytes.len() < PIPE_LEN_MAX;
                (pipe, ready)
            }
            Direction::Recv => {
                let pipe = self.pipes.pipe(peer, self.rank);
                let ready = pipe.closed || !pipe.bytes.is_empty();
                (pipe, ready)
            }
        };
        if !ready {
            match direction {
                Direction::Send => pipe.writers.push(wait.waker().clone()),
                Direction::Recv => pipe.readers.push(wait.waker().clone()),
            }
        }
        ready
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        if !self.owner_process.is_here() {
            return;
        }
        for peer in 0..self.pipes.world_size {
            // In this order: whoever has read the end finds that the link has ended both ways.
            for (from, to) in [(peer, self.rank), (self.rank, peer)] {
                let mut pipe = self.pipes.pipe(from, to);
                pipe.closed = true;
                wake(&mut pipe.readers);
                wake(&mut pipe.writers);
            }
        }
    }
}
