//! `phalanx run` on several hosts, which are launchers of one machine here: each with a name of its own (`PHALANX_HOST_ID`). Linux, because what is left of
//! a job is looked for in `/proc`.
#![cfg(target_os = "linux")]

mod several_hosts;

use rustix::process::Signal;
use several_hosts::{Host, Job, all_gone, secret};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const SLEEP: &str = "echo pid $$; exec sleep 60";

#[test]
fn ranks_of_all_hosts_know_their_places_and_are_shown_by_the_first() {
    let job = Job::of(2, &[]);
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $PHALANX_NODE_RANK ${PHALANX_SECRET##??????}";
    let [leader, agent] = job.shells([3, 1], script);
    let (code, text) = leader.ends();
    assert_eq!(code, Some(0), "{text}");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let secret = lines[0].rsplit(' ').next().unwrap();
    assert!(secret.len() == 58 && !secret.contains("55555"), "one secret, made for this start: {text}");
    let expected = [
        "[0 alpha] 0/4 0/3 0/2 0",
        "[1 alpha] 1/4 1/3 0/2 0",
        "[2 alpha] 2/4 2/3 0/2 0",
        "[3 beta] 3/4 0/1 1/2 1",
    ];
    assert_eq!(lines, expected.map(|line| format!("{line} {secret}")));
    assert_eq!(agent.ends(), (Some(0), String::new()));
}

#[test]
fn a_failure_on_another_host_is_reported_once_and_is_everybodys_exit_code() {
    let job = Job::of(3, &["--grace", "1"]);
    let script = "test $RANK = 3 || exec sleep 60; echo out of ideas >&2; exit 7";
    let [leader, second, third] = job.shells([1, 1, 2], script);
    let (code, text) = leader.ends();
    assert_eq!(code, Some(7), "{text}");
    assert!(
        text.contains("phalanx: rank 3 of 4 (pid ") && text.contains(" on gamma) exited with code 7"),
        "{text}"
    );
    assert!(text.contains("  | out of ideas"), "{text}");
    for agent in [second, third] {
        let (code, text) = agent.ends();
        assert_eq!(code, Some(7), "{text}");
        let words = "phalanx: the job was ended: rank 3 of 4 ";
        assert!(text.starts_with(words) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_signal_to_any_of_the_launchers_ends_the_job() {
    for signalled in [0, 1] {
        let job = Job::of(2, &[]);
        let hosts = job.shells([1, 2], SLEEP);
        let pids = hosts[0].pids(3);
        hosts[signalled].signal(Signal::TERM);
        for host in hosts {
            let (code, text) = host.ends();
            assert_eq!(code, Some(143), "{text}");
        }
        all_gone(&pids);
    }
}

#[test]
fn a_signal_to_a_launcher_that_waits_for_others_ends_it() {
    let job = Job::of(3, &[]);
    let hosts = job.shells([1, 1], SLEEP);
    sleep(Duration::from_millis(300));
    hosts[0].signal(Signal::TERM);
    assert_eq!(hosts.map(|host| host.ends().0), [Some(143); 2]);
    // Nobody leads it.
    let host = job.host(1, 1, &["true"]);
    sleep(Duration::from_millis(300));
    host.signal(Signal::TERM);
    assert_eq!(host.ends().0, Some(143));
}

#[test]
fn an_agent_that_is_killed_is_named_and_none_of_its_ranks_stays() {
    let job = Job::of(2, &["--grace", "1"]);
    let [leader, agent] = job.shells([1, 2], SLEEP);
    let pids = leader.pids(3);
    agent.signal(Signal::KILL);
    all_gone(&pids);
    let (code, text) = leader.ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("node 1 (beta) is lost"), "{text}");
    let report = " on beta) was lost with its host after ";
    assert!(text.contains(report) && text.contains("its agent has ended or was killed"), "{text}");
}

#[test]
fn when_the_leader_is_killed_no_rank_stays_on_any_host_and_agents_say_so() {
    let job = Job::of(2, &[]);
    let [leader, agent] = job.shells([1, 2], SLEEP);
    let pids = leader.pids(3);
    leader.signal(Signal::KILL);
    all_gone(&pids);
    let (code, text) = agent.ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("node 1 has lost the launcher that leads the job") && text.contains(&job.rendezvous),
        "{text}"
    );
}

#[test]
fn a_launcher_that_is_stopped_is_lost_in_time() {
    let heartbeat = |mut command: Command| {
        command.env("PHALANX_HEARTBEAT_TIMEOUT_S", "5");
        Host::start(command)
    };
    for stopped in [0, 1] {
        let job = Job::of(2, &["--grace", "1"]);
        let hosts = [0, 1].map(|node| heartbeat(job.command(node, 1, &["sh", "-c", SLEEP])));
        let pids = ["[0 alpha] pid ", "[1 beta] pid "].map(|word| {
            let line = hosts[0].lines(word, 1).remove(0);
            line.rsplit(' ').next().unwrap().parse().unwrap()
        });
        hosts[stopped].signal(Signal::STOP);
        let [leader, agent] = hosts;
        let (other, still) = if stopped == 0 { (agent, leader) } else { (leader, agent) };
        let (code, text) = other.ends();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("nothing was heard of it"), "{text}");
        all_gone(&[pids[1 - stopped]]);
        still.signal(Signal::CONT);
        still.ends();
        all_gone(&pids);
    }
}

#[test]
fn another_secret_is_told_to_both_sides_in_seconds() {
    let mut job = Job::of(2, &[]);
    let leader = job.host(0, 1, &["true"]);
    job.secret = job.folder.path().join("other");
    secret(&job.secret, '6');
    let (code, text) = job.host(1, 1, &["true"]).ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not know this job's secret"), "{text}");
    leader.lines("127.0.0.1 has called without knowing this job's secret", 1);
    leader.signal(Signal::TERM);
    assert_eq!(leader.ends().0, Some(143));
}

#[test]
fn hosts_that_do_not_come_are_named() {
    let job = Job::of(3, &[]);
    let short = |node: usize| {
        let mut command = job.command(node, 1, &["true"]);
        command.env("PHALANX_INIT_TIMEOUT_S", "1.5");
        Host::start(command)
    };
    let (leader, agent) = (short(0), short(1));
    for host in [leader, agent] {
        let (code, text) = host.ends();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("2 of 3 are here, missing after 1.5 s: node 2"), "{text}");
    }
    // And the one that leads.
    let (code, text) = short(1).ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is `phalanx run --node-rank 0` started there"), "{text}");
}

#[test]
fn commands_that_contradict_each_other_are_told_so() {
    let mut job = Job::of(2, &[]);
    let leader = job.host(0, 1, &["sleep", "60"]);
    job.nodes = 3;
    let (_, text) = job.host(1, 1, &["true"]).ends();
    assert!(text.contains("node 0 was told that there are 2 hosts, and this one that there are 3"), "{text}");
    leader.signal(Signal::TERM);
    leader.ends();
}

#[test]
fn a_job_is_started_again_on_all_hosts_and_its_logs_are_with_the_first() {
    let logs = tempfile::tempdir().unwrap();
    let folder = logs.path().to_str().unwrap();
    let job = Job::of(2, &["--max-restarts", "1", "--log-dir", folder, "--job-id", "j", "--grace", "1"]);
    let script = "echo try $PHALANX_RESTART_COUNT; test $RANK$PHALANX_RESTART_COUNT != 10";
    let hosts = job.shells([1, 1], script);
    for host in hosts {
        let (code, text) = host.ends();
        assert_eq!(code, Some(0), "{text}");
    }
    for (attempt, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let log = std::fs::read_to_string(logs.path().join(format!("j/attempt_{attempt}/{rank}/stdout.log")));
        assert_eq!(log.unwrap(), format!("try {attempt}\n"));
    }
}

#[test]
fn output_of_any_length_comes_whole() {
    let job = Job::of(2, &["--no-prefix"]);
    let [leader, agent] =
        job.shells([1, 2], "test $RANK = 0 || seq 100000; test $RANK = 0 || seq 100000 >&2");
    let (code, text) = leader.ends();
    assert_eq!((code, text.lines().count()), (Some(0), 400_000));
    assert_eq!(agent.ends().0, Some(0));
}

#[test]
fn a_program_that_a_host_does_not_have_is_reported_as_a_shell_would() {
    let job = Job::of(2, &["--grace", "1"]);
    let leader = job.host(0, 1, &["sleep", "60"]);
    let agent = job.host(1, 1, &["no-such-program"]);
    let (code, text) = leader.ends();
    assert_eq!(code, Some(127), "{text}");
    assert!(text.contains("rank 1 of 2 (on beta) exited with code 127"), "{text}");
    assert!(text.contains("phalanx: program no-such-program is not available"), "{text}");
    assert_eq!(agent.ends().0, Some(127));
}

#[test]
fn one_launcher_on_each_host_of_another_launchers_job_makes_one_job() {
    let job = Job::of(2, &[]);
    let (addr, port) = job.rendezvous.split_once(':').unwrap();
    let secret = "7".repeat(64);
    let master = [("MASTER_ADDR", addr), ("MASTER_PORT", port)];
    let pet = [
        ("PET_MASTER_ADDR", addr),
        ("PET_MASTER_PORT", port),
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "2"),
    ];
    let slurm = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NUM_NODES", "2")];
    let at = ["--rendezvous", &job.rendezvous];
    let indexed = [&at[..], &["--nnodes", "2"]].concat();
    for (rank, variables, flags) in [
        ("PET_NODE_RANK", &pet[..], &[][..]),
        ("RANK", &[&master[..], &[("WORLD_SIZE", "2")]].concat(), &["-n", "2"]),
        ("SLURM_PROCID", &slurm, &[&at[..], &["-n", "2"]].concat()),
        ("JOB_COMPLETION_INDEX", &[], &[&indexed[..], &["-n", "2"]].concat()),
    ] {
        let [leader, agent] = ["0", "1"].map(|number| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
            command.arg("run").args(flags).args(["sh", "-c", "echo $RANK of $WORLD_SIZE"]);
            command.env(rank, number).envs(variables.iter().copied()).env("PHALANX_SECRET", &secret);
            Host::start(command.env("PHALANX_HOST_ID", "h").env("PHALANX_INIT_TIMEOUT_S", "30"))
        });
        let (code, text) = leader.ends();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let all = ["[0 h] 0 of 4", "[1 h] 1 of 4", "[2 h] 2 of 4", "[3 h] 3 of 4"];
        assert_eq!((code, &lines[..]), (Some(0), &all[..]), "{rank}");
        assert_eq!(agent.ends(), (Some(0), String::new()));
    }
}

#[test]
fn launchers_in_a_step_of_slurm_share_a_secret_by_a_file_that_goes_with_the_job() {
    let job = Job::of(2, &[]);
    let shared = job.folder.path().join("shared");
    let hosts = ["0", "1"].map(|number| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(["run", "--rendezvous", &job.rendezvous, "-n", "1", "sh", "-c"]);
        command.arg("ls -A $PHALANX_SHARED_DIR; echo $RANK of $WORLD_SIZE");
        command.env("SLURM_PROCID", number).env("SLURM_STEP_ID", "0").env("SLURM_JOB_ID", "7");
        command.env("SLURM_STEP_NUM_TASKS", "2").env("SLURM_STEP_NUM_NODES", "2");
        command
            .env_remove("PHALANX_SECRET")
            .env_remove("PHALANX_SECRET_FILE")
            .env("PHALANX_SHARED_DIR", &shared);
        Host::start(command.env("PHALANX_HOST_ID", "h"))
    });
    let [(code, text), agent] = hosts.map(Host::ends);
    assert_eq!((code, agent), (Some(0), (Some(0), String::new())), "{text}");
    assert!(text.contains("[1 h] 1 of 2") && text.contains("[0 h] slurm--7.0-0"), "{text}");
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0);
}

#[test]
fn what_the_flags_lack_is_said() {
    let refusal = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.env_remove("PHALANX_SECRET").env_remove("PHALANX_SECRET_FILE");
        let (code, text) = Host::start({
            command.arg("run").args(words);
            command
        })
        .ends();
        assert_eq!(code, Some(2), "{text}");
        text
    };
    let all = ["--nnodes", "2", "--node-rank", "1", "--rendezvous", "a:1", "-n", "1", "true"];
    for (words, missing) in [
        (&["--node-rank", "1", "-n", "1", "true"][..], "--nnodes"),
        (&["--nnodes", "2", "-n", "1", "true"], "--node-rank"),
        (&["--nnodes", "2", "--node-rank", "1", "-n", "1", "true"], "--rendezvous"),
        (&all, "--secret-file"),
    ] {
        let text = refusal(words);
        assert!(text.contains(missing), "{words:?}: {text}");
    }
}
