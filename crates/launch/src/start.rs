//! From what is to be launched to the thread that does it: as the launcher of one host, the one that leads, or an agent.

use crate::attempts::run_attempts;
use crate::event::Event;
use crate::exit_code::exit_code;
use crate::hosts::agent;
use crate::hosts::leader::Hosts;
use crate::hosts::letter::Letter;
use crate::hosts::limits::Limits;
use crate::hosts::node::Node;
use crate::hosts::ssh::Callers;
use crate::job::{Ended, Job, was_asked};
use crate::launch::{Launch, Remote};
use crate::logs::DRAIN;
use crate::outcome::Outcome;
use crate::placement::Room;
use crate::plan::{Order, check, not_inherited};
use crate::process::Ends;
use crate::program::Program;
use crate::running::{Running, join};
use crate::stdin::RankInput;
use crate::supervise::Asked;
use crate::writer::Writers;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::Elastic;
use phalanx_transport::Secret;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

impl Launch {
    /// Starts the launcher's thread, and waits until all ranks have been started; an agent's are when the leader says so.
    pub(crate) fn start(self, events: Sender<Event>, inbox: Receiver<Event>) -> Result<Running> {
        // Ranks write their traces there, and look from their own folder.
        let log_dir = match self.log_dir {
            Some(folder) if self.working_dir.is_some() => Some(
                std::path::absolute(folder)
                    .map_err(|error| Error::io("asking for the current folder", error))?,
            ),
            folder => folder,
        };
        let job_id = self.job_id.map_or_else(random_id, Ok)?;
        let order = Order {
            ranks: self.elastic.map_or(self.ranks, Elastic::max),
            job_id: job_id.clone(),
            log_dir,
            max_restarts: self
                .max_restarts
                .unwrap_or_else(|| self.elastic.map_or(0, |size| size.max().saturating_mul(3))),
            elastic: self.elastic,
        };
        // In an elastic job over several hosts, each has as many places as it was given, and there may be more of them than ranks.
        let node = match &self.remote {
            Some(Remote { hosts, .. }) if hosts.is_empty() => None,
            Some(remote) => {
                for host in &remote.hosts {
                    check(host.ranks, 1, &job_id, [])?;
                }
                let rendezvous = remote.rendezvous.clone();
                Some(Node::first(1 + remote.hosts.len(), rendezvous, Secret::generate()?)?)
            }
            None => self.node.filter(|node| node.count > 1),
        };
        let places = if node.is_some() { self.ranks } else { order.ranks };
        check(places, 1, &job_id, self.env.keys().map(String::as_str))?;
        #[cfg(unix)]
        crate::signals::see_how_children_end()?;
        let program = Program {
            program: self.program,
            args: self.args,
            env: self.env.into_iter().collect(),
            not_inherited: not_inherited(std::env::var_os("PHALANX_RANK").is_some()),
            folder: self.working_dir,
            binding: self.binding,
        };
        program.check_folder()?;
        let node = node.map(|node| if program.encrypts() { node.encrypting() } else { node });
        let room = Room { places, cores: thread::available_parallelism().map_or(1, usize::from) };
        let pids = Arc::new(Mutex::new(Vec::new()));
        let restarts = Arc::<AtomicUsize>::default();
        let own_events = events.clone();
        // The ranks die with the thread that starts them, so that thread must be the last to leave: it supervises them.
        let (started, all_started) = channel();
        let all_started_there = move || {
            // Nobody waits for this only if the starter has panicked.
            let _ = started.send(());
        };
        let supervise: Box<dyn FnOnce() -> Result<Outcome> + Send> = match node {
            Some(node) if node.rank > 0 => {
                let limits = Limits::of(&program)?;
                Box::new(move || {
                    all_started_there();
                    agent::serve(&node, room, program, limits, (&own_events, &inbox))
                })
            }
            node => {
                let mut hosts = match &node {
                    Some(node) => {
                        let callers = self.remote.map(|remote| remote.callers(node, &program)).transpose()?;
                        Hosts::lead(room, node, callers, Limits::of(&program)?, &events)?
                    }
                    None => Hosts::here(room),
                };
                let job = Job {
                    program,
                    prefix: self.prefix,
                    timestamps: self.timestamps,
                    input: if self.stdin { RankInput::own()? } else { RankInput::Empty },
                    writers: Writers::start(self.out, self.err)?,
                    grace: self.grace,
                    timeout: self.timeout,
                    replacements: order.max_restarts,
                    began: Instant::now(),
                    pids: pids.clone(),
                    restarts: restarts.clone(),
                };
                Box::new(move || {
                    let secret = node.as_ref().map(|node| &node.secret);
                    let (hosts, events) = ((&mut hosts, secret), (&own_events, &inbox));
                    supervise(&order, &job, hosts, events, all_started_there)
                })
            }
        };
        let supervisor = thread::Builder::new()
            .name("phalanx-launch".to_owned())
            .spawn(supervise)
            .map_err(|error| Error::io("starting the thread that supervises the ranks", error))?;
        match all_started.recv() {
            Ok(()) => Ok(Running { job_id, pids, restarts, events, supervisor: Some(supervisor) }),
            Err(_) => {
                Err(join(supervisor).err().unwrap_or_else(|| Error::Internal { what: "no ranks".into() }))
            }
        }
    }
}

impl Remote {
    /// What the agents are told.
    fn callers(self, node: &Node, program: &Program) -> Result<Callers> {
        let folder =
            std::env::current_dir().map_err(|error| Error::io("asking for the current folder", error))?;
        let folder = folder.join(program.folder.as_deref().unwrap_or(Path::new("")));
        let letter = Letter {
            secret: node.secret.to_hex(),
            encrypts: node.secret.encrypts(),
            rank: 0,
            count: u32::try_from(node.count).unwrap_or(u32::MAX),
            rendezvous: String::new(),
            places: 0,
            folder: folder.into(),
            program: program.program.clone(),
            args: program.args.clone(),
            env: program.taken_along(),
            binding: program.binding,
        };
        let Self { hosts, shell, agent, .. } = self;
        Ok(Callers {
            hosts,
            shell,
            agent,
            letter,
            shells: Vec::new(),
            ends: Ends::start()?,
            have_called: false,
        })
    }
}

/// Is the agent of this host that a launcher has started through a remote shell, for what `input`, which the shell gives it, says: see
/// [`Launch::remote_hosts`]. It ends when that does.
///
/// # Errors
/// `Io`, `Config`: standard input does not say what to do; the launcher is not reached, or is gone. No rank is left running.
///
/// # Examples
/// ```
/// // `phalanx agent` gives it standard input.
/// let error = phalanx_launch::serve_agent(std::io::empty()).unwrap_err();
/// assert!(error.to_string().contains("reading what the launcher says"), "{error}");
/// ```
pub fn serve_agent(input: impl Read + Send + 'static) -> Result<Outcome> {
    let (events, inbox) = channel();
    #[cfg(unix)]
    let _forwarding = crate::signals::forward_to(events.clone())?;
    #[cfg(unix)]
    crate::signals::see_how_children_end()?;
    let not_inherited = not_inherited(std::env::var_os("PHALANX_RANK").is_some());
    agent::serve_letter(input, (&events, &inbox), not_inherited)
}

/// Runs the job to its end, and says so on all its hosts.
fn supervise(
    order: &Order,
    job: &Job,
    (hosts, secret): (&mut Hosts, Option<&Secret>),
    (events, inbox): (&Sender<Event>, &Receiver<Event>),
    all_started: impl Fn(),
) -> Result<Outcome> {
    let ended = run_attempts(order, job, (&mut *hosts, secret), (events, inbox), all_started);
    let (code, words) = match &ended {
        Ok(ended) => (ended.outcome.exit_code(), ended.outcome.to_string()),
        Err(error) => (exit_code(error), error.to_string()),
    };
    hosts.over(code, words.lines().next().unwrap_or_default());
    // How long readers may take who are not done: as long as ranks might.
    let limit = match &ended {
        Ok(Ended { asked: Asked::AtOnce, .. }) | Err(_) => Some(DRAIN),
        Ok(_) => job.timeout.map(|limit| limit.saturating_sub(job.began.elapsed()).saturating_add(job.grace)),
    };
    let mut is_left = false;
    let is_asked = || {
        is_left |= was_asked(inbox);
        is_left
    };
    job.writers.finish(limit, is_asked);
    let Ended { mut outcome, asked, .. } = ended?;
    if let Outcome::Failure(failure) = &mut outcome {
        failure.interrupted = is_left || asked != Asked::Nothing;
    }
    Ok(outcome)
}

fn random_id() -> Result<String> {
    let id = getrandom::u32().map_err(|error| Error::Unavailable {
        what: "a source of random numbers".to_owned(),
        tried: error.to_string(),
    })?;
    Ok(format!("{id:08x}"))
}
