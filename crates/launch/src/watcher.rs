//! A thread that waits for many things at once: for what processes write, or for their ends.

use phalanx_core::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Something that is waited for. All calls come from one thread, and none may wait.
pub(crate) trait Watched: Send + 'static {
    /// The descriptor that is readable when there is something to do; `None`: a [`Waker`] says so.
    #[cfg(unix)]
    fn waits_for(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// Does what can be done, and says whether there will be more: if not, it is dropped. Called whenever the thread wakes; `is_ready`: its
    /// descriptor may be readable.
    fn advance(&mut self, is_ready: bool) -> bool;
}

/// What wakes the thread of a [`Watcher`]: something has changed, so that there may be something to do.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<WakeUp>);

#[derive(Debug)]
struct WakeUp {
    sleep: sleep::Sleep,
    /// Whether it was woken since it last looked: once is enough.
    is_woken: AtomicBool,
}

impl Waker {
    fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(WakeUp { sleep: sleep::Sleep::new()?, is_woken: AtomicBool::new(false) })))
    }

    /// Never waits.
    pub(crate) fn wake(&self) {
        if !self.0.is_woken.swap(true, Ordering::SeqCst) {
            self.0.sleep.end();
        }
    }

    /// From here on it is to be woken again: for what was changed before, the thread looks itself.
    fn clear(&self) {
        self.0.sleep.clear();
        self.0.is_woken.store(false, Ordering::SeqCst);
    }
}

/// The thread, which ends when this is dropped, and drops what it waits for.
pub(crate) struct Watcher<W: Watched> {
    orders: Arc<Mutex<Orders<W>>>,
    waker: Waker,
}

struct Orders<W> {
    new: Vec<W>,
    is_over: bool,
}

impl<W: Watched> Watcher<W> {
    /// Starts the thread. `what` it does, for an error.
    pub(crate) fn start(name: &str, what: &str) -> Result<Self> {
        let failed = |error| Error::io(format!("starting the thread that {what}"), error);
        let waker = Waker::new().map_err(failed)?;
        let orders = Arc::new(Mutex::new(Orders { new: Vec::new(), is_over: false }));
        let (own_orders, own_waker) = (Arc::clone(&orders), waker.clone());
        let run = move || run(&own_orders, &own_waker);
        thread::Builder::new().name(name.to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { orders, waker })
    }

    /// Begins to wait for one more.
    pub(crate) fn add(&self, one: W) {
        lock(&self.orders).new.push(one);
        self.waker.wake();
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }
}

impl<W: Watched> Drop for Watcher<W> {
    /// Does not wait for the thread, which may be writing to a slow disk.
    fn drop(&mut self) {
        lock(&self.orders).is_over = true;
        self.waker.wake();
    }
}

fn lock<W>(orders: &Mutex<Orders<W>>) -> MutexGuard<'_, Orders<W>> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run<W: Watched>(orders: &Mutex<Orders<W>>, waker: &Waker) {
    let mut all: Vec<W> = Vec::new();
    loop {
        let mut ready = waker.0.sleep.until_ready(&all).into_iter();
        waker.clear();
        {
            let mut orders = lock(orders);
            if orders.is_over {
                return;
            }
            all.append(&mut orders.new);
        }
        // What has just been added was not waited for, and may have something all the same.
        all.retain_mut(|one| one.advance(ready.next().unwrap_or(false)));
    }
}

#[cfg(unix)]
mod sleep {
    use super::Watched;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    /// How long is waited where the system can't wait, for want of memory.
    const AGAIN: Duration = Duration::from_millis(10);

    /// A socket whose other end says that the sleep is over.
    #[derive(Debug)]
    pub(super) struct Sleep {
        ends: UnixStream,
        is_over: UnixStream,
    }

    impl Sleep {
        pub(super) fn new() -> io::Result<Self> {
            let (ends, is_over) = UnixStream::pair()?;
            ends.set_nonblocking(true)?;
            is_over.set_nonblocking(true)?;
            Ok(Self { ends, is_over })
        }

        pub(super) fn end(&self) {
            // A full socket means that it is over already.
            let _ = (&self.ends).write(&[1]);
        }

        pub(super) fn clear(&self) {
            while (&self.is_over).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        }

        /// Sleeps until somebody ends it, or one of `all` may be ready; says for each whether it may.
        pub(super) fn until_ready<W: Watched>(&self, all: &[W]) -> Vec<bool> {
            let mut ready = vec![false; all.len()];
            let waiting = all.iter().enumerate().filter_map(|(at, one)| Some((at, one.waits_for()?)));
            let (at, mut fds): (Vec<usize>, Vec<PollFd<'_>>) =
                waiting.map(|(at, fd)| (at, PollFd::from_borrowed_fd(fd, PollFlags::IN))).unzip();
            fds.push(PollFd::new(&self.is_over, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) => {
                    at.iter().zip(&fds).for_each(|(&at, fd)| ready[at] = !fd.revents().is_empty());
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    thread::sleep(AGAIN);
                    ready.fill(true);
                }
            }
            ready
        }
    }
}

#[cfg(not(unix))]
mod sleep {
    use super::Watched;
    use std::io;
    use std::sync::{Condvar, Mutex, PoisonError};

    /// Nothing but wakers is waited for here.
    #[derive(Debug, Default)]
    pub(super) struct Sleep {
        is_over: Mutex<bool>,
        ended: Condvar,
    }

    impl Sleep {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self::default())
        }

        pub(super) fn end(&self) {
            *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.ended.notify_all();
        }

        pub(super) fn clear(&self) {
            *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }

        pub(super) fn until_ready<W: Watched>(&self, all: &[W]) -> Vec<bool> {
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.ended.wait_while(is_over, |is_over| !*is_over));
            vec![false; all.len()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    const HANG: Duration = Duration::from_secs(60);

    /// Says each time that it is looked at, and is dropped when there is nothing left to say.
    struct Says(Vec<u32>, Sender<u32>);

    impl Watched for Says {
        #[cfg(unix)]
        fn waits_for(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }

        fn advance(&mut self, is_ready: bool) -> bool {
            assert!(!is_ready, "it has no descriptor");
            self.0.pop().is_some_and(|word| self.1.send(word).is_ok()) && !self.0.is_empty()
        }
    }

    #[test]
    fn each_wake_up_is_one_look_at_all_and_the_end_drops_them() {
        let watcher = Watcher::start("phalanx-test", "tests").unwrap();
        let (says, said) = channel();
        watcher.add(Says(vec![3, 2, 1], says.clone()));
        assert_eq!(said.recv_timeout(HANG), Ok(1), "it is looked at when it is added");
        watcher.waker().wake();
        assert_eq!(said.recv_timeout(HANG), Ok(2));
        watcher.waker().wake();
        assert_eq!(said.recv_timeout(HANG), Ok(3));
        watcher.add(Says(vec![6, 5, 4], says));
        assert_eq!(said.recv_timeout(HANG), Ok(4));
        drop(watcher);
        // Nobody has the other end any more, and nothing more was said.
        assert_eq!(said.recv_timeout(HANG), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn no_wake_up_is_lost() {
        let watcher = Watcher::start("phalanx-test", "tests").unwrap();
        let (says, said) = channel();
        for round in 0..10_000 {
            watcher.add(Says(vec![round], says.clone()));
            assert_eq!(said.recv_timeout(HANG), Ok(round));
        }
    }
}
