//! What a thread sleeps on while nothing can move.

use crate::direction::Direction;
use crate::self_pipe::sleep;
use crate::waker::{Kind, Waker};
use rustix::event::{PollFd, PollFlags};
use std::fmt;
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(windows)]
use std::os::windows::io::AsSocket as AsFd;
use std::sync::Arc;
use std::time::Duration;

/// What a thread sleeps on while nothing can move: its waker, and any number of descriptors.
pub struct Wait {
    waker: Waker,
    descriptors: Vec<(Arc<dyn AsFd + Send + Sync>, PollFlags)>,
    /// How often the source had been woken when this last looked; what came later ends the next sleep.
    heard: u32,
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptors = self.descriptors.len();
        f.debug_struct("Wait")
            .field("waker", &self.waker)
            .field("descriptors", &descriptors)
            .finish_non_exhaustive()
    }
}

impl Wait {
    /// A wait with a waker of its own.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Wait;
    /// use std::time::Duration;
    ///
    /// let mut wait = Wait::new()?;
    /// let waker = wait.waker().clone();
    /// std::thread::spawn(move || waker.wake());
    /// wait.sleep(Duration::from_secs(3600)); // until the other thread wakes it
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> std::io::Result<Self> {
        Ok(Self::on(Waker::new()?))
    }

    /// A wait that ends when `waker` wakes it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::{Wait, Waker};
    /// use std::time::Duration;
    ///
    /// let waker = Waker::new()?;
    /// waker.wake(); // is remembered
    /// Wait::on(waker).sleep(Duration::from_secs(3600)); // returns at once
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn on(waker: Waker) -> Self {
        let heard = match waker.kind() {
            Kind::Source(source) => source.wakes(),
            Kind::SelfPipe(_) => 0,
        };
        Self { waker, descriptors: Vec::new(), heard }
    }

    /// The waker that ends this wait.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::{Wait, Waker};
    ///
    /// let waker = Waker::new()?;
    /// assert!(Wait::on(waker.clone()).waker().is(&waker));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets the descriptors; call it before collecting anew.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(unix)] {
    /// use phalanx_transport::{Direction, Wait};
    /// use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};
    ///
    /// let (here, _there) = UnixStream::pair()?;
    /// let mut wait = Wait::new()?;
    /// wait.add(&Arc::new(here), Direction::Send); // can be written: no wait
    /// wait.clear();
    /// wait.sleep(Duration::from_millis(1)); // nothing ends it but the limit
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.descriptors.clear();
    }

    /// Ends when `descriptor` can be read or written: a socket, or on Unix whatever `poll` takes (a pipe, an eventfd, the
    /// completion channel of a network card). On Windows `AsFd` is `AsSocket`.
    ///
    /// # Panics
    /// If the waker is at a source: nothing sleeps there and on descriptors at once.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(unix)] {
    /// use phalanx_transport::{Direction, Wait};
    /// use std::{io::Write, os::unix::net::UnixStream, sync::Arc, time::Duration};
    ///
    /// let (here, mut there) = UnixStream::pair()?;
    /// let mut wait = Wait::new()?;
    /// wait.add(&Arc::new(here), Direction::Recv);
    /// there.write_all(b"!")?;
    /// wait.sleep(Duration::from_secs(3600)); // returns at once
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn add<D: AsFd + Send + Sync + 'static>(&mut self, descriptor: &Arc<D>, direction: Direction) {
        assert!(
            matches!(self.waker.kind(), Kind::SelfPipe(_)),
            "a transport with a wake_source has no descriptors"
        );
        let flags = match direction {
            Direction::Send => PollFlags::OUT,
            Direction::Recv => PollFlags::IN,
        };
        let is_known = |known: &Arc<dyn AsFd + Send + Sync>| {
            std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(descriptor))
        };
        match self.descriptors.iter_mut().find(|(known, _)| is_known(known)) {
            Some((_, known)) => *known |= flags,
            None => self.descriptors.push((descriptor.clone(), flags)),
        }
    }

    /// Sleeps until something is ready, it is woken, or `limit` has passed. May wake for no reason. Ends at once if the
    /// waker has woken it since the last sleep.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Wait;
    /// use std::time::Duration;
    ///
    /// let mut wait = Wait::new()?;
    /// wait.waker().wake();
    /// wait.sleep(Duration::from_secs(3600)); // it has been woken: returns at once
    /// wait.sleep(Duration::from_millis(1)); // it has not: the limit ends it
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn sleep(&mut self, limit: Duration) {
        match self.waker.kind() {
            Kind::Source(source) => {
                source.sleep(self.heard, limit);
                self.heard = source.wakes();
            }
            Kind::SelfPipe(waker) => {
                let mut fds = Vec::with_capacity(1 + self.descriptors.len());
                fds.push(waker.poll_fd());
                fds.extend(self.descriptors.iter().map(|(descriptor, flags)| poll_fd(&**descriptor, *flags)));
                sleep(&mut fds, limit);
                if fds[0].revents().contains(PollFlags::IN) {
                    waker.clear();
                }
            }
        }
    }
}

#[cfg(unix)]
fn poll_fd(descriptor: &dyn AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_fd(), flags)
}

#[cfg(windows)]
fn poll_fd(descriptor: &dyn AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_socket(), flags)
}
