//! Processes where there are no process groups, signals or pidfds: ended is killed, and watching is polling.

use crate::exit_kind::ExitKind;
use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(10);

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
    pub(crate) fn take_output(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        let mut child = self.child();
        child.stdout.take().zip(child.stderr.take())
    }

    /// The writing end of its stdin, which must have been piped; only once.
    pub(crate) fn take_input(&mut self) -> Option<ChildStdin> {
        self.child().stdin.take()
    }

    /// Calls `ended` on another thread when the process has ended.
    pub(crate) fn watch(&self, ended: impl FnOnce(ExitKind) + Send + 'static) -> io::Result<()> {
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
