//! How the ranks of one host come to have memory in common.

use crate::fate::{Fate, Told};
use crate::realm::TcpRealm;
use phalanx_core::{Cause, Deadline, Error, Loss, Result, Signature};
use phalanx_transport::LinkFault;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// One [`Realm::share`](crate::realm::Realm::share) of a realm of processes.
#[derive(Debug)]
pub(crate) struct Sharing<'a> {
    realm: &'a TcpRealm,
    fate: &'a Fate,
    /// The call that needs the memory.
    signature: &'a Signature,
    /// Which of the group's sharings this is.
    seq: u64,
    deadline: Deadline,
}

impl<'a> Sharing<'a> {
    pub(crate) fn new(
        realm: &'a TcpRealm,
        fate: &'a Fate,
        signature: &'a Signature,
        deadline: Deadline,
    ) -> Self {
        let seq = {
            let mut shares = realm.shares.lock().unwrap_or_else(PoisonError::into_inner);
            let last = shares.entry(fate.alarm.group()).or_default();
            *last += 1;
            *last
        };
        Self { realm, fate, signature, seq, deadline }
    }

    pub(crate) fn run(&self, make: &dyn Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
        self.fate.check(self.signature)?;
        if self.fate.rank == 0 { self.give(self.fate.alone(make())?) } else { self.take() }
    }

    fn take(&self) -> Result<OwnedFd> {
        let (group, from) = (self.fate.alarm.group(), self.fate.members()[0]);
        let taken = self.realm.exchange.take(group, self.seq, from, &self.deadline, || self.is_over(0));
        taken.map_err(|why| self.failed(0, &LinkFault::Unreachable(why.to_string())))
    }

    /// To all others side by side. Each has its own once it says so, whether it asks for it yet or not.
    fn give(&self, memory: OwnedFd) -> Result<OwnedFd> {
        let (group, memory) = (self.fate.alarm.group(), Arc::new(memory));
        let give = |to: usize| {
            let called = self.fate.members()[to];
            let local = self.realm.members[called].local.as_ref();
            let name = &local.expect("a rank of this host has a name here").name;
            (to, self.realm.exchange.give(group, self.seq, called, name, memory.clone(), self.deadline))
        };
        let given: Vec<_> = (1..self.fate.members().len()).map(give).collect();
        for (to, given) in given {
            given.wait(&self.deadline, || self.is_over(to)).map_err(|why| self.failed(to, &why))?;
        }
        let own = memory.try_clone();
        self.fate.alone(own.map_err(|e| Error::io("duplicating the descriptor of shared memory", e)))
    }

    fn is_over(&self, peer: usize) -> bool {
        self.fate.alarm.cause().is_some() || self.has_left(peer)
    }

    fn has_left(&self, peer: usize) -> bool {
        self.fate.gone([peer], Instant::now()).is_some()
    }

    /// The error for the first cause of all, which may be on its way, or else for what this rank saw of `peer`.
    fn failed(&self, peer: usize, why: &LinkFault) -> Error {
        let now = Instant::now();
        let elapsed = self.deadline.elapsed(now);
        let told = Told { signature: self.signature, seq: 0, message: None, bytes: (0, 0), elapsed };
        if let LinkFault::Starved(_) = why {
            // Not the fault of whoever was to have it.
            return self.fate.fail(self.fate.own_fault(&why.to_string()), told);
        }
        if self.deadline.has_passed(now) {
            return self.fate.timed_out([peer], told);
        }
        self.fate.heard(told).unwrap_or_else(|| {
            let cause = if self.has_left(peer) {
                Cause::Lost { peer: self.fate.peer(peer), how: Loss::Left }
            } else {
                // It is there, for the arbiter has not lost it.
                self.fate.own_fault(&format!(
                    "{} is on this host by all it says, but no memory can be passed between the two: set PHALANX_HOST_ID differently on \
                     each host if they are clones of one machine, or PHALANX_BACKEND=tcp ({why})",
                    self.fate.peer(peer)
                ))
            };
            tracing::warn!(%cause, ?why, "memory was not shared");
            self.fate.fail(cause, told)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::meet_all;
    use crate::generation::Seat;
    use crate::realm::Realm;
    use crate::recommended;
    use phalanx_core::{CallSite, GroupId, OpKind, WORLD};
    use phalanx_rendezvous::{BackendChoice, Config, TcpStoreServer};
    use phalanx_transport::Secret;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::{Barrier, Mutex};
    use std::time::Duration;

    fn make() -> Result<OwnedFd> {
        memfd_create("test", MemfdFlags::CLOEXEC).map_err(|e| Error::io("making a file", e.into()))
    }

    fn fate(realm: &Arc<TcpRealm>, group: GroupId, members: &[usize]) -> Fate {
        Fate::new(realm.clone(), group, members.to_vec())
    }

    fn share(realm: &Arc<TcpRealm>, fate: &Fate) -> Result<u64> {
        share_with(realm, fate, &make)
    }

    fn share_with(realm: &Arc<TcpRealm>, fate: &Fate, make: &dyn Fn() -> Result<OwnedFd>) -> Result<u64> {
        let (op, site) = (OpKind::Init, CallSite::caller());
        let signature = Signature::bare(op, site);
        let memory = realm.share(fate, &signature, &realm.deadline(), make)?;
        Ok(fstat(&memory).expect("it is open").st_ino)
    }

    /// Runs `body` as each rank of a job, each with one variable besides.
    fn job(variables: &[(&str, &str)], body: impl Fn(Arc<TcpRealm>) + Sync) {
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
            let seat = Seat::new(0, config.rank, roster);
            body(Arc::new(meet_all(&config, &secret, &seat, &open, &deadline).unwrap()));
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
        job(&[left, right, left, left], |realm| {
            let rank = realm.place.rank;
            assert_eq!(realm.host_of(0), realm.host_of(3));
            assert!(realm.host_of(0).is_some() && realm.host_of(0) != realm.host_of(1));
            let host: Vec<_> = (0..4).filter(|&r| realm.host_of(r) == realm.host_of(rank)).collect();
            let (world, other) = (fate(&realm, WORLD, &host), fate(&realm, GroupId(3), &host));
            for (round, fate) in [&world, &world, &other].into_iter().enumerate() {
                let inode = share(&realm, fate).unwrap();
                files.lock().unwrap().push((host.clone(), round, inode));
            }
            realm.leave(&realm.deadline());
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
        job(&[("PHALANX_BACKEND", "tcp"); 2], |realm| {
            assert_eq!((realm.host_of(0), realm.host_of(1)), (None, None));
            realm.leave(&realm.deadline());
        });
    }

    #[test]
    fn who_does_not_come_is_named_to_all() {
        job(&[("PHALANX_TIMEOUT_S", "0.3"); 3], |realm| {
            match realm.place.rank {
                2 => {
                    let error = share(&realm, &fate(&realm, WORLD, &[1, 2])).unwrap_err();
                    let Error::Timeout { missing, at, .. } = &error else { panic!("{error}") };
                    assert_eq!((missing[0].rank, at.op, at.rank), (1, OpKind::Init, 2), "{error}");
                }
                _ => {
                    let alarm = realm.watch.alarm(WORLD, vec![0, 1, 2]);
                    let long = Deadline::after(Instant::now(), Duration::from_secs(60));
                    let cause = alarm.wait(&long);
                    assert!(matches!(cause, Some(Cause::TimedOut { reporter, .. }) if reporter.rank == 2));
                    let late = share(&realm, &fate(&realm, WORLD, &[0, 1])).unwrap_err();
                    assert!(matches!(late, Error::Timeout { .. }), "the first cause: {late}");
                }
            }
            realm.leave(&realm.deadline());
        });
    }

    #[test]
    fn who_cannot_make_it_says_so_to_all() {
        job(&[("PHALANX_TIMEOUT_S", "10"); 3], |realm| {
            let make = || Err(Error::io("making a file", std::io::ErrorKind::StorageFull.into()));
            let error = share_with(&realm, &fate(&realm, WORLD, &[0, 1, 2]), &make).unwrap_err();
            match (realm.place.rank, &error) {
                (0, Error::Io { .. }) => {}
                (1 | 2, Error::Aborted { peer, reason, .. }) => {
                    assert!(peer.rank == 0 && reason.contains("making a file"), "{error}");
                }
                _ => panic!("{error}"),
            }
            realm.leave(&realm.deadline());
        });
    }

    #[test]
    fn an_abort_ends_it() {
        job(&[("PHALANX_TIMEOUT_S", "60"); 2], |realm| {
            if realm.place.rank == 0 {
                let fate = Fate::new(realm.clone(), WORLD, vec![0, 1]);
                std::thread::sleep(Duration::from_millis(100));
                fate.abort("enough");
            } else {
                let error = share(&realm, &fate(&realm, WORLD, &[0, 1])).unwrap_err();
                assert!(matches!(&error, Error::Aborted { peer, .. } if peer.rank == 0), "{error}");
            }
            realm.leave(&realm.deadline());
        });
    }

    #[test]
    fn who_left_or_died_is_named() {
        for how in [Loss::Left, Loss::Died] {
            let gone = Barrier::new(2);
            job(&[("PHALANX_TIMEOUT_S", "60"); 3], |realm| {
                let members = match realm.place.rank {
                    1 => {
                        // The realm goes with the closure: in order, or in a panic.
                        let _ = catch_unwind(AssertUnwindSafe(move || {
                            let realm = realm;
                            match how {
                                Loss::Left => realm.leave(&realm.deadline()),
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
                let error = share(&realm, &fate(&realm, GroupId(5), &members)).unwrap_err();
                let Error::PeerLost { peer, how: told, .. } = &error else { panic!("{error}") };
                assert_eq!((peer.rank, *told), (1, how), "{error}");
                realm.leave(&realm.deadline());
            });
        }
    }

    #[test]
    fn a_group_in_the_making_keeps_to_the_time_of_its_call() {
        job(&[("PHALANX_TIMEOUT_S", "20"); 2], |realm| {
            let (pair, begun) = (GroupId(7), Instant::now());
            if realm.place.rank == 0 {
                let (op, choice, soon) = (OpKind::Split, BackendChoice::Auto, Duration::from_millis(300));
                let deadline = Deadline::after(begun, soon);
                let made = recommended::backend(
                    realm.clone(),
                    pair,
                    vec![0, 1],
                    op,
                    choice,
                    Arc::default(),
                    &deadline,
                );
                let error = made.unwrap_err();
                let Error::Timeout { missing, at, .. } = &error else { panic!("{error}") };
                assert_eq!(missing[0].rank, 1, "{error}");
                assert!(at.elapsed < Duration::from_secs(10), "{error}");
            } else {
                // It gets the memory, and does not come into the team.
                let alarm = realm.watch.alarm(pair, vec![0, 1]);
                assert!(alarm.wait(&realm.deadline()).is_some());
            }
            realm.leave(&realm.deadline());
        });
    }

    impl TcpRealm {
        fn deadline(&self) -> Deadline {
            Deadline::after(Instant::now(), self.place.timeout)
        }
    }
}
