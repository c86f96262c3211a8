//! `phalanx run` in each task of an `srun`: the tasks make one job, whose place each launcher knows from Slurm. Skipped by name where Slurm is not
//! installed; `scripts/install-launchers` installs it on Debian and Ubuntu.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

#[path = "../../phalanx/tests/launchers/programs.rs"]
mod programs;
#[path = "../../phalanx/tests/launchers/slurm.rs"]
mod slurm;

use programs::installed;
use rustix::process::{Pid, Signal, kill_process};
use slurm::Cluster;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Far more than any of this takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the launchers meet: the nodes' names are Slurm's alone here, so the first can't be called by its own.
fn rendezvous() -> String {
    format!("127.0.0.1:{}", phalanx_testkit::free_port())
}

/// `srun` of one `phalanx run` on each of two nodes, with these arguments of `run`: a shell that has Slurm's variables.
fn job(cluster: &Cluster, folder: &Path, run: &str) -> Command {
    let rendezvous = rendezvous();
    let secret = folder.join("secret");
    let phalanx = env!("CARGO_BIN_EXE_phalanx");
    let task = format!(
        "exec {phalanx} run --rendezvous {rendezvous} --secret-file {} --grace 1 {run}",
        secret.display()
    );
    let mut command = cluster.command("srun", &["-N2", "--ntasks-per-node=1", "sh", "-c", &task]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ends(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("it starts");
    let began = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        if began.elapsed() > LIMIT {
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(20));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it can be read");
    (status.code(), [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
}

#[test]
fn a_launcher_in_each_task_makes_one_job() {
    for program in ["slurmctld", "slurmd", "munged", "srun"] {
        if installed(program).is_none() {
            return;
        }
    }
    let Some(cluster) = Cluster::start() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let secret = folder.path().join("secret");
    fs::write(&secret, "5".repeat(64)).expect("it can be written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");

    // Three ranks on the first node and one on the second.
    let tells = "-n $((3 - 2 * SLURM_NODEID)) sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK'";
    let (code, text) = ends(job(&cluster, folder.path(), tells));
    let mut lines: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once("] ")?.1)).collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["0/4 0/3 0", "1/4 1/3 0", "2/4 2/3 0", "3/4 0/1 1"]), "{text}");

    // The recipe of the examples: a batch job, without a secret of the user's.
    let phalanx = Path::new(env!("CARGO_BIN_EXE_phalanx"));
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster/slurm-launchers.sbatch");
    let [log, shared] = ["batch.log", "shared"].map(|name| folder.path().join(name));
    let shell = ["sh", "-c", "echo $RANK/$WORLD_SIZE"].map(str::to_owned);
    let args = ["-W".to_owned(), format!("-o{}", log.display()), recipe.display().to_string()];
    let args: Vec<&str> = args.iter().chain(&shell).map(String::as_str).collect();
    let mut sbatch = cluster.command("sbatch", &args);
    let path = std::env::var("PATH").expect("there is one");
    sbatch.env("PATH", format!("{}:{path}", phalanx.parent().expect("a folder").display()));
    sbatch.env("RANKS_PER_NODE", "2").env("RUN_FLAGS", format!("--rendezvous {}", rendezvous()));
    sbatch
        .env("PHALANX_SHARED_DIR", &shared)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (code, text) = ends(sbatch);
    let said = fs::read_to_string(&log).unwrap_or_default();
    let mut lines: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once("] ")?.1)).collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["0/4", "1/4", "2/4", "3/4"]), "{text}{said}");
    assert_eq!(fs::read_dir(&shared).expect("the secret was there").count(), 0);

    // One report, and the code of the rank that it names, on all nodes.
    let fails = "-n 2 sh -c 'test $RANK = 3 || exec sleep 300; echo out of ideas >&2; exit 7'";
    let (code, text) = ends(job(&cluster, folder.path(), fails));
    assert_eq!(code, Some(7), "{text}");
    let reports = text.lines().filter(|line| line.starts_with("phalanx: rank 3 of 4 ")).count();
    assert!(
        reports == 1 && text.contains("exited with code 7") && text.contains("  | out of ideas"),
        "{text}"
    );

    // What ends srun ends the ranks.
    let pids = folder.path().join("pids");
    let sleeps = format!("-n 2 sh -c 'echo $$ >> {}; exec sleep 300'", pids.display());
    let srun = job(&cluster, folder.path(), &sleeps).spawn().expect("srun starts");
    let here =
        || fs::read_to_string(&pids).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < LIMIT, "{what}: {:?}", here());
            thread::sleep(Duration::from_millis(20));
        }
    };
    wait("four ranks start", &|| here().len() == 4);
    let pid = Pid::from_raw(srun.id().cast_signed()).expect("it runs");
    kill_process(pid, Signal::TERM).expect("it is ours");
    srun.wait_with_output().expect("it ends");
    wait("no rank is left", &|| here().iter().all(|pid| !Path::new("/proc").join(pid).exists()));
}
