//! Which sessions have something to read, or take what waits for them: asked of the system in one call, however many there are.
//!
//! Each connection is told of once, when it begins. So a process that serves ten thousand sessions looks only at those at which
//! something happens. Where the system has no epoll, all are looked at.

use super::service::SessionId;
use std::net::TcpStream;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Readiness;
/// The sessions of an endpoint that can go on.
#[cfg(target_os = "linux")]
pub(crate) use linux::Readiness;

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use rustix::event::epoll::{self, EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec};
    use rustix::fd::OwnedFd;
    use std::io;

    /// Sessions that are served before the service is asked for what is due: nobody waits long for a beat, however much has come.
    const AT_ONCE: usize = 256;

    #[derive(Debug)]
    pub(crate) struct Readiness {
        epoll: OwnedFd,
    }

    fn flags(is_writing: bool) -> EventFlags {
        if is_writing { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
    }

    impl Readiness {
        /// That of no session yet.
        ///
        /// # Errors
        /// The process has no descriptors left.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
        }

        /// What to poll for: some session can go on.
        pub(crate) fn poll_fd(&self) -> PollFd<'_> {
            PollFd::new(&self.epoll, PollFlags::IN)
        }

        /// Looks at this session from now on.
        ///
        /// # Errors
        /// The system has no memory for it, or no more than so many are allowed.
        pub(crate) fn watch(&self, session: SessionId, stream: &TcpStream) -> io::Result<()> {
            Ok(epoll::add(&self.epoll, stream, EventData::new_u64(session), flags(false))?)
        }

        /// Whether the session can go on when its stream takes something.
        pub(crate) fn set_writing(&self, session: SessionId, stream: &TcpStream, is_writing: bool) {
            let changed = epoll::modify(&self.epoll, stream, EventData::new_u64(session), flags(is_writing));
            debug_assert!(changed.is_ok(), "{changed:?}");
        }

        /// Looks at it no longer. A process that was forked from this one may hold the connection open: to close it here is not enough.
        pub(crate) fn forget(&self, stream: &TcpStream) {
            let forgotten = epoll::delete(&self.epoll, stream);
            debug_assert!(forgotten.is_ok(), "{forgotten:?}");
        }

        /// The sessions that can go on now, or some of them; `None` for perhaps all.
        pub(crate) fn ready(&self) -> Option<Vec<SessionId>> {
            let mut events = Vec::with_capacity(AT_ONCE);
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Interrupted, it is asked again at the next turn.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_once));
            Some(events.iter().map(|event| event.data.u64()).collect())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::*;
    use std::io;

    #[derive(Debug)]
    pub(crate) struct Readiness;

    impl Readiness {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn watch(&self, _session: SessionId, _stream: &TcpStream) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn set_writing(&self, _session: SessionId, _stream: &TcpStream, _is_writing: bool) {}

        pub(crate) fn forget(&self, _stream: &TcpStream) {}

        pub(crate) fn ready(&self) -> Option<Vec<SessionId>> {
            None
        }
    }
}
