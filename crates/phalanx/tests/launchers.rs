//! Programs as they are, under the launchers of others: no variable is set by hand. A launcher that is not installed is skipped by name;
//! `scripts/install-launchers` installs all of them on Debian and Ubuntu.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so, and ranks say who they are")]

#[path = "launchers/programs.rs"]
mod programs;
#[path = "launchers/slurm.rs"]
mod slurm;

use phalanx::ReduceOp;
use programs::{command, installed};
use slurm::Cluster;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far more than any of these jobs takes.
const LIMIT: Duration = Duration::from_secs(100);
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A rank that says more of itself than the example does, and joins its job twice.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    if std::env::var_os("PHALANX_TEST_LAUNCHED").is_none() {
        return;
    }
    for time in 0..2 {
        let group = phalanx::init().expect("the ranks come together");
        let mut sum = [group.rank() as u64 + 1];
        group.all_reduce(&mut sum, ReduceOp::Sum).expect("it is reduced");
        let config = phalanx::Config::from_env().expect("it makes sense");
        let (local, locals, node) = (config.local_rank, config.local_world_size, config.node_rank);
        println!("\ntime {time}: rank {} local {local} of {locals} node {node} sum {}", group.rank(), sum[0]);
        group.finalize().expect("all are here");
    }
}

/// A command that runs that test as a program.
fn ranks_of_this_test() -> Vec<String> {
    let this = std::env::current_exe().expect("this test has a path");
    let this = this.to_str().expect("of plain characters").to_owned();
    let args = ["--exact", "rank", "--ignored", "--nocapture"].map(str::to_owned);
    [vec![this], args.to_vec()].concat()
}

/// The built example: cargo builds them with the tests, beside the tests' own folder.
fn hello() -> String {
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    profile.join("examples/hello").to_str().expect("of plain characters").to_owned()
}

/// What a command has written, and whether it ended well.
struct Ended {
    well: bool,
    said: String,
    took: Duration,
}

impl Ended {
    /// The lines with these words, sorted.
    fn lines(&self, words: &str) -> Vec<&str> {
        let mut lines: Vec<_> = self.said.lines().filter(|line| line.contains(words)).collect();
        lines.sort_unstable();
        lines
    }

    #[track_caller]
    fn greets(&self, ranks: usize) {
        let sum = ranks * (ranks - 1) / 2;
        let all = (0..ranks).map(|r| format!("hello from rank {r} of {ranks}; the ranks add up to {sum}"));
        assert!(self.well && !self.said.contains("PMIX ERROR"), "{}", self.said);
        assert_eq!(self.lines("hello from"), all.collect::<Vec<_>>(), "{}", self.said);
    }

    #[track_caller]
    fn fails_with(&self, words: &[&str]) {
        assert!(!self.well && !self.said.contains("hello from"), "{}", self.said);
        for word in words {
            assert!(self.said.contains(word), "{word:?} is not in: {}", self.said);
        }
    }
}

fn end(mut command: Command) -> Ended {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("said");
    let file = fs::File::create(&log).expect("it can be written");
    command.stdin(Stdio::null()).stdout(file.try_clone().expect("once more")).stderr(file);
    let began = Instant::now();
    let mut child = command.spawn().expect("it starts");
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            break Some(status);
        }
        if began.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&fs::read(&log).expect("it can be read")).into_owned();
    assert!(status.is_some(), "{command:?} has not ended: {said}");
    Ended { well: status.is_some_and(|status| status.success()), said, took: began.elapsed() }
}

/// What holds under each launcher that starts four ranks with `start`, and calls the rank `rank`. It notices that a process which has not joined
/// ends by `death`, and says so in one of these ways.
fn four_ranks_meet(start: &dyn Fn(&[&str]) -> Command, rank: &str, death: &str, ways: &[&str]) {
    let hello = hello();
    end(start(&[&hello])).greets(4);
    let mut asked = start(&[&hello]);
    asked.env("PHALANX_ENCRYPT", "1").env("PHALANX_BACKEND", "tcp");
    end(asked).greets(4);
    // Variables say where to meet: the rank and the number of ranks are the launcher's still.
    let mut told = start(&[&hello]);
    let port = phalanx_testkit::free_port().to_string();
    told.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("PHALANX_SECRET", SECRET);
    end(told).greets(4);
    let mut alone = start(&[&hello]);
    alone.env("PHALANX_ALONE", "1");
    let alone = end(alone);
    assert_eq!(alone.lines("hello from rank 0 of 1").len(), 4, "{}", alone.said);
    // A process that ends before it joins ends the others.
    let dies = format!("[ ${rank} = 2 ] && {death}; exec {hello}");
    let ended = end(start(&["sh", "-c", &dies]));
    ended.fails_with(&[]);
    assert!(ways.iter().any(|way| ended.said.contains(way)), "none of {ways:?} is in: {}", ended.said);
    assert!(ended.took < Duration::from_secs(30), "{:?}: {}", ended.took, ended.said);
}

/// `time 0: rank 3 local 0 of 1 node 1 sum 10`, for both times.
#[track_caller]
fn places(ended: &Ended, places: &[(usize, usize, usize)]) {
    assert!(ended.well, "{}", ended.said);
    let sum: usize = (1..=places.len()).sum();
    for time in 0..2 {
        let expected = places.iter().enumerate().map(|(rank, (local, locals, node))| {
            format!("time {time}: rank {rank} local {local} of {locals} node {node} sum {sum}")
        });
        assert_eq!(ended.lines(&format!("time {time}:")), expected.collect::<Vec<_>>(), "{}", ended.said);
    }
}

#[test]
fn under_mpiexec_of_mpich() {
    let Some(mpiexec) = installed("mpiexec.hydra") else { return };
    let start = |program: &[&str]| command(&mpiexec, &[&["-n", "4"], program].concat());
    // Its proxy ends the other processes. If one of them waits for an answer just then, the proxy's write breaks, the proxy ends too, and mpiexec
    // says only that it has lost the proxy (MPICH 4.0: one time in six here).
    let lost = "control_cb (pm/pmiserv/pmiserv_cb.c";
    four_ranks_meet(&start, "PMI_RANK", "kill -9 $$", &["EXIT CODE: 9", lost]);
    // An exit code alone it does not notice, and the others wait for as long as they may.
    let mut exits = start(&["sh", "-c", &format!("[ $PMI_RANK = 2 ] && exit 3; exec {}", hello())]);
    exits.env("PHALANX_INIT_TIMEOUT_S", "2");
    end(exits).fails_with(&["all processes of the job at the launcher's barrier", "do all call init()?"]);
    let hello = hello();
    end(command(&mpiexec, &["-n", "1", &hello])).greets(1);
    // Two hosts by name, which are one: three ranks and one.
    let program = ranks_of_this_test();
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let mut uneven =
        command(&mpiexec, &[&["-launcher", "fork", "-hosts", "a:3,b:1", "-n", "4"], &program[..]].concat());
    uneven.env("PHALANX_TEST_LAUNCHED", "1");
    let uneven = end(uneven);
    assert!(uneven.well, "{}", uneven.said);
    assert_eq!(uneven.lines("rank 3 local 0 of 1 node 3 sum 10").len(), 2, "{}", uneven.said);
    assert_eq!(uneven.lines("of 3 node 0 sum 10").len(), 6, "{}", uneven.said);
    // The channel serves one program.
    end(start(&["sh", "-c", &format!("{hello} >/dev/null; exec {hello}")]))
        .fails_with(&["closed the channel", "MASTER_ADDR"]);
    // A process that opens another file where the launcher's channel was leaves that alone.
    let closed = format!("eval \"exec {hello} $PMI_FD<&-\"");
    let closed = end(start(&["bash", "-c", &closed]));
    closed.fails_with(&["MASTER_ADDR, MASTER_PORT and PHALANX_SECRET"]);
    assert_eq!(closed.lines("can't be used").len(), 4, "{}", closed.said);
    let libraries = fs::read_dir("/usr/lib/x86_64-linux-gnu").into_iter().flatten().flatten();
    let mut libraries = libraries.map(|entry| entry.path().to_string_lossy().into_owned());
    match libraries.find(|file| file.contains("libmpich.so.")) {
        Some(mpi) => end(start(&["env", &format!("LD_PRELOAD={mpi}"), &hello]))
            .fails_with(&["MPI is in this process", "MASTER_ADDR"]),
        None => println!("skipped: libmpich.so is not where Debian has it"),
    }
}

#[test]
fn under_mpirun_of_open_mpi() {
    let Some(mpirun) = installed("mpirun.openmpi").or_else(|| installed("mpirun")) else { return };
    let start = |program: &[&str]| {
        let mut command =
            command(&mpirun, &[&["--allow-run-as-root", "--oversubscribe", "-n", "4"], program].concat());
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        command
    };
    // It says which process that was in a second message, which it loses now and then.
    four_ranks_meet(&start, "OMPI_COMM_WORLD_RANK", "exit 3", &["1 process returned\na non-zero exit code"]);
    end(command(&mpirun, &["--allow-run-as-root", "-n", "1", &hello()])).greets(1);
    let program = ranks_of_this_test();
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let mut twice = start(&program);
    twice.env("PHALANX_TEST_LAUNCHED", "1");
    places(&end(twice), &[(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]);
}

#[test]
fn under_slurm() {
    for program in ["slurmctld", "slurmd", "munged", "srun"] {
        if installed(program).is_none() {
            return;
        }
    }
    let Some(cluster) = Cluster::start() else { return };
    let hello = hello();
    let shared = tempfile::tempdir().expect("a temporary folder");
    let srun = |args: &[&str], program: &[&str]| {
        let mut command = cluster.command("srun", &[args, program].concat());
        command.env("PHALANX_SHARED_DIR", shared.path());
        command
    };
    let nothing_is_left = || assert_eq!(fs::read_dir(shared.path()).expect("it is there").count(), 0);
    for mpi in ["none", "pmi2"] {
        let start = |program: &[&str]| srun(&["-K", "--mpi", mpi, "-N2", "-n4"], program);
        four_ranks_meet(&start, "SLURM_PROCID", "exit 3", &["task 2: Exited with exit code 3"]);
    }
    // Rank 0 was ended before it could remove the file of its job.
    for file in fs::read_dir(shared.path()).expect("it is there").flatten() {
        fs::remove_file(file.path()).expect("it is ours");
    }
    end(srun(&["-N1", "-n1"], &[&hello])).greets(1);
    // Three tasks on one node and one on the other.
    let program = ranks_of_this_test();
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    for mpi in ["none", "pmi2"] {
        let mut uneven = srun(&["--mpi", mpi, "-N2", "-n4", "-m", "plane=3"], &program);
        uneven.env("PHALANX_TEST_LAUNCHED", "1");
        places(&end(uneven), &[(0, 3, 0), (1, 3, 0), (2, 3, 0), (0, 1, 1)]);
    }
    nothing_is_left();
    // Without -K nobody ends the others; rank 0 knows who did not come.
    let mut exits =
        srun(&["-N2", "-n4"], &["sh", "-c", &format!("[ $SLURM_PROCID = 2 ] && exit 3; exec {hello}")]);
    exits.env("PHALANX_INIT_TIMEOUT_S", "3");
    end(exits).fails_with(&["3 of 4 ranks came, missing: [2]"]);
    nothing_is_left();
    // A directory that can't be had.
    let mut nowhere = srun(&["-K", "-N2", "-n4"], &[&hello]);
    nowhere.env("PHALANX_SHARED_DIR", "/dev/null/nowhere");
    end(nowhere).fails_with(&["/dev/null/nowhere", "PHALANX_SHARED_DIR", "MASTER_ADDR"]);
    // The shell of a batch job has Slurm's variables, and is one process; what it starts by srun are several.
    let batch = shared.path().join("batch");
    let out = shared.path().join("batch.out");
    fs::write(&batch, format!("#!/bin/bash\n{hello}\nsrun {hello}\n")).expect("it can be written");
    let text = |path: &Path| path.to_str().expect("of plain characters").to_owned();
    let mut sbatch = cluster.command("sbatch", &["-W", "-N2", "-n4", "-o", &text(&out), &text(&batch)]);
    sbatch.env("PHALANX_SHARED_DIR", shared.path().join("of-batch"));
    let sbatch = end(sbatch);
    assert!(sbatch.well, "{}", sbatch.said);
    let said = fs::read_to_string(&out).expect("it has run");
    let of = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert_eq!((of("rank 0 of 1;"), of("of 4; the ranks add up to 6")), (1, 4), "{said}");
    // The recipe of the examples, which asks for four ranks on each node.
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster/slurm-ranks.sbatch");
    let mut sbatch = cluster.command("sbatch", &["-W", "-o", &text(&out), &text(&recipe), &hello]);
    sbatch.env("PHALANX_SHARED_DIR", shared.path().join("of-recipe"));
    let sbatch = end(sbatch);
    let said = fs::read_to_string(&out).unwrap_or_default();
    assert!(sbatch.well, "{}{said}", sbatch.said);
    Ended { said, ..sbatch }.greets(8);
}
