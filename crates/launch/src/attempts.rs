//! The starts of a job: each with a secret, a store and a port of its own.

use crate::descriptors;
use crate::event::Event;
use crate::hosts::leader::{Hosts, NotHere};
use crate::job::{Attempt, Ended, Job};
use crate::outcome::Outcome;
use crate::placement::{Host, Place};
use crate::plan::{Order, Site, check, plan};
use crate::replacing::Spares;
use crate::supervise::Asked;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{LifelineServer, PrefixStore, TcpStore, TcpStoreServer};
use phalanx_transport::{Secret, random_number};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// How long the launcher's own store may take to answer it.
const STORE_TIME: Duration = Duration::from_secs(10);

/// Starts the job, and again when it has failed, as often as it was ordered: each time with a secret and a store that no process of the
/// time before knows. Of several hosts `secret` is the one that all have.
pub(crate) fn run_attempts(
    order: &Order,
    job: &Job,
    (hosts, secret): (&mut Hosts, Option<&Secret>),
    (events, inbox): (&Sender<Event>, &Receiver<Event>),
    all_started: impl Fn(),
) -> Result<Ended> {
    let mut number = 0;
    let mut failed = None;
    loop {
        let order = match gather(order, job, hosts, (events, inbox)) {
            Ok(order) => order,
            Err(why) => {
                // Before the first start there is nothing else to say.
                let (outcome, asked) = match (why, failed) {
                    (NotHere::Missing(error), None) => return Err(error),
                    (NotHere::Missing(error), Some(outcome)) => {
                        job.log(move || tracing::error!("the job is not started again: {error}"));
                        (outcome, Asked::Nothing)
                    }
                    (NotHere::Asked(_), Some(outcome)) => (outcome, Asked::ToEnd),
                    (NotHere::Asked(signal), None) => (Outcome::Interrupted { signal }, Asked::ToEnd),
                };
                all_started();
                return Ok(Ended { outcome, asked, all_gone: true });
            }
        };
        let here = hosts.present().first().map_or(0, |(_, host)| host.places.min(order.ranks));
        descriptors::allow_to_lead(order.ranks, hosts.count(), here, order.log_dir.is_some())?;
        let start = random_number()?;
        let secret = match secret {
            Some(secret) => secret.of_start(start),
            None if job.program.encrypts() => Secret::generate()?.encrypting(),
            None => Secret::generate()?,
        };
        let bind = SocketAddr::new(hosts.bind(), 0);
        let store = TcpStoreServer::start(bind, &secret)?;
        let heard = events.clone();
        let hear = move |word| {
            // The receiver is gone only when the job was given up.
            let _ = heard.send(Event::Heard { attempt: number, heard: word });
        };
        let lifelines = LifelineServer::start(bind, &secret, hear)?;
        let site = Site {
            store: store.addr().port(),
            lifeline: lifelines.addr().port(),
            master_port: free_port(hosts.bind())?,
            hosts: hosts.count(),
        };
        let elastic = match order.elastic {
            None => None,
            Some(size) => {
                let deadline = Deadline::after(Instant::now(), STORE_TIME);
                let client = TcpStore::connect(&own_end(store.addr()).to_string(), &secret, &deadline)?;
                let spares = Spares { min: size.min(), left: order.max_restarts };
                Some((PrefixStore::new(order.job_id.as_str(), client), spares))
            }
        };
        let plan = |attempt: usize, rank: usize, at: (&Host, Place)| plan(&order, attempt, &site, rank, at);
        let secret = secret.to_hex().into();
        let (job_id, addr, ranks) = (order.job_id.clone(), store.addr(), order.ranks);
        job.log(move || tracing::debug!(job_id, store = %addr, ranks, attempt = number, "starting"));
        let lifelines = &lifelines;
        let attempt = Attempt {
            job,
            secret,
            start,
            plan: &plan,
            ranks,
            number,
            hosts: &mut *hosts,
            elastic,
            lifelines,
        };
        let running = attempt.start(events)?;
        job.restarts.fetch_add(usize::from(number > 0), Ordering::Relaxed);
        all_started();
        let ended = running.supervise(inbox)?;
        let Outcome::Failure(failure) = &ended.outcome else { return Ok(ended) };
        // Who asked for the end meant the job, also while a failure was being handled. What cannot even be killed may still hold what
        // the next attempt needs. An elastic job has had its restarts.
        let wanted = ended.asked == Asked::Nothing && ended.all_gone;
        if number >= order.max_restarts || order.elastic.is_some() || !wanted {
            return Ok(ended);
        }
        number += 1;
        let (failure, most) = (failure.clone(), order.max_restarts);
        job.log(move || {
            tracing::warn!("{failure}");
            tracing::warn!("starting the job again: restart {number} of {most}");
        });
        failed = Some(ended.outcome);
    }
}

/// Waits until all hosts are here; then it is known how many ranks the job has.
fn gather(
    order: &Order,
    job: &Job,
    hosts: &mut Hosts,
    channel: (&Sender<Event>, &Receiver<Event>),
) -> Result<Order, NotHere> {
    let left = job.timeout.map(|limit| limit.saturating_sub(job.began.elapsed()));
    hosts.wait_for_all(left, channel, |what| job.log(move || tracing::warn!("{what}")))?;
    let mut order = order.clone();
    if hosts.are_several() && order.elastic.is_none() {
        order.ranks = hosts.present().iter().map(|(_, host)| host.places).sum();
    }
    check(order.ranks, hosts.count(), &order.job_id, []).map_err(NotHere::Missing)?;
    Ok(order)
}

/// How this process reaches its own server.
fn own_end(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

/// A port that is free now. Another program may take it before the ranks do; phalanx itself does not use it.
fn free_port(on: IpAddr) -> Result<u16> {
    let port = TcpListener::bind((on, 0)).and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| Error::io("looking for a free port", error))?.port())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::binding::Binding;
    use crate::exit_kind::ExitKind;
    use crate::placement::Room;
    use crate::program::Program;
    use crate::stdin::RankInput;
    use crate::writer::Writers;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn a_signal_that_comes_when_the_ranks_are_gone_starts_nothing_again() {
        let sink = || Box::new(std::io::sink());
        let job = Job {
            program: Program {
                program: "false".into(),
                args: Vec::new(),
                env: Vec::new(),
                not_inherited: Vec::new(),
                folder: None,
                binding: Binding::None,
            },
            prefix: true,
            timestamps: false,
            input: RankInput::Empty,
            writers: Writers::start(sink(), sink()).unwrap(),
            grace: Duration::ZERO,
            // A second attempt, of whose end nobody is told, ends by it.
            timeout: Some(Duration::from_secs(30)),
            replacements: 0,
            began: Instant::now(),
            pids: Arc::default(),
            restarts: Arc::default(),
        };
        let order = Order { ranks: 1, job_id: "j".into(), log_dir: None, max_restarts: 1, elastic: None };
        // What the launcher hears, in this order; what it is told by the one who watches the rank comes to nobody.
        let (events, inbox) = channel();
        events.send(Event::Exited { rank: 0, exit: ExitKind::Code(1) }).unwrap();
        events.send(Event::Signal(15)).unwrap();
        let (watchers, _nobody) = channel();
        let starts = Cell::new(0);
        let mut hosts = Hosts::here(Room { places: 1, cores: 1 });
        let ended = run_attempts(&order, &job, (&mut hosts, None), (&watchers, &inbox), || {
            starts.set(starts.get() + 1);
        });
        let ended = ended.unwrap();
        assert_eq!((starts.get(), ended.asked), (1, Asked::AtOnce));
        assert!(matches!(ended.outcome, Outcome::Failure(_)), "{}", ended.outcome);
    }
}
