//! The launcher of node rank 0: it listens to the agents of the other hosts, and has them start the ranks there.

use super::address::{own_address, own_name};
use super::limits::{LEAVE_TIME, LOOK_INTERVAL, Limits};
use super::node::Node;
use super::protocol::{Here, Order, encode};
use super::reception::{Board, GONE, Reception};
use super::remote::{Line, RemoteProcess};
use super::ssh::{CALL_AGAIN_INTERVAL, Callers};
use crate::event::{Event, HostEvent};
use crate::placement::{Host, Place, Room};
use crate::supervise::is_message;
use phalanx_core::{Error, Result};
use phalanx_transport::{Endpoint, Strangers, loopback};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Where the ranks of this job run, as its launcher knows it.
pub(crate) struct Hosts {
    /// This host.
    own: Host,
    others: Option<Others>,
    callers: Option<Callers>,
    tasks: u64,
}

/// The other hosts of a job.
struct Others {
    nodes: usize,
    join_time: Duration,
    endpoint: Arc<Endpoint<Reception>>,
    board: Arc<Board>,
}

/// Why the job is not started.
pub(crate) enum NotHere {
    /// This signal came while agents were waited for.
    Asked(i32),
    /// Agents are missing.
    Missing(Error),
}

impl Hosts {
    /// This host alone.
    pub(crate) fn here(Room { places, cores }: Room) -> Self {
        let own = Host { name: own_name(), places, cores, leader: loopback() };
        Self { own, others: None, callers: None, tasks: 0 }
    }

    /// Listens to the agents of the other hosts.
    pub(crate) fn lead(
        room: Room,
        node: &Node,
        callers: Option<Callers>,
        limits: Limits,
        events: &Sender<Event>,
    ) -> Result<Self> {
        let board = Arc::default();
        let reception = Reception::new(node.count, limits.silence, events.clone(), Arc::clone(&board));
        let (bind, leader) = own_address(&node.rendezvous)?;
        let endpoint = Arc::new(Endpoint::start(bind, node.secret.clone(), reception)?);
        let Room { places, cores } = room;
        let own = Host { name: own_name(), places, cores, leader };
        let others = Others { nodes: node.count, join_time: limits.join, endpoint, board };
        Ok(Self { own, others: Some(others), callers, tasks: 0 })
    }

    /// Whether the job has several hosts.
    pub(crate) fn are_several(&self) -> bool {
        self.others.is_some()
    }

    /// How many hosts the job has.
    pub(crate) fn count(&self) -> usize {
        self.others.as_ref().map_or(1, |others| others.nodes)
    }

    /// The address at which servers for the ranks of all hosts listen.
    pub(crate) fn bind(&self) -> IpAddr {
        self.others.as_ref().map_or_else(loopback, |others| others.endpoint.addr().ip())
    }

    /// The hosts that are here, by node rank.
    pub(crate) fn present(&self) -> Vec<(usize, Host)> {
        let mut all = vec![(0, self.own.clone())];
        if let Some(others) = &self.others {
            all.extend(others.board.lock().iter().map(|(&node, present)| (node, host(&present.here))));
        }
        all
    }

    /// The host with this node rank, if it is here.
    pub(crate) fn host(&self, node: usize) -> Option<Host> {
        match node {
            0 => Some(self.own.clone()),
            _ => self.others.as_ref()?.board.lock().get(&node).map(|present| host(&present.here)),
        }
    }

    /// Waits until the agents of all hosts are here; what is to be known meanwhile goes to `warn`.
    pub(crate) fn wait_for_all(
        &mut self,
        limit: Option<Duration>,
        (events, inbox): (&Sender<Event>, &Receiver<Event>),
        warn: impl Fn(String),
    ) -> Result<(), NotHere> {
        let Some(others) = &self.others else { return Ok(()) };
        let began = Instant::now();
        let limit = limit.map_or(others.join_time, |limit| limit.min(others.join_time));
        let mut known = (None, None);
        let is_here = |node| others.board.lock().contains_key(&node);
        let (mut is_again, mut call_due) = (false, None);
        if let Some(callers) = &mut self.callers {
            callers.give_up(is_here);
            is_again = std::mem::replace(&mut callers.have_called, true);
            call_due = Some(began);
        }
        while 1 + others.board.lock().len() < others.nodes {
            if let Some(callers) =
                self.callers.as_mut().filter(|_| call_due.is_some_and(|due| Instant::now() >= due))
            {
                call_due = None;
                let rendezvous = SocketAddr::new(self.own.leader, others.endpoint.addr().port()).to_string();
                callers.call(&rendezvous, is_here, events).map_err(NotHere::Missing)?;
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(NotHere::Missing(self.missing(others, limit)));
            }
            match inbox.recv_timeout(left.min(LOOK_INTERVAL)) {
                Ok(Event::Signal(signal)) if !is_message(signal) => return Err(NotHere::Asked(signal)),
                Ok(Event::Host(event @ HostEvent::Lost { .. })) => warn(event.to_string()),
                Ok(Event::Host(event @ HostEvent::ShellEnded { node, .. })) if !is_here(node) => {
                    if is_again {
                        // It may be starting.
                        warn(event.to_string());
                        call_due = Some(Instant::now() + CALL_AGAIN_INTERVAL);
                        continue;
                    }
                    let why =
                        std::io::Error::other("is it reached without a password, and is phalanx there?");
                    let doing = format!("{event} before an agent came from there");
                    return Err(NotHere::Missing(Error::io(doing, why)));
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "nobody watches the hosts any more".into();
                    return Err(NotHere::Missing(Error::Internal { what }));
                }
            }
            let strangers = others.endpoint.strangers();
            // Each calls again and again.
            let new = (strangers.last, strangers.other_version);
            if new != known {
                known = new;
                warn(stranger(&strangers));
            }
        }
        Ok(())
    }

    fn missing(&self, others: &Others, waited: Duration) -> Error {
        let present = self.present();
        let absent: Vec<String> = (0..others.nodes)
            .filter(|node| present.iter().all(|(here, _)| here != node))
            .map(|node| {
                match self.callers.as_ref().and_then(|callers| callers.hosts.get(node.checked_sub(1)?)) {
                    Some(host) => format!("node {node} ({})", host.name),
                    None => format!("node {node}"),
                }
            })
            .collect();
        let strangers = others.endpoint.strangers();
        let called = if strangers == Strangers::default() {
            String::new()
        } else {
            format!("; {}", stranger(&strangers))
        };
        let doing = format!(
            "waiting at {} for the hosts of the job: {} of {} are here, missing after {:.1} s: {}{called}; is `phalanx run` with that --node-rank \
             started there, and can that host reach this one",
            others.endpoint.addr(),
            present.len(),
            others.nodes,
            waited.as_secs_f64(),
            absent.join(", ")
        );
        Error::io(doing, ErrorKind::TimedOut.into())
    }

    /// Has the agent of another host start a process there.
    pub(crate) fn start(
        &mut self,
        place: Place,
        start: u64,
        env: Vec<(String, String)>,
    ) -> Option<RemoteProcess> {
        let others = self.others.as_ref()?;
        let session = others.board.lock().get(&place.node).map(|present| present.session);
        let endpoint = Arc::downgrade(&others.endpoint);
        let line: Line = Arc::new(move |order| {
            if let (Some(endpoint), Some(session)) = (endpoint.upgrade(), session) {
                endpoint.call(move |_, outbox| outbox.send(session, encode(&order)));
            }
        });
        self.tasks += 1;
        let number = self.tasks;
        let (process, task) = RemoteProcess::new(number, line);
        match session {
            Some(session) => others.endpoint.call(move |reception, outbox| {
                reception.start(session, number, task, &Order::Start { task: number, start, env }, outbox);
            }),
            None => task.lost(GONE),
        }
        Some(process)
    }

    /// Tells all agents how the job has ended, and waits until they have gone, within reason.
    pub(crate) fn over(&mut self, code: i32, words: &str) {
        if let Some(others) = &self.others {
            let words = words.to_owned();
            others.endpoint.call(move |reception, outbox| reception.over(code, &words, outbox));
            others.board.wait_until_empty(LEAVE_TIME);
        }
        if let Some(callers) = &mut self.callers {
            callers.end();
        }
    }
}

/// As its agent says.
fn host(here: &Here) -> Host {
    Host {
        name: here.host.clone(),
        places: here.places as usize,
        cores: here.cores as usize,
        leader: here.leader,
    }
}

fn stranger(Strangers { refused, last, other_version }: &Strangers) -> String {
    let from = |ip: &Option<IpAddr>| ip.map_or_else(|| "somewhere".into(), |ip| ip.to_string());
    match other_version {
        Some((version, ip)) => {
            format!("a phalanx of another release, of wire version {version}, called from {ip}")
        }
        None => format!(
            "{} has called without knowing this job's secret ({refused} times so far): it must be the same on all hosts",
            from(last)
        ),
    }
}
