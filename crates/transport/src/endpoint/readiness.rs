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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    /// Both ends of a connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, other)
    }

    #[test]
    fn only_sessions_at_which_something_happens_are_looked_at() {
        let readiness = Readiness::new().unwrap();
        let connections: Vec<_> = (0..100).map(|_| connection()).collect();
        for (session, (ours, _)) in connections.iter().enumerate() {
            readiness.watch(session as SessionId, ours).unwrap();
        }
        assert_eq!(readiness.ready(), Some(vec![]));
        (&connections[7].1).write_all(b"x").unwrap();
        let mut fds = [readiness.poll_fd()];
        crate::self_pipe::sleep(&mut fds, std::time::Duration::from_secs(60));
        assert_eq!(readiness.ready(), Some(vec![7]));
        assert_eq!(readiness.ready(), Some(vec![7]), "until it is read");

        readiness.set_writing(8, &connections[8].0, true);
        let mut both = readiness.ready().unwrap();
        both.sort_unstable();
        assert_eq!(both, [7, 8], "there is room for what waits");
        readiness.set_writing(8, &connections[8].0, false);
        assert_eq!(readiness.ready(), Some(vec![7]));
    }

    #[test]
    fn a_session_that_has_ended_is_not_looked_at_though_another_process_holds_its_connection() {
        let readiness = Readiness::new().unwrap();
        let (ours, other) = connection();
        readiness.watch(1, &ours).unwrap();
        // As a child has it that was forked.
        let _copy = ours.try_clone().unwrap();
        drop(other);
        crate::self_pipe::sleep(&mut [readiness.poll_fd()], std::time::Duration::from_secs(60));
        assert_eq!(readiness.ready(), Some(vec![1]), "it has ended");
        readiness.forget(&ours);
        drop(ours);
        assert_eq!(readiness.ready(), Some(vec![]));
    }
}
