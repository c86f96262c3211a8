//! Jobs whose ranks do not come together, or only at the second start: every process hears why, and none waits for what can't come.

#![cfg(target_os = "linux")]

mod support;

use phalanx::ReduceOp;
use phalanx::store::{FileStore, Secret, Store};
use phalanx_testkit::free_port;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::said;

/// How many files a rank may have open.
const OPEN_FILES: &str = "PHALANX_TEST_OPEN_FILES";

/// How many groups a rank joins, one after another.
const GROUPS: &str = "PHALANX_TEST_GROUPS";

/// Each rank in turn is slow to give its group up, and slow to join the next.
fn join_one_after_another(groups: usize) {
    let joined: phalanx::Result<()> = (0..groups).try_for_each(|i| {
        let group = phalanx::init()?;
        let (is_slow, pause) = (i % group.world_size() == group.rank(), Duration::from_millis(20));
        let mut sum = [i as u64];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [(i * group.world_size()) as u64]);
        let kept = is_slow.then(|| group.clone());
        group.finalize()?;
        if is_slow {
            std::thread::sleep(pause);
            drop(kept);
            std::thread::sleep(pause);
        }
        Ok(())
    });
    match joined {
        Err(error) => support::say("error", error),
        Ok(()) => support::say("joined", groups),
    }
}

/// A rank: adds up ones, or says why it does not.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    if support::role().is_none() {
        return;
    }
    if let Ok(files) = std::env::var(OPEN_FILES) {
        let limit = Some(files.parse().expect("a number"));
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("less is allowed");
    }
    if let Ok(groups) = std::env::var(GROUPS) {
        return join_one_after_another(groups.parse().expect("a number"));
    }
    match phalanx::init() {
        Err(error) => support::say("error", error),
        Ok(group) => {
            let mut sum = [1u64];
            group.all_reduce(&mut sum, ReduceOp::Sum).expect("all are there");
            support::say("sum", sum[0]);
            group.finalize().expect("all are there");
        }
    }
}

/// The processes of one job, each started by hand.
struct Job {
    world_size: usize,
    secret: Secret,
    variables: Vec<(&'static str, String)>,
}

impl Job {
    /// Whose rank 0 runs the store.
    fn hosted(world_size: usize) -> Self {
        let variables = vec![("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", free_port().to_string())];
        Self { world_size, secret: Secret::generate().expect("there is randomness"), variables }
    }

    /// Whose store is a directory.
    fn in_folder(world_size: usize, folder: &Path) -> Self {
        let store = format!("file://{}", folder.display());
        let variables = vec![("PHALANX_STORE", store), ("PHALANX_JOB_ID", "again".into())];
        Self { world_size, secret: Secret::generate().expect("there is randomness"), variables }
    }

    fn start(&self, rank: usize, more: &[(&str, &str)]) -> Child {
        let mut command: Command = support::again("rank");
        command
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", self.world_size.to_string())])
            .env("PHALANX_SECRET", self.secret.to_hex())
            .env("PHALANX_INIT_TIMEOUT_S", "90")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(more.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("this test can be started")
    }
}

fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it was started here");
}

/// Waits until the job's files tell where rank 0 is.
fn wait_for_rank_0(folder: &Path, not: Option<Vec<u8>>) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs(60);
    let store = FileStore::open(folder, "again").expect("the folder is ours");
    loop {
        if let Some(start) =
            store.try_get("start").expect("it can be read").filter(|s| Some(s) != not.as_ref())
        {
            let number = u64::from_le_bytes(start.clone().try_into().expect("a number of 64 bits"));
            let arbiter = format!("start {number:016x}/generation 0/arbiter");
            if store.try_get(&arbiter).expect("it can be read").is_some() {
                return start;
            }
        }
        assert!(Instant::now() < until, "rank 0 has not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_job_whose_rank_0_was_killed_in_init_is_started_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job::in_folder(2, folder.path());
    let mut stale = None;
    for _ in 0..3 {
        let zero = job.start(0, &[]);
        stale = Some(wait_for_rank_0(folder.path(), stale));
        kill(zero);
    }
    // It finds the address of one that has ended, long before its own rank 0 comes.
    let one = job.start(1, &[]);
    std::thread::sleep(Duration::from_secs(2));
    let zero = job.start(0, &[]);
    assert_eq!((said(zero, "sum"), said(one, "sum")), ("2".into(), "2".into()));
    let left = std::fs::read_dir(folder.path()).expect("the folder is there").count();
    assert_eq!(left, 0, "files are left");
}

#[test]
fn a_rank_0_that_is_started_anew_is_joined_by_those_who_wait() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job::in_folder(3, folder.path());
    let zero = job.start(0, &[]);
    wait_for_rank_0(folder.path(), None);
    let one = job.start(1, &[]);
    std::thread::sleep(Duration::from_secs(2)); // it has joined
    // Another takes its place, and then it ends: as when a pod is moved.
    let start = FileStore::open(folder.path(), "again")
        .and_then(|store| store.try_get("start"))
        .expect("it is there");
    let again = job.start(0, &[]);
    wait_for_rank_0(folder.path(), start);
    assert!(said(zero, "error").contains("another process was started as rank 0 of this job"));
    let two = job.start(2, &[]);
    for rank in [again, one, two] {
        assert_eq!(said(rank, "sum"), "3");
    }
}

#[test]
fn whoever_gives_up_in_init_is_heard_by_all() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for culprit in 0..3 {
        let job = Job::hosted(3);
        let others = (0..3).filter(|rank| *rank != culprit);
        let others: Vec<Child> = others.map(|rank| job.start(rank, &[])).collect();
        std::thread::sleep(Duration::from_millis(500));
        let own = said(job.start(culprit, &[("PHALANX_PORT", &port)]), "error");
        assert!(own.contains(&format!("port {port} is in use")), "{own}");
        for other in others {
            let error = said(other, "error");
            let (who, why) =
                (format!("rank {culprit} ("), format!("gave up: configuration: port {port} is in use"));
            assert!(error.contains(&who) && error.contains(&why), "{error}");
        }
    }
}

#[test]
fn nobody_waits_for_a_rank_0_that_was_killed_in_init() {
    let job = Job::hosted(3);
    let zero = job.start(0, &[]);
    let one = job.start(1, &[]);
    std::thread::sleep(Duration::from_secs(3));
    kill(zero);
    let error = said(one, "error");
    assert!(
        error.contains("rank 0 (") && error.contains("died") || error.contains("the store at"),
        "{error}"
    );
}

#[test]
fn a_rank_that_believes_in_another_world_size_hears_both() {
    let (job, larger) = (Job::hosted(2), 3);
    let zero = job.start(0, &[]);
    let one = said(job.start(1, &[("WORLD_SIZE", &larger.to_string())]), "error");
    assert!(one.contains("this rank has WORLD_SIZE 3, the job 2"), "{one}");
    let zero = said(zero, "error");
    assert!(zero.contains("rank 1 (") && zero.contains("this rank has WORLD_SIZE 3, the job 2"), "{zero}");
}

#[test]
fn a_setting_that_differs_is_named_and_no_other() {
    let job = Job::hosted(2);
    let ranks = [("0", "5"), ("1", "6")].map(|(rank, seconds)| {
        job.start(rank.parse().expect("a number"), &[("PHALANX_HEARTBEAT_TIMEOUT_S", seconds)])
    });
    for rank in ranks {
        let error = said(rank, "error");
        let either = ["6 s at rank 1, 5 s at rank 0", "5 s at rank 0, 6 s at rank 1"];
        assert!(
            either
                .iter()
                .any(|both| error.ends_with(&format!(": PHALANX_HEARTBEAT_TIMEOUT_S differs: {both}"))),
            "{error}"
        );
    }
}

#[test]
fn rank_0_says_that_callers_did_not_know_the_secret() {
    let job = Job::hosted(2);
    let zero = job.start(0, &[("PHALANX_INIT_TIMEOUT_S", "6")]);
    let wrong = Secret::generate().expect("there is randomness").to_hex();
    let one = job.start(1, &[("PHALANX_INIT_TIMEOUT_S", "8"), ("PHALANX_SECRET", &wrong)]);
    let zero = said(zero, "error");
    assert!(
        zero.contains("missing: [1]")
            && zero.contains("don't know this job's secret, the last from 127.0.0.1"),
        "{zero}"
    );
    let one = said(one, "error");
    assert!(one.contains("no store answers at 127.0.0.1:") && one.contains("rank 0 runs it"), "{one}");
}

#[test]
fn the_time_an_error_names_is_the_whole_wait() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job::in_folder(2, folder.path());
    let zero = job.start(0, &[]);
    wait_for_rank_0(folder.path(), None);
    kill(zero);
    let error = said(job.start(1, &[("PHALANX_INIT_TIMEOUT_S", "4")]), "error");
    assert!(!error.contains("waited 0.") && !error.contains("waited 1."), "{error}");
    assert!(error.contains("rank 0 does not answer at 127.0.0.1:"), "{error}");
}

/// Whatever it would have opened next.
#[test]
fn a_rank_without_descriptors_is_told_what_to_set() {
    for files in ["3", "4", "6", "8"] {
        let job = Job::hosted(2);
        let zero = job.start(0, &[]);
        let error = said(job.start(1, &[(OPEN_FILES, files)]), "error");
        kill(zero);
        assert!(error.contains("`ulimit -n`") && !error.contains("firewall"), "{files} files: {error}");
    }
}

/// Whichever of them is the last to give up the group before.
#[test]
fn ranks_leave_and_join_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for job in [Job::in_folder(3, folder.path()), Job::hosted(3)] {
        let ranks =
            [0, 1, 2].map(|rank| job.start(rank, &[(GROUPS, "20"), ("PHALANX_INIT_TIMEOUT_S", "30")]));
        assert_eq!(
            ranks.map(|rank| said(rank, "joined")),
            ["20", "20", "20"].map(String::from),
            "{:?}",
            job.variables
        );
    }
}
