//! The ranks of one library while they measure, and the lines that rank 0 says meanwhile.

use phalanx::launch::{Launch, Outcome, Running};
use phalanx::{Error, Result};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Starting ranks, or ending them, may take so long.
pub(crate) const JOB_SECONDS: Duration = Duration::from_secs(60);

/// Ranks that measure. Dropping it kills those that are processes.
#[derive(Debug)]
pub(crate) struct Job {
    ranks: Ranks,
    lines: Receiver<String>,
}

#[derive(Debug)]
enum Ranks {
    Processes(Running),
    /// A thread that waits for the ranks, or is one.
    Thread(JoinHandle<Result<()>>),
}

impl Job {
    /// # Errors
    /// What [`Launch::spawn`] returns.
    pub(crate) fn processes(launch: Launch) -> Result<Self> {
        let (sender, lines) = channel();
        let out = LineWriter { partial: Vec::new(), lines: sender };
        let running = launch.prefix(false).output(out, io::sink()).spawn()?;
        Ok(Self { ranks: Ranks::Processes(running), lines })
    }

    /// Ranks of this process: `measure` hands over the lines.
    pub(crate) fn thread(measure: impl FnOnce(&Sender<String>) -> Result<()> + Send + 'static) -> Self {
        let (sender, lines) = channel();
        Self { ranks: Ranks::Thread(thread::spawn(move || measure(&sender))), lines }
    }

    /// The next line, for which it waits; `None` when there are no more. Threads have as long as they like: their operations have deadlines.
    ///
    /// # Errors
    /// `Io`: none came from processes for so long.
    pub(crate) fn line(&self, patience: Duration) -> Result<Option<String>> {
        if let Ranks::Thread(_) = self.ranks {
            return Ok(self.lines.recv().ok());
        }
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(stuck(patience)),
        }
    }

    /// Moves the lines that are here to `lines`; returns whether there may be more.
    pub(crate) fn collect(&self, lines: &mut Vec<String>) -> bool {
        loop {
            match self.lines.try_recv() {
                Ok(line) => lines.push(line),
                Err(end) => return end == TryRecvError::Empty,
            }
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// `Io`: ranks failed, or the user has ended them. What operations return.
    pub(crate) fn end(self) -> Result<()> {
        let Self { ranks, lines } = self;
        // Nobody listens any more.
        drop(lines);
        let outcome = match ranks {
            Ranks::Processes(running) => running.wait()?,
            Ranks::Thread(ranks) => {
                return ranks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        };
        match outcome {
            Outcome::Success => Ok(()),
            // Whoever presses ^C means all of it.
            interrupted @ Outcome::Interrupted { .. } => Err(Error::io(
                "measuring",
                io::Error::new(io::ErrorKind::Interrupted, interrupted.to_string()),
            )),
            failure => Err(Error::io("measuring", io::Error::other(failure.to_string()))),
        }
    }
}

/// Ranks from which nothing was heard for so long.
pub(crate) fn stuck(patience: Duration) -> Error {
    let why = format!("nothing was heard from its ranks for {} s", patience.as_secs());
    Error::io("measuring", io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Whether the user has ended the measurement.
pub(crate) fn is_interrupt(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
}

/// Cuts what is written into lines.
struct LineWriter {
    partial: Vec<u8>,
    lines: Sender<String>,
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.lines.send(text).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together() {
        let (lines, said) = channel();
        let mut writer = LineWriter { partial: Vec::new(), lines };
        writer.write_all(b"a\nb").unwrap();
        writer.write_all(b"c\r\n\nd").unwrap();
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["a", "bc", ""]);
    }

    #[test]
    #[cfg(unix)]
    fn a_job_says_its_lines_and_how_it_ended() {
        let patience = Duration::from_secs(60);
        let job = Job::processes(Launch::new("sh").args(["-c", "echo a; exit 3"])).unwrap();
        assert_eq!(job.line(patience).unwrap().as_deref(), Some("a"));
        assert_eq!(job.line(patience).unwrap(), None);
        assert!(!job.collect(&mut Vec::new()));
        let error = job.end().unwrap_err();
        assert!(error.to_string().contains('3') && !is_interrupt(&error), "{error}");
        let silent = Job::processes(Launch::new("sleep").args(["60"])).unwrap();
        let error = silent.line(Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("nothing was heard"), "{error}");
    }
}
