//! The libraries that are measured, and how their ranks are started.

use crate::backend::Backend;
use crate::job::Job;
use crate::op::Op;
use crate::peers::Program;
use crate::rank;
use crate::subject::Subject;
use crate::task::{TASK_VAR, Task};
use phalanx::launch::Launch;
use phalanx::{Error, ProcessGroup, Result, threads_with};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// How long one operation may take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

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

    /// What carries its data on `backend`, as long as its ranks say nothing else.
    pub(crate) fn transport(&self, backend: Backend) -> &'static str {
        match self {
            Self::Peer(program) => program.transport(backend),
            Self::Ours { .. } | Self::Joined { .. } => backend.name(),
        }
    }

    /// Whether it may work on `transport` where `backend` was asked for. An environment that overrides the choice would otherwise go unnoticed.
    ///
    /// # Errors
    /// `Config`: it may not.
    pub(crate) fn check(&self, backend: Backend, transport: &str) -> Result<()> {
        let asked = backend.name();
        match self {
            Self::Ours { .. } | Self::Joined { .. }
                if ["shm", "tcp"].contains(&asked) && transport != asked =>
            {
                Err(Error::config(format!("the ranks were to use {asked}, but work on {transport}")))
            }
            _ => Ok(()),
        }
    }

    /// Starts ranks that measure `task`.
    ///
    /// # Errors
    /// `Io`: they can't be started.
    pub(crate) fn start(&self, backend: Backend, ranks: usize, task: &Task) -> Result<Job> {
        match self {
            Self::Joined { subject, group } => {
                let (group, task) = (group.clone(), task.of(*subject));
                Ok(Job::thread(move |lines| rank::sweep(&group, &task, say_to(lines))))
            }
            Self::Ours { subject, algorithms } if backend == Backend::THREAD => {
                let forced = algorithms.as_deref().unwrap_or_default();
                let groups = threads_with(ranks, OPERATION_TIMEOUT, forced)?;
                let task = task.of(*subject);
                Ok(Job::thread(move |lines| threads(groups, &task, lines)))
            }
            Self::Ours { subject, algorithms } => {
                let task = &task.of(*subject);
                let myself = std::env::current_exe().map_err(|e| Error::io("looking for this program", e))?;
                let mut launch = Launch::new(myself).args(std::env::args_os().skip(1)).ranks(ranks);
                launch = launch.env("PHALANX_BACKEND", backend.name()).env(TASK_VAR, task.to_env());
                if let Some(algorithms) = algorithms {
                    launch = launch.env("PHALANX_ALGO", algorithms);
                }
                Job::processes(launch)
            }
            Self::Peer(program) => Job::processes(program.launch(backend, ranks, task)?),
        }
    }
}

/// All ranks, each a thread.
fn threads(groups: Vec<ProcessGroup>, task: &Task, lines: &Sender<String>) -> Result<()> {
    let part = |group: ProcessGroup| {
        rank::sweep(&group, task, say_to(lines))?;
        group.finalize()
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || part(group))).collect();
        ranks.into_iter().try_for_each(|rank| match rank.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Says lines to a listener that may have gone away.
fn say_to(lines: &Sender<String>) -> impl FnMut(String) {
    move |line| drop(lines.send(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::task::tests::task;
    use phalanx::DType;

    #[test]
    fn threads_are_measured() {
        let task = Task { op: Op::AllToAll, bytes: vec![4, 1024], dtype: DType::F16, ..task() };
        let algorithms = Some("all_to_all=pairwise".into());
        let library = Library::Ours { subject: Subject::Registered, algorithms };
        let job = library.start(Backend::THREAD, 3, &task).unwrap();
        let next = || job.line(OPERATION_TIMEOUT).unwrap();
        assert_eq!(next().as_deref(), Some("backend thread"));
        for &place in Op::AllToAll.places() {
            let line = Line::parse(&next().unwrap()).unwrap();
            assert_eq!((line.place, line.bytes, line.wrong, line.samples_ns.len()), (place, 1024, 0, 2));
        }
        assert_eq!(next(), None);
        job.end().unwrap();
    }

    #[test]
    fn another_transport_than_was_asked_for_is_noticed() {
        let ours = Library::Ours { subject: Subject::Plain, algorithms: None };
        assert!(ours.check(Backend::TCP, "shm").unwrap_err().to_string().contains("work on shm"));
        ours.check(Backend::TCP, "tcp").unwrap();
        ours.check(Backend::AUTO, "shm").unwrap();
    }
}
