//! Drives one end of its links as an operation of a group does.

use crate::links::End;
use phalanx_transport::{Direction, LinkFault, Transport, Wait, Waker};
use std::io::IoSlice;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Longer than any test: who sleeps so long was not woken.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

/// An end, and what its thread sleeps on.
pub(super) struct Driver {
    pub(super) end: End,
    wait: Wait,
}

impl Deref for Driver {
    type Target = dyn Transport;

    fn deref(&self) -> &Self::Target {
        &*self.end
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.end
    }
}

impl Driver {
    pub(super) fn new(end: End) -> Self {
        let wait = wait_for(&*end);
        Self { end, wait }
    }

    pub(super) fn waker(&self) -> Waker {
        self.wait.waker().clone()
    }

    /// Sleeps until something that is watched may move, or `limit` has passed. Whether there was a reason not to sleep.
    pub(super) fn sleep(&mut self, watched: &[(usize, Direction)], limit: Duration) -> bool {
        self.wait.clear();
        let mut is_ready = false;
        for &(peer, direction) in watched {
            is_ready |= self.end.watch(peer, direction, &mut self.wait);
        }
        if !is_ready {
            self.wait.sleep(limit);
        }
        is_ready
    }

    pub(super) fn send_all(&mut self, peer: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.send(peer, &[IoSlice::new(bytes)]) {
                Ok(0) => drop(self.sleep(&[(peer, Direction::Send)], FOREVER)),
                Ok(n) => bytes = &bytes[n..],
                Err(fault) => panic!("sending to rank {peer}: {fault}"),
            }
        }
    }

    pub(super) fn recv_some(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        loop {
            match self.recv(peer, buffer) {
                Ok(0) => drop(self.sleep(&[(peer, Direction::Recv)], FOREVER)),
                Ok(n) => {
                    assert!(n <= buffer.len(), "{n} bytes were put into a buffer of {}", buffer.len());
                    return Ok(n);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    pub(super) fn recv_exact(&mut self, peer: usize, len: usize) -> Vec<u8> {
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            done += self
                .recv_some(peer, &mut bytes[done..])
                .unwrap_or_else(|fault| panic!("receiving from rank {peer}: {fault}"));
        }
        bytes
    }

    /// All that still comes from `peer`, and how its link ended.
    pub(super) fn recv_to_end(&mut self, peer: usize) -> (Vec<u8>, LinkFault) {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 70_000]);
        loop {
            match self.recv_some(peer, &mut buffer) {
                Ok(n) => bytes.extend_from_slice(&buffer[..n]),
                Err(fault) => return (bytes, fault),
            }
        }
    }

    /// Sends `peer` one byte and takes one: both ends have used the link then.
    pub(super) fn meet(&mut self, peer: usize) {
        self.send_all(peer, b"!");
        assert_eq!(self.recv_exact(peer, 1), b"!");
    }
}

/// What a thread sleeps on at this end: a wait of its own.
pub(super) fn wait_for(end: &dyn Transport) -> Wait {
    match end.wake_source() {
        Some(source) => Wait::on(Waker::at(source)),
        None => Wait::new().expect("descriptors"),
    }
}

/// What `from` sends to `to`: unlike on every link, and no byte is that of its neighbours.
pub(super) fn stream(from: usize, to: usize, len: usize) -> Vec<u8> {
    let seed = (from * 31 + to) as u64 + 1;
    (0..len as u64).map(|i| ((i ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as u8).collect()
}

/// Fails without printing a whole buffer.
#[track_caller]
pub(super) fn assert_bytes(actual: &[u8], expected: &[u8], from: usize) {
    let same = actual.iter().zip(expected).take_while(|(a, b)| a == b).count();
    assert!(
        actual.len() == expected.len() && same == actual.len(),
        "of {} bytes from rank {from}, {} arrived, and byte {same} is not what was sent there",
        expected.len(),
        actual.len(),
    );
}
