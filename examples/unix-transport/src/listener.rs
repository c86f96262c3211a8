//! The thread that accepts callers, and those who called, until a group takes them.

use phalanx::backend::GroupId;
use phalanx::transport::{Direction, Wait, Waker};
use rustix::net::sockopt::socket_peercred;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Bytes of the key that a caller shows.
pub(crate) const KEY_LEN: usize = 64;
/// Groups of which it is remembered that they ended here.
const ENDED_MAX: usize = 4096;

/// What a caller says first: the key, the group, and its rank in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call(pub(crate) [u8; KEY_LEN + 16]);

impl Call {
    pub(crate) fn new(key: &[u8; KEY_LEN], group: GroupId, rank: usize) -> Self {
        let mut bytes = [0; KEY_LEN + 16];
        bytes[..KEY_LEN].copy_from_slice(key);
        bytes[KEY_LEN..KEY_LEN + 8].copy_from_slice(&group.0.to_le_bytes());
        bytes[KEY_LEN + 8..].copy_from_slice(&(rank as u64).to_le_bytes());
        Self(bytes)
    }

    fn group(&self) -> &[u8] {
        &self.0[KEY_LEN..KEY_LEN + 8]
    }

    /// Of a caller of this user that knows the key: of no other.
    fn of(mut stream: &UnixStream, key: &[u8; KEY_LEN]) -> Option<Self> {
        let mut call = Self([0; KEY_LEN + 16]);
        // It says all in one write.
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok().filter(|()| is_ours(stream))?;
        stream.read_exact(&mut call.0).ok().filter(|()| call.0.starts_with(key))?;
        stream.set_nonblocking(true).ok().map(|()| call)
    }
}

/// Whether the process at the other end is of this user: the kernel says so, not the process.
pub(crate) fn is_ours(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|other| other.uid == rustix::process::geteuid())
}

/// Lives until the last link of the job is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    arrivals: Mutex<Arrivals>,
    stop: Waker,
}

#[derive(Debug, Default)]
struct Arrivals {
    calls: HashMap<Call, UnixStream>,
    waiting: Vec<Waker>,
    /// Groups that ended here, the latest first: whoever calls for one is late, and hears so by the end of its link.
    ended: VecDeque<[u8; 8]>,
}

impl Listener {
    pub(crate) fn start(socket: UnixListener, key: [u8; KEY_LEN]) -> io::Result<Arc<Self>> {
        socket.set_nonblocking(true)?;
        let wait = Wait::new()?;
        let listener = Arc::new(Self { arrivals: Mutex::default(), stop: wait.waker().clone() });
        let theirs = Arc::downgrade(&listener);
        let accept = move || accept(&theirs, &Arc::new(socket), &key, wait);
        std::thread::Builder::new().name("phalanx-links".into()).spawn(accept)?;
        Ok(listener)
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link that this call made, if it has come; if not, the next call wakes `waker`.
    pub(crate) fn take(&self, call: &Call, waker: Option<&Waker>) -> Option<UnixStream> {
        let mut arrivals = self.arrivals();
        if let Some(waker) = waker.filter(|waker| !arrivals.waiting.iter().any(|other| other.is(waker))) {
            arrivals.waiting.push(waker.clone());
        }
        arrivals.calls.remove(call)
    }

    fn put(&self, call: Call, stream: UnixStream) {
        let mut arrivals = self.arrivals();
        if !arrivals.ended.iter().any(|group| call.group() == group) {
            arrivals.calls.insert(call, stream);
        }
        arrivals.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// Closes what was called for a group that ends here, or will be.
    pub(crate) fn forget(&self, group: GroupId) {
        let (mut arrivals, group) = (self.arrivals(), group.0.to_le_bytes());
        arrivals.calls.retain(|call, _| call.group() != group);
        arrivals.ended.push_front(group);
        arrivals.ended.truncate(ENDED_MAX);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nobody can upgrade any more, and the thread sees that.
        self.stop.wake();
    }
}

fn accept(listener: &Weak<Listener>, socket: &Arc<UnixListener>, key: &[u8; KEY_LEN], mut wait: Wait) {
    wait.add(socket, Direction::Recv);
    while let Some(listener) = listener.upgrade() {
        match socket.accept() {
            Ok((stream, _)) => drop(Call::of(&stream, key).map(|call| listener.put(call, stream))),
            Err(error) => {
                drop(listener);
                match error.kind() {
                    ErrorKind::WouldBlock => wait.sleep(Duration::MAX),
                    // Out of descriptors: the listener stays ready, and all there is to do is to wait for some.
                    _ => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
    }
}
