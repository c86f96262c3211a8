//! The libraries that are measured: how their ranks are started, and how what they say comes back.

use crate::backend::Backend;
use crate::line::Line;
use crate::op::Op;
use crate::peers::Program;
use crate::rank::{self, BACKEND};
use crate::subject::Subject;
use crate::task::{TASK_VAR, Task};
use phalanx::launch::{Launch, Outcome};
use phalanx::{Error, ProcessGroup, Result, threads_with};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long one operation may take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Starting and ending a job may take so long, and each case so much more than its budget.
const JOB_SECONDS: Duration = Duration::from_secs(60);
const CASE_SECONDS: Duration = Duration::from_secs(30);

/// A library that can be measured.
#[derive(Debug)]
pub(crate) enum Library {
    Ours {
        subject: Subject,
        /// Forced algorithms.
        algorithms: Option<String>,
    },
    /// Us again, in a process that a launcher has started as one of several ranks.
    Joined {
        subject: Subject,
        group: ProcessGroup,
    },
    Peer(Program),
}

impl Library {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours { subject, .. } | Self::Joined { subject, .. } => subject.name(),
            Self::Peer(program) => program.name(),
        }
    }

    /// Whether there is anything to measure of `op` among `ranks`.
    pub(crate) fn knows(&self, op: Op, ranks: usize) -> bool {
        match self {
            Self::Ours { subject, .. } | Self::Joined { subject, .. } => subject.knows(op, ranks),
            Self::Peer(_) => true,
        }
    }

    /// Measures a task with ranks of its own; hands each line to `each` as it comes, with the name of what carries the
    /// data.
    ///
    /// # Errors
    /// `Io`: the ranks failed, or the user has ended them. `Config`: they work on another backend. What operations return.
    pub(crate) fn measure(
        &self,
        backend: Backend,
        ranks: usize,
        task: &Task,
        mut each: impl FnMut(&str, Line),
    ) -> Result<()> {
        let (sender, lines): (Sender<Event>, Receiver<Event>) = channel();
        let mut transport = match self {
            Self::Peer(program) => program.transport(backend).to_owned(),
            Self::Ours { .. } | Self::Joined { .. } => backend.name().to_owned(),
        };
        let end = thread::scope(|scope| {
            scope.spawn(|| {
                let end = self.run(backend, ranks, task, &sender);
                // The listener below leaves only after this.
                let _ = sender.send(Event::End(end));
            });
            loop {
                match lines.recv() {
                    Ok(Event::Said(text)) => match (text.strip_prefix(BACKEND), Line::parse(&text)) {
                        (Some(name), _) => transport = name.to_owned(),
                        (None, Some(line)) => each(&transport, line),
                        (None, None) => tracing::debug!(library = self.name(), text),
                    },
                    Ok(Event::End(end)) => return end,
                    Err(_) => return Err(Error::Internal { what: "a job without an end".into() }),
                }
            }
        });
        // An environment that overrides the choice would otherwise go unnoticed.
        let (asked, is_ours) = (backend.name(), !matches!(self, Self::Peer(_)));
        if is_ours && end.is_ok() && ["shm", "tcp"].contains(&asked) && transport != asked {
            return Err(Error::config(format!("the ranks were to use {asked}, but work on {transport}")));
        }
        end
    }

    fn run(&self, backend: Backend, ranks: usize, task: &Task, lines: &Sender<Event>) -> Result<()> {
        let say = |line| drop(lines.send(Event::Said(line)));
        match self {
            Self::Joined { subject, group } => rank::sweep(group, &task.of(*subject), say),
            Self::Ours { subject, algorithms } if backend == Backend::THREAD => {
                let forced = algorithms.as_deref().unwrap_or_default();
                let task = &task.of(*subject);
                let groups = threads_with(ranks, OPERATION_TIMEOUT, forced)?;
                thread::scope(|scope| {
                    let rank = |group| scope.spawn(move || threads_part(group, task, say));
                    let ranks: Vec<_> = groups.into_iter().map(rank).collect();
                    ranks.into_iter().try_for_each(|rank| match rank.join() {
                        Ok(done) => done,
                        Err(panic) => std::panic::resume_unwind(panic),
                    })
                })
            }
            Self::Ours { subject, algorithms } => {
                let task = &task.of(*subject);
                let myself = std::env::current_exe().map_err(|e| Error::io("looking for this program", e))?;
                let mut launch = Launch::new(myself).args(std::env::args_os().skip(1)).ranks(ranks);
                launch = launch.env("PHALANX_BACKEND", backend.name()).env(TASK_VAR, task.to_env());
                if let Some(algorithms) = algorithms {
                    launch = launch.env("PHALANX_ALGO", algorithms);
                }
                perform(launch, task, lines)
            }
            Self::Peer(program) => perform(program.launch(backend, ranks, task)?, task, lines),
        }
    }
}

fn threads_part(group: ProcessGroup, task: &Task, say: impl FnMut(String)) -> Result<()> {
    rank::sweep(&group, task, say)?;
    group.finalize()
}

enum Event {
    /// A line of rank 0.
    Said(String),
    End(Result<()>),
}

/// Runs a job to its end, which comes at the latest when it must be stuck.
fn perform(launch: Launch, task: &Task, lines: &Sender<Event>) -> Result<()> {
    let limit = JOB_SECONDS + (CASE_SECONDS + 5 * task.effort.budget) * task.bytes.len() as u32;
    let out = LineWriter { partial: Vec::new(), lines: lines.clone() };
    match launch.prefix(false).timeout(Some(limit)).output(out, io::sink()).run()? {
        Outcome::Success => Ok(()),
        // Whoever presses ^C means all of it.
        interrupted @ Outcome::Interrupted { .. } => {
            Err(Error::io("measuring", io::Error::new(io::ErrorKind::Interrupted, interrupted.to_string())))
        }
        failure => Err(Error::io("measuring", io::Error::other(failure.to_string()))),
    }
}

/// Whether the user has ended the measurement.
pub(crate) fn is_interrupt(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
}

/// Cuts what is written into lines.
struct LineWriter {
    partial: Vec<u8>,
    lines: Sender<Event>,
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.lines.send(Event::Said(text)).map_err(|_| io::ErrorKind::BrokenPipe)?;
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
    use crate::effort::Effort;
    use phalanx::{DType, ReduceOp};

    #[test]
    fn threads_are_measured() {
        let effort =
            Effort { budget: Duration::from_millis(1), samples: Some(2), warmup: Some(0), touch: true };
        let (dtype, reduce) = (DType::F16, ReduceOp::Sum);
        let (op, subject) = (Op::AllToAll, Subject::Registered);
        let task = Task { op, subject: Subject::Plain, bytes: vec![4, 1024], dtype, reduce, effort };
        let mut lines = Vec::new();
        let library = Library::Ours { subject, algorithms: Some("all_to_all=pairwise".into()) };
        let each = |by: &str, line| lines.push((by.to_owned(), line));
        library.measure(Backend::THREAD, 3, &task, each).unwrap();
        let [(by, line)] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((by.as_str(), line.bytes, line.wrong, line.samples_ns.len()), ("thread", 1024, 0, 2));
    }

    #[test]
    fn lines_are_put_together() {
        let (lines, said) = channel();
        let mut writer = LineWriter { partial: Vec::new(), lines };
        writer.write_all(b"a\nb").unwrap();
        writer.write_all(b"c\r\n\nd").unwrap();
        let said = said.try_iter().map(|event| match event {
            Event::Said(line) => line,
            Event::End(end) => panic!("{end:?}"),
        });
        assert_eq!(said.collect::<Vec<_>>(), ["a", "bc", ""]);
    }
}
