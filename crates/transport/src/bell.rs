//! A bell: how one thread wakes another that sleeps in `poll`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::Arc;
use std::time::Duration;

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

/// Wakes the thread that polls it. Cheap to clone; ringing never blocks and is remembered until it is cleared.
#[derive(Debug, Clone)]
pub struct Bell(Arc<loops::Loop>);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(loops::Loop::new()?)))
    }

    /// Wakes the sleeper now, or at its next attempt to sleep.
    pub fn ring(&self) {
        // A full pipe means it is ringing already.
        let _ = self.0.put();
    }

    /// Whether both handles ring one bell.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Forgets all ringing so far.
    pub fn clear(&self) {
        while self.0.take().is_ok_and(|n| n > 0) {}
    }

    /// What to poll for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0.clapper, PollFlags::IN)
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
        let bell = Bell::new().unwrap();
        let ready =
            |bell: &Bell| poll(&mut [bell.poll_fd()], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(ready(&bell), 0);
        (0..100_000).for_each(|_| bell.ring());
        assert_eq!(ready(&bell), 1);
        bell.clear();
        assert_eq!(ready(&bell), 0);
    }
}
