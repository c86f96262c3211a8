//! What the launcher gives its ranks is enough for them to find each other. This program starts itself as the ranks.

use phalanx_core::Deadline;
use phalanx_launch::{Launch, Outcome};
use phalanx_rendezvous::{Config, Source};
use std::time::{Duration, Instant};

/// Set in the ranks only.
const I_AM_A_RANK: &str = "MEETING_RANK";

#[test]
fn ranks_meet_in_the_launchers_store() {
    if std::env::var_os(I_AM_A_RANK).is_some() {
        return meet();
    }
    let logs = tempfile::tempdir().unwrap();
    let outcome = Launch::new(std::env::current_exe().unwrap())
        .args(["--exact", "ranks_meet_in_the_launchers_store"])
        .env(I_AM_A_RANK, "yes")
        .ranks(3)
        .job_id("meeting")
        .log_dir(logs.path())
        .timeout(Some(Duration::from_secs(60)))
        .output(std::io::sink(), std::io::sink())
        .run()
        .unwrap();
    assert_eq!(outcome, Outcome::Success, "{outcome}");
    for rank in 0..3 {
        let log = logs.path().join(format!("meeting/attempt_0/{rank}/stdout.log"));
        assert!(std::fs::read_to_string(log).unwrap().contains("1 passed"), "rank {rank} did something else");
    }
}

/// Leaves a message for the others and waits for theirs.
fn meet() {
    let config = Config::from_env().unwrap();
    assert_eq!((config.source, config.world_size, config.job_id.as_str()), (Source::Phalanx, 3, "meeting"));
    assert_eq!((config.local_rank, config.local_world_size, config.node_rank), (config.rank, 3, 0));
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
    let open = config.open_store(&deadline).unwrap();
    assert!(open.server.is_none(), "the launcher hosts the store");
    open.store.set(&format!("from {}", config.rank), &[config.rank as u8]).unwrap();
    for peer in 0..3 {
        assert_eq!(open.store.get(&format!("from {peer}"), &deadline).unwrap(), [peer]);
    }
}
