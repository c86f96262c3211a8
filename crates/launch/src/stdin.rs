//! What rank 0 reads on its standard input: that of this process.
//!
//! A file or a pipe is handed over as it is, so nothing is taken from it that rank 0 does not read. A terminal can't be: ranks are in process
//! groups of their own, and the system stops who reads from a terminal in the background. So this process reads it, while it is in the
//! foreground itself, and rank 0 has a pipe.

use phalanx_core::{Error, Result};
use std::io;
use std::process::Stdio;

/// The standard input of rank 0, also of those processes that take its place.
#[derive(Debug)]
pub(crate) enum RankInput {
    /// Nothing.
    Empty,
    /// That of this process.
    Own,
    /// What is typed.
    #[cfg(unix)]
    Typed(keyboard::Keyboard),
}

impl RankInput {
    pub(crate) fn own() -> Result<Self> {
        #[cfg(unix)]
        if io::IsTerminal::is_terminal(&io::stdin()) {
            let keyboard = keyboard::Keyboard::start();
            return keyboard.map(Self::Typed).map_err(|error| Error::io("reading the terminal", error));
        }
        Ok(Self::Own)
    }

    /// For the process of this rank.
    pub(crate) fn of(&self, rank: usize) -> Result<Stdio> {
        match self {
            Self::Own if rank == 0 => Ok(Stdio::inherit()),
            #[cfg(unix)]
            Self::Typed(keyboard) if rank == 0 => {
                keyboard.stdio().map_err(|error| Error::io("copying the standard input of rank 0", error))
            }
            _ => Ok(Stdio::null()),
        }
    }
}

#[cfg(unix)]
mod keyboard {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::getpgrp;
    use rustix::termios::tcgetpgrp;
    use std::io::{self, PipeReader, PipeWriter, Write, stdin};
    use std::process::Stdio;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    /// How often it is looked whether the job is over, or this process in the foreground.
    const LOOK_INTERVAL: Duration = Duration::from_millis(100);

    /// A pipe into which a thread writes what is typed.
    #[derive(Debug)]
    pub(crate) struct Keyboard {
        /// It stays open when rank 0 ends: who takes its place reads on.
        typed: PipeReader,
        is_over: Arc<AtomicBool>,
    }

    impl Keyboard {
        pub(super) fn start() -> io::Result<Self> {
            let (typed, to) = io::pipe()?;
            let is_over = Arc::<AtomicBool>::default();
            let over = Arc::clone(&is_over);
            // Until the end of what is typed, or of the job: then the pipe is closed, whatever became of the terminal.
            let read = move || drop(pass_on(to, &over));
            thread::Builder::new().name("phalanx-stdin".to_owned()).spawn(read)?;
            Ok(Self { typed, is_over })
        }

        pub(super) fn stdio(&self) -> io::Result<Stdio> {
            Ok(self.typed.try_clone()?.into())
        }
    }

    impl Drop for Keyboard {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn pass_on(mut to: PipeWriter, is_over: &AtomicBool) -> io::Result<()> {
        let mut bytes = [0; 4096];
        while !is_over.load(Ordering::Relaxed) {
            if !is_in_foreground() {
                thread::sleep(LOOK_INTERVAL);
            } else if is_typed()? && is_in_foreground() {
                match rustix::io::read(stdin(), &mut bytes) {
                    Ok(0) => break,
                    Ok(n) => to.write_all(&bytes[..n])?,
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Whether this process may read: in the background it would be stopped for that. A terminal that controls no session stops nobody.
    fn is_in_foreground() -> bool {
        tcgetpgrp(stdin()).map_or(true, |group| group == getpgrp())
    }

    /// Waits a moment for a line.
    fn is_typed() -> io::Result<bool> {
        let stdin = stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let limit = Timespec::try_from(LOOK_INTERVAL).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
