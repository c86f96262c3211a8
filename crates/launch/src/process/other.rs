//! Processes where there are no process groups, signals or pidfds: ended is killed, and watching is polling.

use crate::exit_kind::ExitKind;
use crate::stream::{Output, Pieces, Source};
use phalanx_core::Result;
use std::io::{self, ErrorKind, Read};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(10);
/// How much is read in one go.
const CHUNK: usize = 16 << 10;

/// Each process has a thread of its own here that notices its end.
#[derive(Debug)]
pub(crate) struct Ends;

impl Ends {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self)
    }
}

/// A running rank.
#[derive(Debug)]
pub(crate) struct Process(Arc<Mutex<Child>>);

impl Process {
    pub(crate) fn start(mut command: Command, _cpus: Option<&[usize]>) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(command.spawn()?))))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child().id()
    }

    /// The reading ends of its stdout and stderr, which must have been piped; only once.
    pub(crate) fn take_output(&mut self) -> io::Result<Output> {
        let (stdout, stderr) = {
            let mut child = self.child();
            let both = child.stdout.take().zip(child.stderr.take());
            both.ok_or_else(|| io::Error::other("it is not piped"))?
        };
        Ok((source(stdout)?, source(stderr)?))
    }

    /// The writing end of its stdin, which must have been piped; only once.
    pub(crate) fn take_input(&mut self) -> Option<ChildStdin> {
        self.child().stdin.take()
    }

    /// Calls `ended` on another thread when the process has ended.
    pub(crate) fn watch(
        &self,
        _ends: &Ends,
        ended: impl FnOnce(ExitKind) + Send + 'static,
    ) -> io::Result<()> {
        let process = Self(Arc::clone(&self.0));
        let wait = move || loop {
            match process.child().try_wait() {
                Ok(None) => thread::sleep(POLL),
                Ok(Some(status)) => return status.code().map_or(ExitKind::Unknown, ExitKind::Code),
                Err(_) => return ExitKind::Unknown,
            }
        };
        thread::Builder::new().name("phalanx-wait".to_owned()).spawn(move || ended(wait())).map(drop)
    }

    /// Ends the process, whatever the signal.
    pub(crate) fn signal(&self, _signal: i32) {
        // An error means that it has ended already.
        let _ = self.child().kill();
    }

    /// Does nothing: there are no signals here.
    pub(crate) fn tell(&self, _signal: i32, _behind: Option<u32>) -> bool {
        false
    }

    /// Forgets the process, which has ended.
    pub(crate) fn reap(&mut self) {
        let _ = self.child().wait();
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a pipe on a thread of its own, and no further than is taken: it can't be waited for together with others.
fn source(mut pipe: impl Read + Send + 'static) -> io::Result<Source> {
    let (takes, taken) = channel();
    let (sender, pieces) = Pieces::new(CHUNK, move |len| {
        // The reading thread has gone if there is no more.
        let _ = takes.send(len);
    });
    let read = move || {
        let mut bytes = vec![0; CHUNK];
        loop {
            let n = match pipe.read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if sender.push(bytes[..n].to_vec()).is_err() {
                return;
            }
            let mut left = n;
            while left > 0 {
                let Ok(len) = taken.recv() else { return };
                left -= len;
            }
        }
    };
    thread::Builder::new().name("phalanx-log".to_owned()).spawn(read)?;
    Ok(Source::Pieces(pieces))
}
