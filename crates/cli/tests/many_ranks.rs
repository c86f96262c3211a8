//! `phalanx run` with many ranks on a host. Linux, because what the launcher takes for them is looked up in `/proc`.
#![cfg(target_os = "linux")]

mod several_hosts;

use rustix::process::Signal;
use several_hosts::{Host, Job};
use std::process::Command;

const STAY: &str = "echo here; exec sleep 60";

/// The most threads that a launcher has, whatever the number of its ranks.
const THREADS_MAX: usize = 16;

fn count(launcher: &Host, what: &str) -> usize {
    std::fs::read_dir(format!("/proc/{}/{what}", launcher.launcher.id())).unwrap().count()
}

/// Fails where the launcher has more threads than it may, or more descriptors than four for each of its ranks.
#[track_caller]
fn takes_little(launcher: &Host, ranks: usize) {
    let (threads, descriptors) = (count(launcher, "task"), count(launcher, "fd"));
    assert!(threads <= THREADS_MAX, "{threads} threads for {ranks} ranks");
    assert!(descriptors <= 4 * ranks + 40, "{descriptors} descriptors for {ranks} ranks");
}

fn phalanx(before: &str, ranks: usize, program: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{before} exec {} run -n {ranks} {program}", env!("CARGO_BIN_EXE_phalanx")));
    shell
}

#[test]
fn a_launcher_has_no_threads_for_its_ranks() {
    let launcher = Host::start(phalanx("", 64, &format!("sh -c '{STAY}'")));
    launcher.lines("here", 64);
    takes_little(&launcher, 64);
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.ends().0, Some(143));
}

#[test]
fn neither_has_the_launcher_that_leads_nor_an_agent() {
    let job = Job::of(2, &[]);
    let hosts = job.shells([8, 56], STAY);
    hosts[0].lines("here", 64);
    takes_little(&hosts[0], 64);
    takes_little(&hosts[1], 56);
    hosts[0].signal(Signal::TERM);
    assert_eq!(hosts.map(|host| host.ends().0), [Some(143); 2]);
}

#[test]
fn a_thousand_ranks_start_and_end() {
    let (code, text) = Host::start(phalanx("", 1000, "sh -c 'echo $RANK'")).ends();
    assert_eq!(code, Some(0), "{text}");
    let mut ranks: Vec<usize> =
        text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..1000).collect::<Vec<_>>());
}

#[test]
fn descriptors_are_taken_as_far_as_they_may_be_and_too_few_are_an_error_before_anything_starts() {
    let (code, text) = Host::start(phalanx("ulimit -Sn 64;", 100, "true")).ends();
    assert_eq!((code, text.as_str()), (Some(0), ""));
    let (code, text) = Host::start(phalanx("ulimit -n 256;", 100, "echo started")).ends();
    let is_said =
        ["descriptors", "100 ranks", "allows it 256", "ulimit -Hn"].iter().all(|word| text.contains(word));
    assert!(code != Some(0) && is_said && !text.contains("started"), "{code:?}: {text}");
}
