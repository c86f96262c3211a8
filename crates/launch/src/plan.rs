//! The plan of a job: a table of processes and their environments; pure.

use phalanx_core::{Error, Result};
use phalanx_rendezvous::Elastic;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Most ranks on one host. Far more than any host has use for; it stops a typing mistake from filling the process table.
pub const RANKS_MAX: usize = 1024;

/// Longest job id, in bytes: it is a folder's name.
const JOB_ID_LEN_MAX: usize = 64;

/// The thread counts: variables of a plan that a user may set otherwise.
const THREAD_COUNTS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// The folder for the ranks' traces: beside their logs, unless the user says otherwise.
const TRACE_DIR: &str = "PHALANX_TRACE_DIR";

/// Which variable tells a process of an elastic job its number: a replacement has one that nobody had before.
pub(crate) const WORKER: &str = "PHALANX_WORKER";
const ELASTIC: &str = "PHALANX_ELASTIC";

/// The variables that another launcher, of whose job this process is a rank, may have set, and that do not hold in the job within. A folder
/// for traces is the user's word to a process that is no rank; from a rank's, the ranks within would write over the traces of those without.
pub(crate) fn not_inherited(is_rank: bool) -> Vec<&'static str> {
    let mut names =
        vec![ELASTIC, WORKER, "PHALANX_ALONE", "PHALANX_SECRET_FILE", "TORCHELASTIC_USE_AGENT_STORE"];
    names.extend(is_rank.then_some(TRACE_DIR));
    names
}

/// The host on which the ranks run.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The address of the job's store.
    pub(crate) store: SocketAddr,
    /// The address at which the launcher listens to its ranks.
    pub(crate) lifeline: SocketAddr,
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

/// The order of the user.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) ranks: usize,
    pub(crate) job_id: String,
    pub(crate) log_dir: Option<PathBuf>,
    /// How often the job is restarted, or how many processes are replaced.
    pub(crate) max_restarts: usize,
    pub(crate) elastic: Option<Elastic>,
}

/// The processes of a job on one host, which are started for the `attempt`th time after the first.
///
/// `is_set` tells whether the user has given a variable a value, in the launcher's environment or for this job.
pub(crate) fn plan(
    order: &Order,
    attempt: usize,
    site: &Site,
    is_set: impl Fn(&str) -> bool,
) -> Vec<RankPlan> {
    let Order { ranks, job_id, log_dir, max_restarts, elastic } = order;
    let ranks = *ranks;
    let folder = |attempt: usize| Some(log_dir.as_ref()?.join(job_id).join(format!("attempt_{attempt}")));
    let logs = folder(attempt);
    // Ranks of one group write into one folder, whenever they were started.
    let traces = if elastic.is_some() { folder(0) } else { folder(attempt) };
    let threads = (site.cores / ranks.max(1)).max(1).to_string();
    let process = |rank: usize| {
        let (index, count) = (rank.to_string(), ranks.to_string());
        let mut env = BTreeMap::from([
            ("PHALANX_RANK", index.clone()),
            ("PHALANX_WORLD_SIZE", count.clone()),
            ("PHALANX_LOCAL_RANK", index.clone()),
            ("PHALANX_LOCAL_WORLD_SIZE", count.clone()),
            ("PHALANX_NODE_RANK", "0".to_owned()),
            ("PHALANX_JOB_ID", job_id.clone()),
            ("PHALANX_RESTART_COUNT", attempt.to_string()),
            ("PHALANX_STORE", format!("tcp://{}", site.store)),
            ("PHALANX_LIFELINE", site.lifeline.to_string()),
            ("RANK", index.clone()),
            ("WORLD_SIZE", count.clone()),
            ("LOCAL_RANK", index.clone()),
            ("LOCAL_WORLD_SIZE", count),
            ("GROUP_RANK", "0".to_owned()),
            ("MASTER_ADDR", site.store.ip().to_string()),
            ("MASTER_PORT", site.master_port.to_string()),
            ("TORCHELASTIC_RUN_ID", job_id.clone()),
            ("TORCHELASTIC_RESTART_COUNT", attempt.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", max_restarts.to_string()),
        ]);
        if let Some(elastic) = elastic {
            env.insert(ELASTIC, elastic.to_string());
            env.insert(WORKER, rank.to_string());
        }
        env.extend(
            THREAD_COUNTS.into_iter().filter(|name| !is_set(name)).map(|name| (name, threads.clone())),
        );
        if let Some(folder) = traces.as_ref().filter(|_| !is_set(TRACE_DIR)) {
            env.insert(TRACE_DIR, folder.display().to_string());
        }
        RankPlan { rank, env, logs: logs.as_ref().map(|folder| folder.join(index)) }
    };
    (0..ranks).map(process).collect()
}

/// Checks what [`plan`] takes for granted: the number of ranks, the job's id, the names of the user's own variables.
pub(crate) fn check<'a>(ranks: usize, job_id: &str, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    if !(1..=RANKS_MAX).contains(&ranks) {
        return Err(Error::config(format!(
            "the number of ranks (-n, --ranks): a job has 1 to {RANKS_MAX} ranks, not {ranks}"
        )));
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
    const MORE: [&str; 4] = ["PHALANX_SECRET", "PHALANX_SECRET_FILE", ELASTIC, WORKER];
    let nowhere = SocketAddr::from(([0; 4], 0));
    let site = Site { store: nowhere, lifeline: nowhere, master_port: 0, cores: 1 };
    let order = Order { ranks: 1, job_id: String::new(), log_dir: None, max_restarts: 0, elastic: None };
    MORE.contains(&name) || plan(&order, 0, &site, |_| true)[0].env.contains_key(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn site(cores: usize) -> Site {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Site { store: local(40001), lifeline: local(40003), master_port: 40002, cores }
    }

    fn order(ranks: usize, log_dir: Option<&str>) -> Order {
        let log_dir = log_dir.map(PathBuf::from);
        Order { ranks, job_id: "job7".into(), log_dir, max_restarts: 3, elastic: None }
    }

    #[test]
    fn the_table_of_a_job() {
        let table = plan(&order(2, Some("logs")), 0, &site(8), |_| false);
        insta::assert_debug_snapshot!(table);
    }

    #[test]
    fn attempts_have_folders_of_their_own_but_traces_of_one_group_lie_together() {
        let rank = |order: &Order| plan(order, 2, &site(8), |_| false).remove(1);
        let restarted = rank(&order(2, Some("logs")));
        assert_eq!(restarted.logs.as_deref(), Some(Path::new("logs/job7/attempt_2/1")));
        assert_eq!(restarted.env[TRACE_DIR], "logs/job7/attempt_2");
        for (name, value) in [
            ("PHALANX_RESTART_COUNT", "2"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
        ] {
            assert_eq!(restarted.env[name], value);
        }
        assert!(!restarted.env.contains_key(WORKER));
        let replaced = rank(&Order { elastic: Elastic::new(1, 2).ok(), ..order(2, Some("logs")) });
        assert_eq!(replaced.logs.as_deref(), Some(Path::new("logs/job7/attempt_2/1")));
        assert_eq!(replaced.env[TRACE_DIR], "logs/job7/attempt_0");
        assert_eq!((replaced.env[ELASTIC].as_str(), replaced.env[WORKER].as_str()), ("1:2", "1"));
    }

    #[test]
    fn cores_are_shared_out_and_nobody_gets_none() {
        for (cores, ranks, each) in [(8, 2, "4"), (8, 3, "2"), (8, 8, "1"), (2, 5, "1"), (1, 1, "1")] {
            for rank in plan(&order(ranks, None), 0, &site(cores), |_| false) {
                assert_eq!(rank.env["OMP_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
                assert_eq!(rank.env["RAYON_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
            }
        }
    }

    #[test]
    fn the_users_thread_counts_stay() {
        let rank = &plan(&order(1, None), 0, &site(8), |name| name == "OMP_NUM_THREADS")[0];
        assert_eq!(rank.env.get("OMP_NUM_THREADS"), None);
        assert_eq!(rank.env["RAYON_NUM_THREADS"], "8");
    }

    #[test]
    fn traces_lie_beside_the_logs_or_where_the_user_wants_them() {
        let trace_dir = |logs: Option<&str>, is_set: bool| {
            plan(&order(1, logs), 0, &site(1), |_| is_set)[0].env.get(TRACE_DIR).cloned()
        };
        assert_eq!(trace_dir(Some("logs"), false).as_deref(), Some("logs/job7/attempt_0"));
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
            (1, "j", "PHALANX_WORKER", "set by the launcher"),
        ] {
            assert!(
                refusal(ranks, id, name).contains(word),
                "{ranks} {id:?} {name:?}: {}",
                refusal(ranks, id, name)
            );
        }
    }
}
