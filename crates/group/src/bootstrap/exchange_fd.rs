//! How the ranks of one host come to have memory in common.

use crate::control::group_health::{ErrorContext, GroupHealth};
use crate::control::notice::Member;
use phalanx_core::{Cause, Deadline, Error, Loss, Result, Signature};
use phalanx_transport::LinkFault;
use phalanx_transport::tcp::Exchange;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// One [`HostContext::share`](crate::host::host_context::HostContext::share) of a job of processes.
#[derive(Debug)]
pub(crate) struct FdExchange<'a> {
    exchange: &'a Exchange,
    /// The ranks of the job.
    members: &'a [Member],
    health: &'a GroupHealth,
    /// The call that needs the memory.
    signature: &'a Signature,
    /// Which of the group's sharings this is.
    seq: u64,
    deadline: Deadline,
}

impl<'a> FdExchange<'a> {
    /// The group's sharing number `seq`.
    pub(crate) fn new(
        (exchange, members): (&'a Exchange, &'a [Member]),
        health: &'a GroupHealth,
        signature: &'a Signature,
        seq: u64,
        deadline: Deadline,
    ) -> Self {
        Self { exchange, members, health, signature, seq, deadline }
    }

    pub(crate) fn run(&self, make: &dyn Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
        self.health.check(self.signature, || 0)?;
        if self.health.rank == 0 { self.give(self.health.alone(make())?) } else { self.take() }
    }

    fn take(&self) -> Result<OwnedFd> {
        let (group, from) = (self.health.latch.group(), self.health.members()[0]);
        let taken = self.exchange.take(group, self.seq, from, &self.deadline, || self.is_over(0));
        taken.map_err(|why| self.failed(0, &LinkFault::Unreachable(why.to_string())))
    }

    /// Passes the memory to all others side by side. Each has it once it says so, whether it asks for it yet or not.
    fn give(&self, memory: OwnedFd) -> Result<OwnedFd> {
        let (group, memory) = (self.health.latch.group(), Arc::new(memory));
        let give = |to: usize| {
            let called = self.health.members()[to];
            let local = self.members[called].local.as_ref();
            let name = &local.expect("a rank of this host has a name here").name;
            (to, self.exchange.give(group, self.seq, called, name, memory.clone(), self.deadline))
        };
        let given: Vec<_> = (1..self.health.members().len()).map(give).collect();
        for (to, given) in given {
            given.wait(&self.deadline, || self.is_over(to)).map_err(|why| self.failed(to, &why))?;
        }
        let own = memory.try_clone();
        self.health.alone(own.map_err(|e| Error::io("duplicating the descriptor of shared memory", e)))
    }

    fn is_over(&self, peer: usize) -> bool {
        self.health.latch.cause().is_some() || self.has_left(peer)
    }

    fn has_left(&self, peer: usize) -> bool {
        self.health.gone([peer], Instant::now()).is_some()
    }

    /// The error for the first cause of all, which may be on its way, or else for what this rank saw of `peer`.
    fn failed(&self, peer: usize, why: &LinkFault) -> Error {
        let now = Instant::now();
        let elapsed = self.deadline.elapsed(now);
        let told = ErrorContext { signature: self.signature, seq: 0, message: None, bytes: (0, 0), elapsed };
        if let LinkFault::Starved(_) = why {
            // Not the fault of whoever was to have it.
            return self.health.fail(self.health.own_fault(&why.to_string()), told);
        }
        if self.deadline.has_passed(now) {
            return self.health.timed_out([peer], told);
        }
        self.health.heard(told).unwrap_or_else(|| {
            let cause = if self.has_left(peer) {
                Cause::Lost { peer: self.health.peer(peer), how: Loss::Left }
            } else {
                // It is there, for the arbiter has not lost it.
                self.health.own_fault(&format!(
                    "{} is on this host by all it says, but no memory can be passed between the two: set PHALANX_HOST_ID differently on \
                     each host if they are clones of one machine, or PHALANX_BACKEND=tcp ({why})",
                    self.health.peer(peer)
                ))
            };
            tracing::warn!(%cause, ?why, "memory was not shared");
            self.health.fail(cause, told)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::assembly::meet_all;
    use crate::bootstrap::regroup::Assignment;
    use crate::bootstrap::tcp_job::TcpJob;
    use crate::control::job_context::JobContext;
    use crate::group::backend::BackendFactory;
    use crate::host::BackendChoice;
    use crate::host::choose_backend::HostBackends;
    use crate::host::host_context::HostContext;
    use phalanx_core::{CallSite, GroupId, OpKind, WORLD};
    use phalanx_rendezvous::{Config, TcpStoreServer};
    use phalanx_transport::Secret;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::{Barrier, Mutex};
    use std::time::Duration;

    fn make() -> Result<OwnedFd> {
        memfd_create("test", MemfdFlags::CLOEXEC).map_err(|e| Error::io("making a file", e.into()))
    }

    fn health(job: &Arc<TcpJob>, group: GroupId, members: &[usize]) -> GroupHealth {
        GroupHealth::new(job.clone(), group, members.to_vec())
    }

    fn share(job: &Arc<TcpJob>, health: &GroupHealth) -> Result<u64> {
        share_with(job, health, &make)
    }

    fn share_with(
        job: &Arc<TcpJob>,
        health: &GroupHealth,
        make: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<u64> {
        let (op, site) = (OpKind::Init, CallSite::caller());
        let signature = Signature::bare(op, site);
        let memory = job.share(health, &signature, &job.deadline(), make)?;
        Ok(fstat(&memory).expect("it is open").st_ino)
    }

    /// Runs `body` as each rank of a job, each with one variable besides.
    fn job(variables: &[(&str, &str)], body: impl Fn(Arc<TcpJob>) + Sync) {
        let secret = Secret::generate().unwrap();
        let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
        let world_size = variables.len().to_string();
        let rank = |rank: usize| {
            let common = [
                ("PHALANX_RANK", rank.to_string()),
                ("PHALANX_WORLD_SIZE", world_size.clone()),
                ("PHALANX_STORE", format!("tcp://{}", server.addr())),
                ("PHALANX_SECRET", secret.to_hex()),
            ];
            let config = Config::from_lookup(|name| {
                let (own, value) = variables[rank];
                let common = || common.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
                if own == name { Some(value.to_owned()) } else { common() }
            });
            let config = config.unwrap();
            let deadline = Deadline::after(Instant::now(), config.init_timeout);
            let open = config.open_store(&deadline).unwrap();
            let roster = (0..config.world_size as u64).collect();
            let assignment = Assignment::new(0, config.rank, roster);
            body(Arc::new(meet_all(&config, &secret, &assignment, &open, &deadline).unwrap()));
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..variables.len()).map(|r| scope.spawn(move || rank(r))).collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic)));
        });
    }

    #[test]
    fn the_ranks_of_a_host_share_one_file() {
        let (left, right) = (("PHALANX_HOST_ID", "left"), ("PHALANX_HOST_ID", "right"));
        let files = Mutex::new(Vec::new());
        job(&[left, right, left, left], |job| {
            let rank = job.place.rank;
            assert_eq!(job.host_of(0), job.host_of(3));
            assert!(job.host_of(0).is_some() && job.host_of(0) != job.host_of(1));
            let host: Vec<_> = (0..4).filter(|&r| job.host_of(r) == job.host_of(rank)).collect();
            let (world, other) = (health(&job, WORLD, &host), health(&job, GroupId(3), &host));
            for (round, health) in [&world, &world, &other].into_iter().enumerate() {
                let inode = share(&job, health).unwrap();
                files.lock().unwrap().push((host.clone(), round, inode));
            }
            job.leave(&job.deadline());
        });
        let mut files = files.into_inner().unwrap();
        files.sort();
        files.dedup();
        let mut inodes: Vec<_> = files.iter().map(|(.., inode)| *inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        // On each of two hosts, each of three times.
        assert_eq!((files.len(), inodes.len()), (6, 6), "{files:?}");
    }

    #[test]
    fn who_is_to_use_tcp_shares_nothing() {
        job(&[("PHALANX_BACKEND", "tcp"); 2], |job| {
            assert_eq!((job.host_of(0), job.host_of(1)), (None, None));
            job.leave(&job.deadline());
        });
    }

    #[test]
    fn who_does_not_come_is_named_to_all() {
        job(&[("PHALANX_TIMEOUT_S", "0.3"); 3], |job| {
            match job.place.rank {
                2 => {
                    let error = share(&job, &health(&job, WORLD, &[1, 2])).unwrap_err();
                    let Error::Timeout { missing, at, .. } = &error else { panic!("{error}") };
                    assert_eq!((missing[0].rank, at.op, at.rank), (1, OpKind::Init, 2), "{error}");
                }
                _ => {
                    let latch = job.membership.latch(WORLD, vec![0, 1, 2]);
                    let long = Deadline::after(Instant::now(), Duration::from_secs(60));
                    let cause = latch.wait(&long);
                    assert!(matches!(cause, Some(Cause::TimedOut { reporter, .. }) if reporter.rank == 2));
                    let late = share(&job, &health(&job, WORLD, &[0, 1])).unwrap_err();
                    assert!(matches!(late, Error::Timeout { .. }), "the first cause: {late}");
                }
            }
            job.leave(&job.deadline());
        });
    }

    #[test]
    fn who_cannot_make_it_says_so_to_all() {
        job(&[("PHALANX_TIMEOUT_S", "10"); 3], |job| {
            let make = || Err(Error::io("making a file", std::io::ErrorKind::StorageFull.into()));
            let error = share_with(&job, &health(&job, WORLD, &[0, 1, 2]), &make).unwrap_err();
            match (job.place.rank, &error) {
                (0, Error::Io { .. }) => {}
                (1 | 2, Error::Aborted { peer, reason, .. }) => {
                    assert!(peer.rank == 0 && reason.contains("making a file"), "{error}");
                }
                _ => panic!("{error}"),
            }
            job.leave(&job.deadline());
        });
    }

    #[test]
    fn an_abort_ends_it() {
        job(&[("PHALANX_TIMEOUT_S", "60"); 2], |job| {
            if job.place.rank == 0 {
                let health = GroupHealth::new(job.clone(), WORLD, vec![0, 1]);
                std::thread::sleep(Duration::from_millis(100));
                health.abort("enough");
            } else {
                let error = share(&job, &health(&job, WORLD, &[0, 1])).unwrap_err();
                assert!(matches!(&error, Error::Aborted { peer, .. } if peer.rank == 0), "{error}");
            }
            job.leave(&job.deadline());
        });
    }

    #[test]
    fn who_left_or_died_is_named() {
        for how in [Loss::Left, Loss::Died] {
            let gone = Barrier::new(2);
            job(&[("PHALANX_TIMEOUT_S", "60"); 3], |job| {
                let members = match job.place.rank {
                    1 => {
                        // The job goes with the closure: in order, or in a panic.
                        let _ = catch_unwind(AssertUnwindSafe(move || {
                            let job = job;
                            match how {
                                Loss::Left => job.leave(&job.deadline()),
                                _ => resume_unwind(Box::new(())),
                            }
                        }));
                        gone.wait();
                        return;
                    }
                    // One gives to it when it is gone, the other waits for it from the beginning.
                    0 => {
                        gone.wait();
                        [0, 1]
                    }
                    _ => [1, 2],
                };
                let error = share(&job, &health(&job, GroupId(5), &members)).unwrap_err();
                let Error::PeerLost { peer, how: told, .. } = &error else { panic!("{error}") };
                assert_eq!((peer.rank, *told), (1, how), "{error}");
                job.leave(&job.deadline());
            });
        }
    }

    #[test]
    fn a_group_in_the_making_keeps_to_the_time_of_its_call() {
        job(&[("PHALANX_TIMEOUT_S", "20"); 2], |job| {
            let (pair, begun) = (GroupId(7), Instant::now());
            if job.place.rank == 0 {
                let (choice, soon) = (BackendChoice::Auto, Duration::from_millis(300));
                let call = Signature::bare(OpKind::Split, CallSite::caller());
                let deadline = Deadline::after(begun, soon);
                let backends = HostBackends::new(job.clone(), choice, Arc::default());
                let made = backends.create(pair, vec![0, 1], &call, &deadline);
                let error = made.unwrap_err();
                let Error::Timeout { missing, at, .. } = &error else { panic!("{error}") };
                assert_eq!(missing[0].rank, 1, "{error}");
                assert!(at.elapsed < Duration::from_secs(10), "{error}");
            } else {
                // It gets the memory, and does not come into the team.
                let latch = job.membership.latch(pair, vec![0, 1]);
                assert!(latch.wait(&job.deadline()).is_some());
            }
            job.leave(&job.deadline());
        });
    }

    impl TcpJob {
        fn deadline(&self) -> Deadline {
            Deadline::after(Instant::now(), self.place.timeout)
        }
    }
}
