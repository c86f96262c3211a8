//! Agents that the leader starts itself, through ssh or another remote shell.

use super::letter::Letter;
use crate::event::{Event, HostEvent};
use crate::exit_kind::{SIGKILL, SIGTERM};
use crate::process::{Ends, Process};
use crate::start_error::why_not_started;
use phalanx_core::{Error, Result};
use std::ffi::OsString;
use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What starts a program on another host: it is given the host's name and one argument, a command for a shell.
pub(crate) const SSH: [&str; 4] = ["ssh", "-T", "-o", "BatchMode=yes"];
/// How long a host that was called in vain, and was there before, is left alone until the next call.
pub(super) const CALL_AGAIN_INTERVAL: Duration = Duration::from_secs(2);
/// How long ssh may take to end once its agent has, before it is asked to, and then before it is killed.
const END_TIME: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Another host of a job, on which the launcher is to start an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteHost {
    /// Its name, as ssh knows it: an alias or `user@host` as well.
    pub name: String,
    /// How many ranks to start there.
    pub ranks: usize,
}

impl RemoteHost {
    /// A host with room for so many ranks.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_launch::RemoteHost::new("node-b", 4).ranks, 4);
    /// ```
    pub fn new(name: impl Into<String>, ranks: usize) -> Self {
        Self { name: name.into(), ranks }
    }
}

/// The hosts on which the leader starts agents, and the remote shells in which it does.
pub(crate) struct Callers {
    pub(crate) hosts: Vec<RemoteHost>,
    /// The remote shell.
    pub(crate) shell: Vec<OsString>,
    /// The command of an agent, on every host.
    pub(crate) agent: Vec<OsString>,
    /// What all agents are told; each besides who it is.
    pub(crate) letter: Letter,
    pub(crate) shells: Vec<Shell>,
    /// What notices their ends.
    pub(crate) ends: Ends,
    /// Whether the hosts have been called before: then they are there, or will be again.
    pub(crate) have_called: bool,
}

/// A remote shell.
pub(crate) struct Shell {
    node: usize,
    process: Process,
    has_ended: Arc<Mutex<bool>>,
    /// Nobody wants to hear of its end.
    is_given_up: Arc<AtomicBool>,
    /// Its standard input: the agent ends when that does.
    _input: Arc<Mutex<Option<ChildStdin>>>,
}

impl Callers {
    /// Ends the shells to hosts whose agents are gone. A shell can outlive its host for hours: it says nothing there, so nothing tells it.
    pub(super) fn give_up(&mut self, is_here: impl Fn(usize) -> bool) {
        self.forget(|shell| !is_here(shell.node));
    }

    fn forget(&mut self, is_over: impl Fn(&Shell) -> bool) {
        let (over, kept) = std::mem::take(&mut self.shells).into_iter().partition(is_over);
        self.shells = kept;
        let over: Vec<Shell> = over;
        for mut shell in over {
            shell.is_given_up.store(true, Ordering::SeqCst);
            shell.process.reap();
        }
    }

    /// Starts agents on those hosts that have none. Call it on the thread that is the last to leave: shells end with it.
    pub(super) fn call(
        &mut self,
        rendezvous: &str,
        is_here: impl Fn(usize) -> bool,
        events: &Sender<Event>,
    ) -> Result<()> {
        self.forget(Shell::has_ended);
        for (index, host) in self.hosts.iter().enumerate() {
            let node = index + 1;
            if is_here(node) || self.shells.iter().any(|shell| shell.node == node) {
                continue;
            }
            let letter = Letter {
                rank: u32::try_from(node).unwrap_or(u32::MAX),
                places: u32::try_from(host.ranks).unwrap_or(u32::MAX),
                rendezvous: rendezvous.to_owned(),
                ..self.letter.clone()
            };
            let words: Vec<String> = self.agent.iter().map(|word| quoted(&word.to_string_lossy())).collect();
            let (words, letter) = (words.join(" "), letter.to_bytes()?);
            self.shells.push(start(&self.shell, host, node, &words, letter, (events, &self.ends))?);
        }
        Ok(())
    }

    /// Waits until all have ended, as their agents have; ends those that do not.
    pub(super) fn end(&mut self) {
        for signal in [None, Some(SIGTERM), Some(SIGKILL)] {
            let living = || self.shells.iter().filter(|shell| !shell.has_ended());
            if let Some(signal) = signal {
                living().for_each(|shell| shell.process.signal(signal));
            }
            let until = Instant::now() + END_TIME;
            while living().next().is_some() && Instant::now() < until {
                thread::sleep(LOOK_INTERVAL);
            }
        }
        self.shells.drain(..).for_each(|mut shell| shell.process.reap());
    }
}

impl Shell {
    fn has_ended(&self) -> bool {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts an agent on a host, and gives it its letter.
fn start(
    shell: &[OsString],
    host: &RemoteHost,
    node: usize,
    agent: &str,
    letter: Vec<u8>,
    (events, ends): (&Sender<Event>, &Ends),
) -> Result<Shell> {
    let name = host.name.clone();
    let (program, words) =
        shell.split_first().ok_or_else(|| Error::config("the remote shell (--ssh) is empty"))?;
    let starting = |error| Error::io(format!("starting {} to {}", program.display(), host.name), error);
    let mut command = Command::new(program);
    command.args(words).arg(&name).arg(agent);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut process = Process::start(command, None).map_err(|error| why_not_started(program, None, error))?;
    let input = Arc::new(Mutex::new(process.take_input()));
    let has_ended = Arc::<Mutex<bool>>::default();
    let (ended, events, given) = (Arc::clone(&has_ended), events.clone(), Arc::clone(&input));
    let is_given_up = Arc::<AtomicBool>::default();
    let is_unheard = Arc::clone(&is_given_up);
    let watched = process.watch(ends, move |exit| {
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if !is_unheard.load(Ordering::SeqCst) {
            // The receiver is gone only when the job was given up.
            let _ = events.send(Event::Host(HostEvent::ShellEnded { node, host: name, exit }));
        }
    });
    let give = move || {
        if let Some(input) = &mut *given.lock().unwrap_or_else(PoisonError::into_inner) {
            // If it takes nothing, it has ended, which is seen.
            let _ = input.write_all(&letter).and_then(|()| input.flush());
        }
    };
    let given = thread::Builder::new().name("phalanx-ssh".to_owned()).spawn(give);
    let mut shell = Shell { node, process, has_ended, is_given_up, _input: input };
    if let Err(error) = watched.and(given.map(drop)) {
        shell.process.signal(SIGKILL);
        shell.process.reap();
        return Err(starting(error));
    }
    Ok(shell)
}

/// A word for a shell, which takes it as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted("/opt/a b/it's"), r"'/opt/a b/it'\''s'");
    }
}
