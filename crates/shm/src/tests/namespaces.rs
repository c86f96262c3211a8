//! Ranks in containers that share the network and count processes apart: two of a pod.

use super::*;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// The rank, its segment, and a window.
const PART: &str = "PHALANX_SHM_TEST_PART";
const LEN: usize = 1 << 20;

/// Each is the first of its container: what is number 1 there is itself, for both.
#[test]
#[ignore = "this is what a rank in a container runs"]
fn rank() {
    let Ok(part) = std::env::var(PART) else { return };
    let [rank, file, memory] = part.split(' ').collect::<Vec<_>>()[..] else { panic!("{part}") };
    let open = |path: &str| File::options().read(true).write(true).open(path).unwrap();
    let (rank, mut wait_check) = (rank.parse().unwrap(), Patient(Duration::from_secs(30)));
    let signature = signature(OpKind::Init, 0);
    let mut call = Call { seq: 0, signature: &signature, wait_check: &mut wait_check };
    let team = Team::join(open(file), rank, 2, false, &mut call).unwrap();
    assert!(team.processes.is_empty() && !team.reads_memory, "they are nobody it knows");
    let mut rank = Rank { team, rank, world_size: 2, calls: 0 };
    let mut window = rank.team.window(open(memory), LEN).unwrap();
    rank.all_reduce_in(window.bytes_mut(), 0, None);
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn processes_of_other_containers_are_not_taken_for_others() {
    let contained = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", program]);
        command
    };
    if !contained("true").status().is_ok_and(|status| status.success()) {
        return println!("skipped: no namespaces here");
    }
    let files = [create(segment_len(2)).unwrap(), create(window_len(2, LEN).unwrap()).unwrap()];
    // Such as are inherited.
    let [file, memory] = files.map(|file| rustix::io::dup(file).unwrap());
    let path = |file: &OwnedFd| format!("/proc/self/fd/{}", file.as_raw_fd());
    let start = |rank| {
        let mut rank_in_container = contained(std::env::current_exe().unwrap().to_str().unwrap());
        rank_in_container.args(["--exact", "tests::namespaces::rank", "--ignored"]);
        rank_in_container.env(PART, format!("{rank} {} {}", path(&file), path(&memory)));
        rank_in_container.stdout(Stdio::piped()).spawn().unwrap()
    };
    for rank in [0, 1].map(start) {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        // Who finds no test of that name succeeds as well.
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
