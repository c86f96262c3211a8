//! A bell: how one thread wakes another that sleeps.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// A socket with itself at the other end.
#[cfg(unix)]
mod loops {
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;

    #[derive(Debug)]
    pub(super) struct SelfPipe {
        rope: UnixStream,
        pub(super) clapper: UnixStream,
    }

    impl SelfPipe {
        pub(super) fn new() -> io::Result<Self> {
            let (rope, clapper) = UnixStream::pair()?;
            rope.set_nonblocking(true)?;
            clapper.set_nonblocking(true)?;
            Ok(Self { rope, clapper })
        }

        pub(super) fn put(&self) -> io::Result<usize> {
            (&self.rope).write(&[1])
        }

        pub(super) fn take(&self) -> io::Result<usize> {
            (&self.clapper).read(&mut [0; 64])
        }
    }
}

/// A socket with itself at the other end: connected to its own address, it takes nothing from anybody else.
#[cfg(not(unix))]
mod loops {
    use std::io;
    use std::net::{Ipv4Addr, UdpSocket};

    #[derive(Debug)]
    pub(super) struct SelfPipe {
        pub(super) clapper: UdpSocket,
    }

    impl SelfPipe {
        pub(super) fn new() -> io::Result<Self> {
            let clapper = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            clapper.connect(clapper.local_addr()?)?;
            clapper.set_nonblocking(true)?;
            Ok(Self { clapper })
        }

        pub(super) fn put(&self) -> io::Result<usize> {
            self.clapper.send(&[1])
        }

        pub(super) fn take(&self) -> io::Result<usize> {
            self.clapper.recv(&mut [0; 64])
        }
    }
}

/// A bell for a thread that sleeps in `poll`.
#[derive(Debug)]
pub(crate) struct SelfPipe(loops::SelfPipe);

impl SelfPipe {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(loops::SelfPipe::new()?))
    }

    pub(crate) fn wake(&self) {
        // A full pipe means it is ringing already.
        let _ = self.0.put();
    }

    /// Forgets all ringing so far.
    pub(crate) fn clear(&self) {
        while self.0.take().is_ok_and(|n| n > 0) {}
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0.clapper, PollFlags::IN)
    }
}

/// A bell that other processes can ring as well, because it lies in memory that they share: an event count.
///
/// Who sleeps reads [`rung`](Self::rung), *then* looks whether there is anything to do, then sleeps for more than that.
/// Who rings has changed something before. So either the sleeper sees the change or its sleep ends at once.
pub trait WakeSource: Send + Sync + fmt::Debug {
    /// How often it has rung, modulo 2³². Sees all that was done before it rang.
    fn wakes(&self) -> u32;

    /// Wakes all who sleep on it.
    fn wake(&self);

    /// Sleeps while it has rung `rung` times, and not longer than `limit`. May wake for no reason.
    fn sleep(&self, wakes: u32, limit: Duration);
}

/// Wakes the thread whose [`Wait`](crate::Wait) is on it. Cheap to clone; ringing never blocks and is remembered
/// until the next sleep.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    SelfPipe(SelfPipe),
    FdPassing(Arc<dyn WakeSource>),
}

impl Waker {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Kind::SelfPipe(SelfPipe::new()?))))
    }

    /// A bell that `door` rings too, and that rings it. Each thread that sleeps at one door has a bell of its own.
    pub fn at(fds: Arc<dyn WakeSource>) -> Self {
        Self(Arc::new(Kind::FdPassing(fds)))
    }

    /// Wakes the sleeper now, or at its next attempt to sleep.
    pub fn wake(&self) {
        match &*self.0 {
            Kind::SelfPipe(waker) => waker.wake(),
            Kind::FdPassing(fds) => fds.wake(),
        }
    }

    /// Whether both handles ring one bell.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }
}

/// Sleeps until one of `fds` is ready or `limit` has passed. May wake for no reason: callers look at everything anyway.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], limit: Duration) {
    let seconds = limit.as_secs().min(1 << 30);
    let timeout = Timespec { tv_sec: seconds as _, tv_nsec: limit.subsec_nanos() as _ };
    let _ = poll(fds, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ringing_is_remembered_until_cleared() {
        let waker = SelfPipe::new().unwrap();
        let ready = |waker: &SelfPipe| {
            poll(&mut [waker.poll_fd()], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
        };
        assert_eq!(ready(&waker), 0);
        (0..100_000).for_each(|_| waker.wake());
        assert_eq!(ready(&waker), 1);
        waker.clear();
        assert_eq!(ready(&waker), 0);
    }
}
