//! A bell: how one thread wakes another that sleeps in `poll`.

use rustix::event::{PollFd, PollFlags};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Wakes the thread that polls it. Cheap to clone; ringing never blocks and is remembered until it is cleared.
#[derive(Debug, Clone)]
pub struct Bell(Arc<(UnixStream, UnixStream)>);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let (rope, clapper) = UnixStream::pair()?;
        rope.set_nonblocking(true)?;
        clapper.set_nonblocking(true)?;
        Ok(Self(Arc::new((rope, clapper))))
    }

    /// Wakes the sleeper now, or at its next attempt to sleep.
    pub fn ring(&self) {
        // A full pipe means it is ringing already.
        let _ = (&self.0.0).write(&[1]);
    }

    /// Whether both handles ring one bell.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Forgets all ringing so far.
    pub fn clear(&self) {
        while matches!((&self.0.1).read(&mut [0; 64]), Ok(64)) {}
    }

    /// What to poll for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.0.1.as_fd(), PollFlags::IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{Timespec, poll};

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
