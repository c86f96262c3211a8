//! A rank that was stopped in the middle of a copy into the memory of another, which gives up: it is killed, or waited for where the system
//! refuses that.

use super::sleeper::Sleeper;
use super::*;
use crate::other_process::Process;
use rustix::process::{Pid, Signal, kill_process};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

/// Makes the kernel refuse to send signals to processes by their descriptors, as to those of another user, for the rest of this thread.
fn refuse_to_kill() {
    let rules = BTreeMap::from([(libc::SYS_pidfd_send_signal, Vec::new())]);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Rank 0 closes its team while rank 1, which is the process `peer`, holds its lease. What rank 1 does is said by `meanwhile`, which is given
/// whether rank 0 has closed the team by now, and how to return the lease.
fn close_while_a_lease_is_out(
    peer: &Sleeper,
    is_refused: bool,
    meanwhile: impl Fn(&dyn Fn() -> bool, &dyn Fn()) + Sync,
) {
    let (is_out, is_closed) = (Barrier::new(2), AtomicBool::new(false));
    on_team(2, true, Reach::Memory, |rank| {
        let team = &mut rank.team;
        let lease = &team.region.control(1).lease.0;
        if rank.rank == 1 {
            lease.store(1, Ordering::Relaxed);
            is_out.wait();
            return meanwhile(&|| is_closed.load(Ordering::SeqCst), &|| lease.store(0, Ordering::Release));
        }
        is_out.wait();
        team.processes = [std::process::id(), peer.0.id()].map(|pid| Process::open(pid).unwrap()).into();
        if is_refused {
            refuse_to_kill();
        }
        team.close();
        is_closed.store(true, Ordering::SeqCst);
    });
    assert!(is_closed.into_inner());
}

#[test]
fn who_was_stopped_there_is_killed() {
    let mut peer = Sleeper::start();
    close_while_a_lease_is_out(&peer, false, |_, _| {});
    // By signal, and long before it would have ended by itself.
    assert!(!peer.0.wait().unwrap().success());
}

#[test]
fn where_the_system_refuses_that_the_lease_is_waited_for() {
    let mut peer = Sleeper::start();
    close_while_a_lease_is_out(&peer, true, |is_closed, return_lease| {
        std::thread::sleep(2 * crate::team::DRAIN_TIME);
        assert!(!is_closed(), "the lease is out, and its holder lives");
        return_lease();
    });
    assert!(peer.lives(), "nobody could kill it");
}

#[test]
fn where_the_system_refuses_that_the_end_of_the_process_will_do() {
    let peer = Sleeper::start();
    let pid = Pid::from_child(&peer.0);
    close_while_a_lease_is_out(&peer, true, |is_closed, _| {
        std::thread::sleep(2 * crate::team::DRAIN_TIME);
        assert!(!is_closed(), "the lease is out, and its holder lives");
        kill_process(pid, Signal::KILL).unwrap();
    });
}
