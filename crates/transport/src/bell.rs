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
    pub(super) struct Loop {
        rope: UnixStream,
        pub(super) clapper: UnixStream,
    }

    impl Loop {
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
    pub(super) struct Loop {
        pub(super) clapper: UdpSocket,
    }

    impl Loop {
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
pub(crate) struct Loop(loops::Loop);

impl Loop {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(loops::Loop::new()?))
    }

    pub(crate) fn ring(&self) {
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
pub trait Doorbell: Send + Sync + fmt::Debug {
    /// How often it has rung, modulo 2³². Sees all that was done before it rang.
    fn rung(&self) -> u32;

    /// Wakes all who sleep on it.
    fn ring(&self);

    /// Sleeps while it has rung `rung` times, and not longer than `limit`. May wake for no reason.
    fn sleep(&self, rung: u32, limit: Duration);
}

/// Wakes the thread whose [`Wait`](crate::Wait) is on it. Cheap to clone; ringing never blocks and is remembered
/// until the next sleep.
#[derive(Debug, Clone)]
pub struct Bell(Arc<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Loop(Loop),
    Door(Arc<dyn Doorbell>),
}

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Kind::Loop(Loop::new()?))))
    }

    /// A bell that `door` rings too, and that rings it. Each thread that sleeps at one door has a bell of its own.
    pub fn at(door: Arc<dyn Doorbell>) -> Self {
        Self(Arc::new(Kind::Door(door)))
    }

    /// Wakes the sleeper now, or at its next attempt to sleep.
    pub fn ring(&self) {
        match &*self.0 {
            Kind::Loop(bell) => bell.ring(),
            Kind::Door(door) => door.ring(),
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
        let bell = Loop::new().unwrap();
        let ready =
            |bell: &Loop| poll(&mut [bell.poll_fd()], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(ready(&bell), 0);
        (0..100_000).for_each(|_| bell.ring());
        assert_eq!(ready(&bell), 1);
        bell.clear();
        assert_eq!(ready(&bell), 0);
    }
}
