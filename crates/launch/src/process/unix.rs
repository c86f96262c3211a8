//! Processes on Unix: one process group a rank.

use super::ends::Ends;
use crate::exit_kind::ExitKind;
use crate::stream::{Output, Source};
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command};
use std::thread;
use std::time::Duration;

/// A running rank.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The process, and the process group that it leads.
    pid: Pid,
    /// Whether the process was reaped: from then on the number may be a stranger's.
    reaped: bool,
}

impl Process {
    /// Starts `command` in a process group of its own, and on these CPUs, if there are any.
    ///
    /// On Linux the rank is killed when the *thread* that calls this ends, for whatever reason. What the rank starts
    /// in turn is not: only [`reap`](Self::reap) ends that.
    pub(crate) fn start(mut command: Command, cpus: Option<&[usize]>) -> io::Result<Self> {
        command.process_group(0);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        prepare(&mut command, cpus);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        assert!(cpus.is_none(), "nobody can be bound here, which `own_cpus` has said");
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, reaped: false })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The reading ends of its stdout and stderr, which must have been piped; only once.
    pub(crate) fn take_output(&mut self) -> io::Result<Output> {
        let source = |pipe: Option<OwnedFd>| {
            let pipe = pipe.ok_or_else(|| io::Error::other("it is not piped"))?;
            // Of this end only: what the rank writes waits as always.
            rustix::io::ioctl_fionbio(&pipe, true)?;
            io::Result::Ok(Source::Pipe(pipe))
        };
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        Ok((source(stdout.map(OwnedFd::from))?, source(stderr.map(OwnedFd::from))?))
    }

    /// The writing end of its stdin, which must have been piped; only once.
    pub(crate) fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Calls `ended` on another thread as soon as the process has ended, and leaves it to be reaped: until then its
    /// number, which is also its group's, cannot be given to a stranger.
    pub(crate) fn watch(&self, ends: &Ends, ended: impl FnOnce(ExitKind) + Send + 'static) -> io::Result<()> {
        ends.watch(self.pid, ended)
    }

    /// Sends `signal` to the process and to all it started that are still in its group.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal).filter(|_| !self.reaped) {
            // An error means that nobody is left to receive it.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Sends `signal` to the rank alone: to `behind`, if that is a process in the group that this one has started. Not to a process that would die of
    /// it, where that can be known; returns whether it was sent.
    pub(crate) fn tell(&self, signal: i32, behind: Option<u32>) -> bool {
        let behind = behind.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // In a name space of its own the rank has another number, which may be a stranger's here.
        let rank = behind.filter(|&pid| getpgid(Some(pid)) == Ok(self.pid)).unwrap_or(self.pid);
        if self.reaped || would_end(rank, signal) {
            return false;
        }
        // An error means that it has just ended.
        Signal::from_named_raw(signal).is_some_and(|signal| kill_process(rank, signal).is_ok())
    }

    /// Kills what the process, which has ended, left behind in its group; then forgets it.
    pub(crate) fn reap(&mut self) {
        self.signal(Signal::KILL.as_raw());
        self.reaped = true;
        // An error means that it was reaped by somebody else.
        let _ = self.child.wait();
    }
}

/// How often, and how far apart, a process is looked at that blocks a signal: shells and the C library block all signals for a moment
/// when they start a process or a thread, and such a process would die of it right after.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Whether the process has no handler for the signal, and neither ignores it nor keeps it blocked. False where it can't be known.
fn would_end(pid: Pid, signal: i32) -> bool {
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        let masks = signal_masks(pid);
        let has = |name| masks.iter().any(|(of, mask)| *of == name && mask & (1 << (signal - 1)) != 0);
        if masks.is_empty() || has("SigIgn") || has("SigCgt") {
            return false;
        }
        if !has("SigBlk") {
            return true;
        }
    }
    false
}

/// The signals that a process blocks, ignores and catches; nothing where the system does not say.
fn signal_masks(pid: Pid) -> Vec<(&'static str, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let masks = status.lines().filter_map(|line| {
        let (name, mask) = line.split_once(':')?;
        let name = ["SigBlk", "SigIgn", "SigCgt"].into_iter().find(|known| *known == name)?;
        Some((name, u64::from_str_radix(mask.trim(), 16).ok()?))
    });
    masks.collect()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code, reason = "there is no safe way to run code between fork and exec")]
fn prepare(command: &mut Command, cpus: Option<&[usize]>) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let launcher = rustix::process::getpid();
    let cpus = cpus.map(|numbers| {
        let mut set = CpuSet::new();
        numbers.iter().for_each(|&number| set.set(number));
        set
    });
    let hook = move || {
        if let Some(cpus) = &cpus {
            sched_setaffinity(None, cpus)?;
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the line above took effect; then nobody will send the signal.
        if rustix::process::getppid() == Some(launcher) {
            Ok(())
        } else {
            Err(rustix::io::Errno::SRCH.into())
        }
    };
    // SAFETY: between fork and exec only async-signal-safe things are allowed. The closure makes three system calls,
    // sched_setaffinity, prctl and getppid, without going through libc; it takes no lock, and neither allocates nor frees memory: what
    // it captured are a number and an array of bits, and the errors are numbers too.
    unsafe { command.pre_exec(hook) };
}
