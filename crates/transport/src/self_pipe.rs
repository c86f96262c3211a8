//! A thread that sleeps in `poll`, and what wakes it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::time::Duration;

/// A socket with itself at the other end.
#[cfg(unix)]
mod loops {
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;

    #[derive(Debug)]
    pub(super) struct SelfPipe {
        writer: UnixStream,
        pub(super) reader: UnixStream,
    }

    impl SelfPipe {
        pub(super) fn new() -> io::Result<Self> {
            let (writer, reader) = UnixStream::pair()?;
            writer.set_nonblocking(true)?;
            reader.set_nonblocking(true)?;
            Ok(Self { writer, reader })
        }

        pub(super) fn put(&self) -> io::Result<usize> {
            (&self.writer).write(&[1])
        }

        pub(super) fn take(&self) -> io::Result<usize> {
            (&self.reader).read(&mut [0; 64])
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
        pub(super) reader: UdpSocket,
    }

    impl SelfPipe {
        pub(super) fn new() -> io::Result<Self> {
            let reader = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            reader.connect(reader.local_addr()?)?;
            reader.set_nonblocking(true)?;
            Ok(Self { reader })
        }

        pub(super) fn put(&self) -> io::Result<usize> {
            self.reader.send(&[1])
        }

        pub(super) fn take(&self) -> io::Result<usize> {
            self.reader.recv(&mut [0; 64])
        }
    }
}

/// Wakes a thread that sleeps in `poll`.
#[derive(Debug)]
pub(crate) struct SelfPipe(loops::SelfPipe);

impl SelfPipe {
    /// One that has not been woken.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(loops::SelfPipe::new()?))
    }

    pub(crate) fn wake(&self) {
        // A full pipe means that it is awake already.
        let _ = self.0.put();
    }

    /// Forgets all wake-ups so far.
    pub(crate) fn clear(&self) {
        while self.0.take().is_ok_and(|n| n > 0) {}
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0.reader, PollFlags::IN)
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
    fn wake_ups_are_remembered_until_cleared() {
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
