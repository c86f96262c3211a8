//! Straight copies between the address spaces of two processes, where the kernel allows them.

use crate::span::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// The processes of a team's ranks, as far as they are known.
#[derive(Debug, Clone)]
pub struct Processes(pub(crate) Arc<[Process]>);

impl Processes {
    /// Whether the process of `rank` has ended; false where that can't be known, as in containers that count processes apart. One system call.
    pub fn has_ended(&self, rank: usize) -> bool {
        self.0.get(rank).is_some_and(Process::has_ended)
    }
}

/// Another process of the team (or this one, where ranks are threads).
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// Tells whether it lives, and can't mean another that got its number later.
    handle: OwnedFd,
}

impl Process {
    /// # Errors
    /// Where there is no such process, or the system has no process descriptors.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { pid, handle: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Reads `into.len()` bytes at `addr` of its memory.
    ///
    /// # Errors
    /// Where the kernel refuses, the process is gone, or the address is not mapped there.
    pub(crate) fn read(&self, addr: u64, into: Span) -> io::Result<()> {
        let read = self.copy(addr, into, |pid, local, remote| {
            // SAFETY: the local range is valid for writes, as promised when the span was made; the remote one is
            // checked by the kernel.
            unsafe { libc::process_vm_readv(pid, local, 1, remote, 1, 0) }
        });
        // The system copies by number, which may be another process's by now. It was this one's if this one has not ended since.
        self.must_live()?;
        read
    }

    /// Writes the bytes of `from` at `addr` of its memory.
    ///
    /// The owner of that memory must have agreed to it, and must be kept from using it until this returns: see `lease.rs`. The system finds it by
    /// its number. It is looked for right before; a process that took that number between the look and the copy would be written to, if the
    /// user may do so.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn write(&self, addr: u64, from: Span) -> io::Result<()> {
        self.must_live()?;
        self.copy(addr, from, |pid, local, remote| {
            // SAFETY: the local range is valid for reads, as promised when the span was made; the remote one is memory
            // that its owner has exposed for writing.
            unsafe { libc::process_vm_writev(pid, local, 1, remote, 1, 0) }
        })
    }

    /// Repeats `call` until all is copied: the kernel may stop in between.
    fn copy(
        &self,
        addr: u64,
        local: Span,
        call: impl Fn(libc::pid_t, *const libc::iovec, *const libc::iovec) -> isize,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < local.len() {
            let rest = local.part(done..local.len());
            let ours = libc::iovec { iov_base: rest.as_ptr().cast(), iov_len: rest.len() };
            let theirs = libc::iovec {
                iov_base: std::ptr::without_provenance_mut((addr as usize).wrapping_add(done)),
                iov_len: rest.len(),
            };
            match call(self.pid.as_raw_nonzero().get(), &ours, &theirs) {
                n if n > 0 => done += n as usize,
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Whether it is the process of rank `rank`, whose memory has that rank's [word](word_of) at this address, and can be read.
    pub(crate) fn is_of_rank(&self, rank: usize, addr: u64) -> bool {
        let mut word = [0; 8];
        // SAFETY: the array outlives the call that uses the span.
        let into = unsafe { Span::new(word.as_mut_ptr(), word.len()) };
        self.read(addr, into).is_ok() && u64::from_ne_bytes(word) == word_of(rank)
    }

    /// Ends rank `peer`, whose process it is, since it was stopped in the middle of a copy into this rank's memory; if that can't be, says so.
    pub(crate) fn end_its_copy(&self, peer: usize) {
        match self.kill() {
            Ok(()) => {
                tracing::error!(peer, "stopped in the middle of a copy into this rank's memory: ended");
            }
            Err(error) => tracing::error!(
                peer,
                %error,
                "stopped in the middle of a copy into this rank's memory, and can't be ended: this rank waits until it goes on or ends"
            ),
        }
    }

    fn must_live(&self) -> io::Result<()> {
        if self.has_ended() {
            Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"))
        } else {
            Ok(())
        }
    }

    /// Whether it has ended. What it was copying is finished then.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
    }

    /// Ends it, unless it is this process.
    ///
    /// # Errors
    /// The system refuses: it is another user's.
    pub(crate) fn kill(&self) -> io::Result<()> {
        if self.pid.as_raw_nonzero().get() as u32 == std::process::id() {
            return Ok(());
        }
        Ok(pidfd_send_signal(&self.handle, Signal::KILL)?)
    }
}

/// The word by which a rank's memory is known.
pub(crate) fn word_of(rank: usize) -> u64 {
    rank as u64 ^ 0x7068_616c_616e_7821
}

/// Among whom the number of a process means what it means here. 0 where that is everybody: a system without such namespaces.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(bytes: &mut [u8]) -> Span {
        // SAFETY: the tests keep the slice alive and untouched while they use the span.
        unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn bytes_are_copied_both_ways() {
        let me = Process::open(std::process::id()).unwrap();
        let (mut there, mut here) = ([1u8, 2, 3], [0u8; 3]);
        let addr = span(&mut there).addr();
        me.read(addr, span(&mut here)).unwrap();
        assert_eq!(here, [1, 2, 3]);
        here = [4, 5, 6];
        me.write(addr, span(&mut here)).unwrap();
        assert_eq!(there, [4, 5, 6]);
        assert!(!me.has_ended());
    }

    #[test]
    fn what_is_not_mapped_is_an_error() {
        let me = Process::open(std::process::id()).unwrap();
        assert!(me.read(8, span(&mut [0])).is_err());
        assert!(Process::open(0).is_err());
    }

    #[test]
    fn the_end_of_a_process_is_seen_even_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.has_ended());
        process.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    /// As if the number of a process that has ended were another's by now.
    #[test]
    fn what_is_read_of_a_number_that_was_given_anew_is_no_answer() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let handle = Process::open(ended.id()).unwrap().handle;
        ended.wait().unwrap();
        let me = Pid::from_raw(std::process::id() as i32).unwrap();
        let reused = Process { pid: me, handle };
        let (mut there, mut here) = ([1u8, 2, 3], [0u8; 3]);
        let addr = span(&mut there).addr();
        assert_eq!(reused.read(addr, span(&mut here)).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(reused.write(addr, span(&mut [7, 7, 7])).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(there, [1, 2, 3]);
    }
}
