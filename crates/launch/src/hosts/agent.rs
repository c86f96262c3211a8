//! The launcher of a host that does not lead: it calls the leader, and does what that says until the job is over or the session breaks.

use super::address::own_name;
use super::letter::Letter;
use super::limits::{ALIVE_INTERVAL, LOOK_INTERVAL, Limits, STRANGER_TIME};
use super::node::Node;
use super::protocol::{Here, Order, Word, order};
use super::tasks::Tasks;
use crate::descriptors::allow_to_serve;
use crate::event::Event;
use crate::outcome::Outcome;
use crate::placement::Room;
use crate::program::Program;
use crate::supervise::is_message;
use phalanx_core::{Deadline, Error, Result};
use phalanx_transport::handshake::{Hello, Status};
use phalanx_transport::{NoSession, Session, SessionReceiver, try_to_open_session};
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long one attempt to reach the leader may take before what came of the last one is looked at.
const TRY_TIME: Duration = Duration::from_secs(1);

/// Is the agent of this host until the job is over.
///
/// # Errors
/// `Io`: the leader does not answer in time, does not know the secret, or is gone. No process is left here.
pub(crate) fn serve(
    node: &Node,
    room: Room,
    program: Program,
    limits: Limits,
    (events, inbox): (&Sender<Event>, &Receiver<Event>),
) -> Result<Outcome> {
    allow_to_serve(room.places)?;
    let session = match connect(node, limits.join, inbox)? {
        Ok(session) => session,
        Err(signal) => return Ok(Outcome::Interrupted { signal }),
    };
    let here = Here {
        host: own_name(),
        places: u32::try_from(room.places).unwrap_or(u32::MAX),
        cores: u32::try_from(room.cores).unwrap_or(u32::MAX),
        leader: session.peer_addr().ip().to_canonical(),
    };
    let (sender, receiver) = session.split();
    let sender = Arc::new(sender);
    let mut tasks = Tasks::new(program, node.secret.clone(), Arc::clone(&sender), events.clone())?;
    tasks.say(&Word::Here(here));
    let silence = limits.silence;
    let heard = events.clone();
    let listening = thread::Builder::new()
        .name("phalanx-agent".to_owned())
        .spawn(move || listen(receiver, silence, &heard))
        .map_err(|error| Error::io("starting the thread that listens to the leader", error));
    let over = listening.and_then(|_| obey(&mut tasks, inbox));
    tasks.end();
    sender.close();
    let (code, words) = over.map_err(|error| match error {
        Error::Io { doing, source } => Error::Io {
            doing: format!(
                "node {} has lost the launcher that leads the job, node 0 at {}, and has ended its ranks: {doing}",
                node.rank, node.rendezvous
            ),
            source,
        },
        other => other,
    })?;
    Ok(if code == 0 { Outcome::Success } else { Outcome::Led { exit_code: code, words } })
}

/// Is an agent that [ssh](super::ssh) has started, for what is told it on standard input, with which it ends.
///
/// # Errors
/// As of [`serve`], and `Io` or `Config` if that is no launcher's word.
pub(crate) fn serve_letter(
    mut input: impl Read + Send + 'static,
    (events, inbox): (&Sender<Event>, &Receiver<Event>),
    not_inherited: Vec<&'static str>,
) -> Result<Outcome> {
    let letter = Letter::read(&mut input)?;
    std::env::set_current_dir(&letter.folder)
        .map_err(|error| Error::io(format!("going to the folder {}", letter.folder.display()), error))?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (node, room, program) = letter.open(cores, not_inherited)?;
    let limits = Limits::of(&program)?;
    let gone = events.clone();
    let watch = move || {
        // Nothing more is said there.
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        let error = Error::io("the remote shell that started it has ended", ErrorKind::BrokenPipe.into());
        let _ = gone.send(Event::LeaderLost(Box::new(error)));
    };
    thread::Builder::new()
        .name("phalanx-agent".to_owned())
        .spawn(watch)
        .map_err(|error| Error::io("starting the thread that watches the remote shell", error))?;
    serve(&node, room, program, limits, (events, inbox))
}

/// Does what the leader says, until it says that the job is over: with which exit code, and why.
fn obey(tasks: &mut Tasks, inbox: &Receiver<Event>) -> Result<(i32, String)> {
    let mut alive_due = Instant::now() + ALIVE_INTERVAL;
    loop {
        match inbox.recv_timeout(alive_due.saturating_duration_since(Instant::now())) {
            Ok(Event::Order(Order::Over { code, words })) => return Ok((code, words)),
            Ok(Event::Order(order)) => tasks.perform(order),
            Ok(Event::LeaderLost(error)) => return Err(*error),
            Ok(Event::TaskExited { task, exit }) => tasks.say(&Word::Exited { task, exit: exit.into() }),
            Ok(Event::Signal(signal)) => tasks.say(&Word::Asked { signal }),
            Ok(Event::Exited { .. } | Event::Heard { .. } | Event::Host(_))
            | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Internal { what: "nobody listens to the leader any more".into() });
            }
        }
        if Instant::now() >= alive_due {
            tasks.say(&Word::Alive);
            alive_due = Instant::now() + ALIVE_INTERVAL;
        }
    }
}

/// Passes on what the leader says, until it is gone.
fn listen(mut receiver: SessionReceiver, silence: Option<Duration>, events: &Sender<Event>) {
    let lost = |error| Event::LeaderLost(Box::new(error));
    loop {
        let limit = Deadline::after(Instant::now(), silence.unwrap_or(Duration::MAX));
        let event = match receiver.recv(&limit) {
            Ok(Some(message)) => match order(&message) {
                Ok(Order::Alive) => continue,
                Ok(order) => Event::Order(order),
                Err(why) => {
                    let doing = format!("it said what can't be read: {why}");
                    lost(Error::io(doing, ErrorKind::InvalidData.into()))
                }
            },
            Ok(None) => {
                let waited = limit.limit().as_secs_f64();
                lost(Error::io(
                    format!("nothing was heard of it for {waited:.1} s"),
                    ErrorKind::TimedOut.into(),
                ))
            }
            Err(error) => lost(error),
        };
        let is_last = matches!(event, Event::LeaderLost(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Calls the leader until it answers; `Err` with a signal that came meanwhile.
fn connect(node: &Node, limit: Duration, inbox: &Receiver<Event>) -> Result<Result<Session, i32>> {
    let (opened, session) = channel();
    let called = node.clone();
    let call = move || {
        // Nobody waits for it if a signal has come.
        let _ = opened.send(open(&called, limit));
    };
    thread::Builder::new()
        .name("phalanx-agent".to_owned())
        .spawn(call)
        .map_err(|error| Error::io("starting the thread that calls the leader", error))?;
    loop {
        match session.recv_timeout(LOOK_INTERVAL) {
            Ok(session) => return session.map(Ok),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Internal { what: "the thread that calls the leader has gone".into() });
            }
        }
        for event in inbox.try_iter() {
            match event {
                Event::Signal(signal) if !is_message(signal) => return Ok(Err(signal)),
                Event::LeaderLost(error) => return Err(*error),
                _ => {}
            }
        }
    }
}

fn open(node: &Node, limit: Duration) -> Result<Session> {
    let (rank, count, addr) = (node.rank, node.count, node.rendezvous.as_str());
    let deadline = Deadline::after(Instant::now(), limit);
    let mut stranger_since = None;
    loop {
        let now = Instant::now();
        let step = Deadline::after(now, TRY_TIME.min(deadline.remaining(now)));
        let NoSession { what, refusal, is_final, is_stranger, own } =
            match try_to_open_session(addr, &node.secret, &Hello::agent(rank, count), &step) {
                Ok(session) => return Ok(session),
                Err(none) => none,
            };
        if let Some(error) = own {
            return Err(error);
        }
        let now = Instant::now();
        stranger_since = if is_stranger { stranger_since.or(Some(now)) } else { None };
        let is_another =
            stranger_since.is_some_and(|since| now.saturating_duration_since(since) >= STRANGER_TIME);
        let why = match refusal {
            // It may be the agent before this one, whose end the leader has not noticed yet.
            Some(Status::Taken) if !deadline.has_passed(now) => {
                thread::sleep(LOOK_INTERVAL);
                continue;
            }
            Some(Status::Taken) => {
                format!("node 0 has an agent with node rank {rank} already: was it started twice?")
            }
            Some(Status::OtherSize(theirs)) => {
                format!(
                    "node 0 was told that there are {theirs} hosts, and this one that there are {count} (--nnodes)"
                )
            }
            _ if is_another => format!(
                "what answers there does not know this job's secret: it must be the same on all hosts ({what})"
            ),
            _ if is_final => what,
            _ if deadline.has_passed(now) => format!(
                "{what}; is `phalanx run --node-rank 0` started there, and can this host reach it? (waited {:.1} s)",
                limit.as_secs_f64()
            ),
            _ => continue,
        };
        let doing = format!("node {rank} of {count} can't join the job that node 0 leads at {addr}");
        return Err(Error::io(doing, std::io::Error::other(why)));
    }
}
