//! Coming together through a launcher's channel: rank 0 starts the store and says where it is, the others look for it there.

use crate::channel::Channel;
use crate::heard::{Heard, heard};
use crate::location::authority;
use crate::meeting::Meeting;
use crate::open::serve;
use crate::own_hosts::{host_name, own_hosts};
use crate::{Config, StoreLocation, TcpStore, TcpStoreServer};
use phalanx_core::{Deadline, Error, Result};
use phalanx_pmi::Fault;
use phalanx_transport::{Secret, loopback};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an address is tried before the next one is, the first time round. After each round it is doubled.
const TRY_TIME: Duration = Duration::from_secs(1);
const TRY_TIME_MAX: Duration = Duration::from_secs(8);

impl Config {
    /// This configuration with what the launcher's channel says: the secret, and the place of the store, which rank 0 runs from here on. As it is, where the
    /// environment has said all. The first call of a process is collective among the processes of the job.
    ///
    /// # Errors
    /// [`Error::Config`]: the channel can't be used; says why and what to set instead. [`Error::Rendezvous`]: the other processes, or rank 0's
    /// store, did not come before the deadline.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Deadline;
    /// use phalanx_rendezvous::Config;
    /// use std::time::Instant;
    ///
    /// let config = Config::from_lookup(|_| None)?; // alone
    /// assert_eq!(config.met(&Deadline::after(Instant::now(), config.init_timeout))?, config);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn met(&self, deadline: &Deadline) -> Result<Self> {
        let StoreLocation::Launcher(channel) = &self.store else { return Ok(self.clone()) };
        let mut heard = heard();
        if heard.as_ref().is_none_or(|heard| heard.through != *channel) {
            let (meeting, server) = match self.rank {
                0 => {
                    let (meeting, server) = self.host_store(deadline)?;
                    let words = meeting.to_text();
                    channel
                        .share(0, Some(&words), deadline)
                        .map_err(|fault| self.unheard(channel, fault, deadline))?;
                    (meeting, Some(Arc::new(server)))
                }
                _ => (self.hear(channel, deadline)?, None),
            };
            *heard = Some(Heard { through: channel.clone(), meeting, server, joined: 0 });
        }
        let before = heard.as_mut().expect("it was heard");
        let (meeting, joined) = (before.meeting.clone(), before.joined);
        before.joined += 1;
        drop(heard);
        let mut config = self.at(channel, meeting, deadline)?;
        if joined > 0 {
            // All ranks join equally often. One that joins again does not meet those who have not left yet.
            config.job_id = format!("{}, joined {joined} times before", config.job_id);
        }
        Ok(config)
    }

    /// Starts the store's server, for this job alone.
    fn host_store(&self, deadline: &Deadline) -> Result<(Meeting, TcpStoreServer)> {
        let secret = match &self.secret {
            Some(secret) => secret.clone(),
            None => self.protection.of(Secret::generate()?),
        };
        let (hosts, server) = if let Some(name) = &self.advertise {
            let own = self.bind.as_deref().unwrap_or(name);
            (vec![name.clone()], serve(own, 0, &secret, deadline)?)
        } else if self.local_world_size == self.world_size {
            let ip = loopback();
            (vec![ip.to_string()], TcpStoreServer::start(SocketAddr::new(ip, 0), &secret)?)
        } else {
            let hosts = own_hosts(&self.host_names());
            let any: IpAddr = match hosts[0] {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let server = match &self.bind {
                Some(own) => serve(own, 0, &secret, deadline)?,
                None => TcpStoreServer::start(SocketAddr::new(any, 0), &secret)?,
            };
            (hosts.iter().map(IpAddr::to_string).collect(), server)
        };
        let said = self.secret.is_none().then_some(secret);
        Ok((Meeting { secret: said, port: server.addr().port(), hosts }, server))
    }

    /// By which names this host may be known: that by which the launcher knows it first.
    fn host_names(&self) -> Vec<String> {
        self.node_name.iter().cloned().chain(host_name()).collect()
    }

    fn hear(&self, channel: &Channel, deadline: &Deadline) -> Result<Meeting> {
        let words = channel
            .share(self.rank, None, deadline)
            .map_err(|fault| self.unheard(channel, fault, deadline))?;
        Meeting::from_text(&words).map_err(|why| self.unheard(channel, Fault::Unusable(why.into()), deadline))
    }

    /// This configuration with the address at which the store answers.
    fn at(&self, channel: &Channel, mut meeting: Meeting, deadline: &Deadline) -> Result<Self> {
        let mut limit = TRY_TIME;
        loop {
            let secret = match (&self.secret, &meeting.secret) {
                (Some(own), _) => own.clone(),
                (None, Some(said)) => self.protection.of(said.clone()),
                (None, None) => {
                    return Err(Error::config(
                        "rank 0 has PHALANX_SECRET and this process has not: set it for all processes, or for none",
                    ));
                }
            };
            let mut last = None;
            for host in &meeting.hosts {
                let addr = authority(host, meeting.port);
                // Rank 0 itself runs it.
                let answers = match self.rank {
                    0 => Ok(()),
                    _ => {
                        let now = Instant::now();
                        let soon = Deadline::after(now, limit.min(deadline.remaining(now)));
                        TcpStore::connect(&addr, &secret, &soon).map(drop)
                    }
                };
                match answers {
                    Ok(()) => {
                        let host = host.clone();
                        let store = StoreLocation::Tcp { host, port: meeting.port, host_it: true };
                        return Ok(Self { store, secret: Some(secret), ..self.clone() });
                    }
                    Err(error) => last = Some(error),
                }
            }
            if deadline.has_passed(Instant::now()) {
                let why = match last {
                    Some(Error::Rendezvous { what, .. }) => what,
                    Some(error) => error.to_string(),
                    None => "it said no address".into(),
                };
                let hosts = meeting.hosts.join(", ");
                return Err(self.apart(
                    deadline,
                    format!(
                        "rank 0's store, at port {} of {hosts} as {} has said, does not answer ({why}); if rank 0 lives, look for a firewall, or set \
                         PHALANX_HOST at rank 0 to the name or address at which the others reach its host",
                        meeting.port, channel
                    ),
                ));
            }
            limit = (limit * 2).min(TRY_TIME_MAX);
            // A file may have been that of an earlier job of the same name.
            if matches!(channel, Channel::File(_)) {
                meeting = self.hear(channel, deadline)?;
                if let Some(heard) = heard().as_mut() {
                    heard.meeting = meeting.clone();
                }
            }
        }
    }

    fn unheard(&self, channel: &Channel, fault: Fault, deadline: &Deadline) -> Error {
        let (rank, world_size, by) = (self.rank, self.world_size, self.source);
        match fault {
            Fault::Late(what) => {
                let hint = match channel {
                    Channel::File(_) => {
                        "; do all hosts see that directory (PHALANX_SHARED_DIR sets another), and does rank 0 run?"
                    }
                    _ => "; did all processes of the job start, and do all call init()?",
                };
                self.apart(deadline, format!("{what} did not come ({by}, {channel}){hint}"))
            }
            Fault::Unusable(why) => Error::config(format!(
                "this process is rank {rank} of {world_size} (from {by}), but the ranks can't meet through {channel}: {why}; set MASTER_ADDR, MASTER_PORT \
                 and PHALANX_SECRET to the same for all of them instead{}",
                match channel {
                    Channel::Pmix => " (or, with srun, use --mpi=pmi2)",
                    Channel::File(_) =>
                        " (or PHALANX_SHARED_DIR to a directory that all hosts see, or use srun --mpi=pmi2)",
                    Channel::Pmi(_) | Channel::Own(_) => "",
                }
            )),
        }
    }

    fn apart(&self, deadline: &Deadline, what: String) -> Error {
        let waited = deadline.elapsed(Instant::now());
        Error::Rendezvous { rank: self.rank, world_size: self.world_size, what, waited }
    }
}
