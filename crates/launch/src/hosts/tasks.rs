//! The processes of an agent: started, signalled and reaped as the leader says.

use super::feed::{self, Credit};
use super::protocol::{Exit, Order, PIECE, Stream, Word, encode};
use crate::event::Event;
use crate::exit_code::exit_code;
use crate::exit_kind::SIGKILL;
use crate::process::{Ends, Process};
use crate::program::Program;
use crate::stream;
use crate::watcher::Watcher;
use phalanx_core::{Error, Result};
use phalanx_transport::{Secret, SessionSender};
use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// All that an agent has started and not reaped.
pub(super) struct Tasks {
    program: Program,
    /// That of the job, of which those of its starts are made.
    secret: Secret,
    sender: Arc<SessionSender>,
    events: Sender<Event>,
    processes: HashMap<u64, Process>,
    ends: Ends,
    reader: Watcher<stream::Stream>,
    /// Of the streams that are not at their end: what a process has written may be on its way when it is gone.
    credits: HashMap<(u64, Stream), Credit>,
}

impl Tasks {
    pub(super) fn new(
        program: Program,
        secret: Secret,
        sender: Arc<SessionSender>,
        events: Sender<Event>,
    ) -> Result<Self> {
        let (processes, credits) = Default::default();
        let reader = Watcher::start("phalanx-feed", "sends the ranks' output")?;
        Ok(Self { program, secret, sender, events, processes, ends: Ends::start()?, reader, credits })
    }

    /// Says something to the leader. If that is gone, the other half of the session shows it.
    pub(super) fn say(&self, word: &Word) {
        let _ = self.sender.send(&encode(word));
    }

    /// Does what the leader wants of a process. It may have been reaped meanwhile.
    pub(super) fn perform(&mut self, order: Order) {
        match order {
            Order::Start { task, start, env } => {
                if let Err(error) = self.start(task, start, &env) {
                    self.refuse(task, &error);
                }
            }
            Order::Signal { task, signal } => {
                if let Some(process) = self.processes.get(&task) {
                    process.signal(signal);
                }
            }
            Order::Tell { task: number, signal, behind } => {
                if self.processes.get(&number).is_some_and(|process| !process.tell(signal, behind)) {
                    self.say(&Word::Deaf { task: number, signal });
                }
            }
            Order::Reap { task } => {
                if let Some(mut process) = self.processes.remove(&task) {
                    process.reap();
                }
            }
            Order::Taken { task, stream, bytes } => {
                if let Some(credit) = self.credits.get(&(task, stream)) {
                    credit.taken(bytes as usize);
                }
            }
            Order::Alive | Order::Over { .. } => {}
        }
    }

    fn start(&mut self, number: u64, start: u64, env: &[(String, String)]) -> Result<()> {
        let secret = self.secret.of_start(start).to_hex();
        let env = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut process = self.program.start(secret.as_ref(), env, Stdio::null())?;
        self.say(&Word::Started { task: number, pid: process.id() });
        match self.watch(number, &mut process) {
            Ok(credits) => {
                self.processes.insert(number, process);
                self.credits.retain(|_, credit| !credit.is_closed());
                self.credits.extend(credits.map(|(stream, credit)| ((number, stream), credit)));
                Ok(())
            }
            Err(error) => {
                process.signal(SIGKILL);
                process.reap();
                Err(error)
            }
        }
    }

    fn watch(&self, number: u64, process: &mut Process) -> Result<[(Stream, Credit); 2]> {
        let (out, err) = process.take_output().map_err(|error| Error::io("taking a rank's output", error))?;
        let events = self.events.clone();
        let ended = move |exit| {
            // The receiver is gone only when the job was given up.
            let _ = events.send(Event::TaskExited { task: number, exit });
        };
        process.watch(&self.ends, ended).map_err(|error| Error::io("waiting for a rank's end", error))?;
        let feed = |stream, source| (stream, feed::start(number, stream, source, &self.sender, &self.reader));
        Ok([feed(Stream::Out, out), feed(Stream::Err, err)])
    }

    /// Says of a process that could not be started what a shell would say.
    fn refuse(&self, task: u64, error: &Error) {
        let mut line = format!("phalanx: {error}\n").into_bytes();
        line.truncate(PIECE);
        self.say(&Word::Output { task, stream: Stream::Err, bytes: line });
        [Stream::Out, Stream::Err].into_iter().for_each(|stream| self.say(&Word::Closed { task, stream }));
        self.say(&Word::Exited { task, exit: Exit::Code(exit_code(error)) });
    }

    /// Kills all that is left, and what that has left behind.
    pub(super) fn end(&mut self) {
        self.processes.values().for_each(|process| process.signal(SIGKILL));
        self.processes.drain().for_each(|(_, mut process)| process.reap());
        self.credits.drain().for_each(|(_, credit)| credit.close());
    }
}
