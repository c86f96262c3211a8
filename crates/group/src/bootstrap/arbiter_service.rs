//! The arbiter as a service of rank 0's endpoint: notices come in over sessions, verdicts go out.

use super::host_probe::HostProber;
use crate::control::arbiter::{Arbiter, Mail};
use crate::control::heartbeat::Heartbeat;
use crate::control::launcher_link::LauncherLink;
use crate::control::notice::Verdict;
use phalanx_core::Loss;
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Message, Outbox, Service, SessionId};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an end without a farewell waits for the launcher's word on it.
pub(super) const EXIT_TIME: Duration = Duration::from_millis(250);
/// How often it is looked for.
pub(super) const EXIT_INTERVAL: Duration = Duration::from_millis(5);

/// The arbiter as a service of rank 0's endpoint.
#[derive(Debug)]
pub(crate) struct ArbiterService {
    arbiter: Arbiter,
    /// The lines, by their sessions and by their ranks.
    ranks: HashMap<SessionId, usize>,
    sessions: HashMap<usize, SessionId>,
    /// Ranks from which something has come since the last look at the clock, …
    heard: BTreeSet<usize>,
    /// … and those whose lines have ended without a farewell.
    ended: Vec<usize>,
    /// Asks hosts of which nothing is heard; `None` where there is no network.
    prober: Option<HostProber>,
    /// The launcher, which knows how processes end.
    launcher: Option<Arc<dyn LauncherLink>>,
}

impl ArbiterService {
    /// Ranks that say nothing for as long as `heartbeat` are lost.
    pub(crate) fn new(
        world_size: usize,
        heartbeat: Option<Duration>,
        launcher: Option<Arc<dyn LauncherLink>>,
        now: Instant,
    ) -> Self {
        let heartbeat = heartbeat.map(|limit| Heartbeat::new(limit, now));
        let (ranks, sessions, heard, ended) = Default::default();
        Self {
            arbiter: Arbiter::new(world_size, heartbeat),
            ranks,
            sessions,
            heard,
            ended,
            prober: None,
            launcher,
        }
    }

    /// Asks the hosts of ranks that are silent whether they are cut off.
    pub(crate) fn asking(mut self, heartbeat: Option<Duration>) -> Self {
        self.prober = heartbeat.map(HostProber::new);
        self
    }

    fn post(&self, mail: Mail, outbox: &mut Outbox) {
        // What all are told stands in a row, and is written once.
        let mut written: Option<(Verdict, Message)> = None;
        for (rank, verdict) in mail {
            let Some(&session) = self.sessions.get(&rank) else { continue };
            let message = match &written {
                Some((before, message)) if *before == verdict => message.clone(),
                _ => {
                    let bytes = postcard::to_stdvec(&verdict).expect("verdicts are plain data");
                    written.insert((verdict, bytes.into())).1.clone()
                }
            };
            outbox.send(session, message);
        }
    }
}

impl<S> Service<S> for ArbiterService {
    fn admit(&mut self, hello: &Hello) -> Admission {
        let rank = hello.rank as usize;
        if hello.purpose == Purpose::Heartbeat {
            return if self.sessions.contains_key(&rank) {
                Admission::Serve
            } else {
                Admission::Refuse(Status::Unwanted)
            };
        }
        if self.arbiter.admits(rank) && !self.sessions.contains_key(&rank) {
            Admission::Serve
        } else {
            Admission::Refuse(Status::Taken)
        }
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, _outbox: &mut Outbox) {
        if hello.purpose == Purpose::Heartbeat {
            // That it has come this far is all it wants to say, and to know.
            self.heard.insert(hello.rank as usize);
            return;
        }
        self.ranks.insert(session, hello.rank as usize);
        self.sessions.insert(hello.rank as usize, session);
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        let Some(&rank) = self.ranks.get(&session) else { return };
        match postcard::from_bytes(message) {
            Ok(notice) => {
                let mail = self.arbiter.handle(rank, notice);
                self.heard.insert(rank);
                self.post(mail, outbox);
            }
            Err(error) => tracing::warn!(rank, %error, "a notice that cannot be read"),
        }
    }

    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        let Some(rank) = self.ranks.remove(&session) else { return };
        self.sessions.remove(&rank);
        // A process that never joined may try again.
        if !self.arbiter.admits(rank) {
            self.ended.push(rank);
        }
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        std::mem::take(&mut self.heard).into_iter().for_each(|rank| self.arbiter.heard(rank, now));
        for rank in std::mem::take(&mut self.ended) {
            let mail = match &self.launcher {
                Some(_) => self.arbiter.closed(rank, now + EXIT_TIME),
                None => self.arbiter.disconnected(rank, Loss::Died),
            };
            self.post(mail, outbox);
        }
        if let Some(prober) = &self.prober {
            let addrs = self.arbiter.in_doubt(now);
            if !addrs.is_empty() {
                let answering = addrs.iter().map(SocketAddr::ip).filter(|&host| prober.answers(host, now));
                self.arbiter.answered(answering.collect());
                prober.ask(addrs);
            }
        }
        let launcher = self.launcher.as_ref();
        let mail = self.arbiter.settle(now, |rank| launcher?.exit_of(rank));
        self.post(mail, outbox);
        let mail = self.arbiter.poll(now);
        self.post(mail, outbox);
        let look = self.arbiter.is_settling().then(|| now + EXIT_INTERVAL);
        self.arbiter.deadline().into_iter().chain(look).min()
    }
}
