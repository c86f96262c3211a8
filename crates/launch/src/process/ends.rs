//! What notices the ends of processes: one thread for all of them, where the system has descriptors of processes; else one for each.

use crate::exit_kind::ExitKind;
use crate::watcher::{Watched, Watcher};
use phalanx_core::Result;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

type Listener = Box<dyn FnOnce(ExitKind) + Send>;

/// Notices the ends of processes, until it is dropped.
pub(crate) struct Ends(Watcher<Ending>);

impl Ends {
    pub(crate) fn start() -> Result<Self> {
        Watcher::start("phalanx-wait", "waits for the ranks' ends").map(Self)
    }

    /// Calls `ended` on another thread as soon as this child has ended, and leaves it to be reaped.
    pub(super) fn watch(&self, pid: Pid, ended: impl FnOnce(ExitKind) + Send + 'static) -> io::Result<()> {
        match descriptor(pid) {
            Some(descriptor) => {
                self.0.add(Ending { pid, descriptor, ended: Some(Box::new(ended)) });
                Ok(())
            }
            None => watch_on_a_thread(pid, ended),
        }
    }
}

/// Becomes readable when the process ends.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn descriptor(pid: Pid) -> Option<OwnedFd> {
    // Linux 5.3 and later have it, and some sandboxes forbid it.
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn descriptor(_pid: Pid) -> Option<OwnedFd> {
    None
}

/// A process that has not ended, as far as is known.
struct Ending {
    pid: Pid,
    descriptor: OwnedFd,
    ended: Option<Listener>,
}

impl Watched for Ending {
    fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn advance(&mut self, is_ready: bool) -> bool {
        if is_ready
            && let Some(exit) = exit(self.pid, WaitIdOptions::NOHANG)
            && let Some(ended) = self.ended.take()
        {
            ended(exit);
        }
        self.ended.is_some()
    }
}

fn watch_on_a_thread(pid: Pid, ended: impl FnOnce(ExitKind) + Send + 'static) -> io::Result<()> {
    let wait = move || {
        if let Some(exit) = exit(pid, WaitIdOptions::empty()) {
            ended(exit);
        }
    };
    thread::Builder::new().name("phalanx-wait".to_owned()).spawn(wait).map(drop)
}

/// How the process has ended; `None`: it has not, which is said only if `how` does not wait. It stays to be reaped: until then its number, which is
/// also its group's, cannot be given to a stranger.
fn exit(pid: Pid, how: WaitIdOptions) -> Option<ExitKind> {
    loop {
        return match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(None) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => ExitKind::Code(code),
                (None, Some(signal)) => ExitKind::Signal(signal),
                (None, None) => ExitKind::Unknown,
            }),
            Err(_) => Some(ExitKind::Unknown),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const HANG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Child {
        // An input that does not end before the test does.
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn ends_are_noticed_with_and_without_descriptors_and_leave_who_ended_to_be_reaped() {
        let ends = Ends::start().unwrap();
        let (says, said) = channel();
        for (number, (script, exit)) in
            [("exit 3", ExitKind::Code(3)), ("kill -9 $$", ExitKind::Signal(9))].into_iter().enumerate()
        {
            let mut children = [shell(script), shell(script)];
            let [one, other] = [0, 1].map(|at| Pid::from_child(&children[at]));
            let [first, second] = [0, 1].map(|_| says.clone());
            ends.watch(one, move |exit| first.send((number, exit)).unwrap()).unwrap();
            watch_on_a_thread(other, move |exit| second.send((number, exit)).unwrap()).unwrap();
            for _ in 0..2 {
                assert_eq!(said.recv_timeout(HANG), Ok((number, exit)));
            }
            for child in &mut children {
                let status = child.wait().unwrap();
                assert!(!status.success(), "{status}");
            }
        }
    }

    #[test]
    fn who_was_reaped_by_somebody_else_has_ended() {
        let ends = Ends::start().unwrap();
        let (says, said) = channel();
        let mut child = shell("read line");
        let pid = Pid::from_child(&child);
        ends.watch(pid, move |exit| says.send(exit).unwrap()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let exit = said.recv_timeout(HANG).unwrap();
        assert!([ExitKind::Unknown, ExitKind::Signal(9)].contains(&exit), "{exit}");
    }
}
