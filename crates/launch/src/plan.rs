//! From what was asked for to a table of processes and their environments; pure.

use phalanx_core::{Error, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Most ranks on one host. Far more than any host has use for; it stops a typing mistake from filling the process table.
pub const RANKS_MAX: usize = 1024;

/// Longest job id, in bytes: it is a folder's name.
const JOB_ID_LEN_MAX: usize = 64;

/// The thread counts: variables of a plan that a user may set otherwise.
const THREAD_COUNTS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Where ranks write what they did lately: beside their logs, unless the user says otherwise.
const TRACE_DIR: &str = "PHALANX_TRACE_DIR";

/// What the ranks find on this host.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// Where the job's store listens.
    pub(crate) store: SocketAddr,
    /// A port that was free, for software other than phalanx.
    pub(crate) master_port: u16,
    /// Cores this process may use.
    pub(crate) cores: usize,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankPlan {
    pub(crate) rank: usize,
    /// Everything the launcher sets, except the secret.
    pub(crate) env: BTreeMap<&'static str, String>,
    /// Folder for its `stdout.log` and `stderr.log`.
    pub(crate) logs: Option<PathBuf>,
}

/// The processes of a job of `ranks` ranks on one host.
///
/// `is_set` tells whether the user has given a variable a value, in the launcher's environment or for this job.
pub(crate) fn plan(
    ranks: usize,
    job_id: &str,
    log_dir: Option<&Path>,
    site: &Site,
    is_set: impl Fn(&str) -> bool,
) -> Vec<RankPlan> {
    let attempt = log_dir.map(|dir| dir.join(job_id).join("attempt_0"));
    let threads = (site.cores / ranks.max(1)).max(1).to_string();
    let process = |rank: usize| {
        let (index, count) = (rank.to_string(), ranks.to_string());
        let mut env = BTreeMap::from([
            ("PHALANX_RANK", index.clone()),
            ("PHALANX_WORLD_SIZE", count.clone()),
            ("PHALANX_LOCAL_RANK", index.clone()),
            ("PHALANX_LOCAL_WORLD_SIZE", count.clone()),
            ("PHALANX_NODE_RANK", "0".to_owned()),
            ("PHALANX_JOB_ID", job_id.to_owned()),
            ("PHALANX_STORE", format!("tcp://{}", site.store)),
            ("RANK", index.clone()),
            ("WORLD_SIZE", count.clone()),
            ("LOCAL_RANK", index.clone()),
            ("LOCAL_WORLD_SIZE", count),
            ("GROUP_RANK", "0".to_owned()),
            ("MASTER_ADDR", site.store.ip().to_string()),
            ("MASTER_PORT", site.master_port.to_string()),
            ("TORCHELASTIC_RUN_ID", job_id.to_owned()),
        ]);
        env.extend(
            THREAD_COUNTS.into_iter().filter(|name| !is_set(name)).map(|name| (name, threads.clone())),
        );
        if let Some(folder) = attempt.as_ref().filter(|_| !is_set(TRACE_DIR)) {
            env.insert(TRACE_DIR, folder.display().to_string());
        }
        RankPlan { rank, env, logs: attempt.as_ref().map(|folder| folder.join(index)) }
    };
    (0..ranks).map(process).collect()
}

/// Checks what [`plan`] takes for granted: the number of ranks, the job's id, the names of the user's own variables.
pub(crate) fn check<'a>(ranks: usize, job_id: &str, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    if !(1..=RANKS_MAX).contains(&ranks) {
        return Err(Error::config(format!("a job has 1 to {RANKS_MAX} ranks on a host, not {ranks}")));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !(1..=JOB_ID_LEN_MAX).contains(&job_id.len()) || job_id.starts_with('.') || !job_id.chars().all(plain)
    {
        return Err(Error::config(format!(
            "job id {job_id:?}: 1 to {JOB_ID_LEN_MAX} letters, digits, `_`, `-`, or `.` (not first), please"
        )));
    }
    for name in names {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::config(format!("{name:?} cannot be the name of an environment variable")));
        }
        if is_ours(name) {
            return Err(Error::config(format!(
                "{name} is set by the launcher for each rank; it cannot be chosen"
            )));
        }
    }
    Ok(())
}

/// Whether the launcher itself gives the variable a value, whatever the user says.
fn is_ours(name: &str) -> bool {
    const SECRET: [&str; 2] = ["PHALANX_SECRET", "PHALANX_SECRET_FILE"];
    let site = Site { store: SocketAddr::from(([0; 4], 0)), master_port: 0, cores: 1 };
    SECRET.contains(&name) || plan(1, "", None, &site, |_| true)[0].env.contains_key(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(cores: usize) -> Site {
        Site { store: SocketAddr::from(([127, 0, 0, 1], 40001)), master_port: 40002, cores }
    }

    #[test]
    fn the_table_of_a_job() {
        let table = plan(2, "job7", Some(Path::new("logs")), &site(8), |_| false);
        insta::assert_debug_snapshot!(table);
    }

    #[test]
    fn cores_are_shared_out_and_nobody_gets_none() {
        for (cores, ranks, each) in [(8, 2, "4"), (8, 3, "2"), (8, 8, "1"), (2, 5, "1"), (1, 1, "1")] {
            for rank in plan(ranks, "j", None, &site(cores), |_| false) {
                assert_eq!(rank.env["OMP_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
                assert_eq!(rank.env["RAYON_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
            }
        }
    }

    #[test]
    fn the_users_thread_counts_stay() {
        let rank = &plan(1, "j", None, &site(8), |name| name == "OMP_NUM_THREADS")[0];
        assert_eq!(rank.env.get("OMP_NUM_THREADS"), None);
        assert_eq!(rank.env["RAYON_NUM_THREADS"], "8");
    }

    #[test]
    fn traces_lie_beside_the_logs_or_where_the_user_wants_them() {
        let trace_dir = |logs: Option<&str>, is_set: bool| {
            plan(1, "j", logs.map(Path::new), &site(1), |_| is_set)[0].env.get(TRACE_DIR).cloned()
        };
        assert_eq!(trace_dir(Some("logs"), false).as_deref(), Some("logs/j/attempt_0"));
        assert_eq!((trace_dir(Some("logs"), true), trace_dir(None, false)), (None, None));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let refusal = |ranks, id: &str, name: &str| match check(ranks, id, [name]) {
            Ok(()) => "fine".to_owned(),
            Err(error) => error.to_string(),
        };
        let long = "x".repeat(65);
        assert_eq!(refusal(RANKS_MAX, "a-B_9.z", "OMP_NUM_THREADS"), "fine");
        for (ranks, id, name, word) in [
            (0, "j", "A", "not 0"),
            (RANKS_MAX + 1, "j", "A", "not 1025"),
            (1, "", "A", "job id"),
            (1, "../up", "A", "job id"),
            (1, "a/b", "A", "job id"),
            (1, &long, "A", "job id"),
            (1, "j", "", "name of an environment"),
            (1, "j", "A=B", "name of an environment"),
            (1, "j", "RANK", "set by the launcher"),
            (1, "j", "PHALANX_SECRET", "set by the launcher"),
        ] {
            assert!(
                refusal(ranks, id, name).contains(word),
                "{ranks} {id:?} {name:?}: {}",
                refusal(ranks, id, name)
            );
        }
    }
}
