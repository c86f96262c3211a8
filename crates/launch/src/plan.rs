//! The plan of a job: a table of processes and their environments; pure.

use crate::placement::{Host, Place};
use phalanx_core::{Error, Result};
use phalanx_rendezvous::Elastic;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Most ranks on one host. Far more than any host has use for; it stops a typing mistake from filling the process table.
pub const RANKS_MAX: usize = 1024;

/// Most ranks on all hosts of a job: each has two connections to the launcher that leads.
const WORLD_MAX: usize = 8 * RANKS_MAX;

/// Longest job id, in bytes: it is a folder's name.
const JOB_ID_LEN_MAX: usize = 64;

/// The thread counts: variables of a plan that a user may set otherwise.
const THREAD_COUNTS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Has glibc keep what a rank frees, instead of returning it to the system: a training step asks for the same memory again, and each new page costs a fault. Another
/// libc ignores it.
const MALLOC: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=67108864",
);

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

/// What the launcher has opened for one start of the job: ports of its own host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// Of the job's store.
    pub(crate) store: u16,
    /// Where the launcher listens to its ranks.
    pub(crate) lifeline: u16,
    /// One that was free, for software other than phalanx.
    pub(crate) master_port: u16,
    /// How many hosts the job has.
    pub(crate) hosts: usize,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankPlan {
    pub(crate) rank: usize,
    /// Everything the launcher sets, except the secret; some only [unless the user does](leaves_to_the_user).
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

/// Whether the launcher sets this variable only where the user has not.
pub(crate) fn leaves_to_the_user(name: &str) -> bool {
    name == TRACE_DIR || name == MALLOC.0 || THREAD_COUNTS.contains(&name)
}

/// The process of a rank at a place on this host, which is started for the `attempt`th time after the first.
pub(crate) fn plan(
    order: &Order,
    attempt: usize,
    site: &Site,
    rank: usize,
    (host, place): (&Host, Place),
) -> RankPlan {
    let Order { ranks, job_id, log_dir, max_restarts, elastic } = order;
    let folder = |attempt: usize| Some(log_dir.as_ref()?.join(job_id).join(format!("attempt_{attempt}")));
    // Ranks of one group write into one folder, whenever they were started.
    let traces = if elastic.is_some() { folder(0) } else { folder(attempt) };
    let local_ranks = host.places.min(*ranks).max(1);
    let threads = (host.cores / local_ranks).max(1).to_string();
    let (index, count) = (rank.to_string(), ranks.to_string());
    let (local_index, local_count) = (place.local.to_string(), local_ranks.to_string());
    let at = |port: u16| SocketAddr::new(host.leader, port).to_string();
    let mut env = BTreeMap::from([
        ("PHALANX_RANK", index.clone()),
        ("PHALANX_WORLD_SIZE", count.clone()),
        ("PHALANX_LOCAL_RANK", local_index.clone()),
        ("PHALANX_LOCAL_WORLD_SIZE", local_count.clone()),
        ("PHALANX_NODE_RANK", place.node.to_string()),
        ("PHALANX_JOB_ID", job_id.clone()),
        ("PHALANX_RESTART_COUNT", attempt.to_string()),
        ("PHALANX_STORE", format!("tcp://{}", at(site.store))),
        ("PHALANX_LIFELINE", at(site.lifeline)),
        ("RANK", index.clone()),
        ("WORLD_SIZE", count),
        ("LOCAL_RANK", local_index),
        ("LOCAL_WORLD_SIZE", local_count),
        ("GROUP_RANK", place.node.to_string()),
        ("GROUP_WORLD_SIZE", site.hosts.to_string()),
        ("MASTER_ADDR", host.leader.to_string()),
        ("MASTER_PORT", site.master_port.to_string()),
        ("TORCHELASTIC_RUN_ID", job_id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", max_restarts.to_string()),
    ]);
    if let Some(elastic) = elastic {
        env.insert(ELASTIC, elastic.to_string());
        env.insert(WORKER, rank.to_string());
    }
    env.extend(THREAD_COUNTS.map(|name| (name, threads.clone())));
    env.insert(MALLOC.0, MALLOC.1.to_owned());
    if let Some(folder) = traces {
        env.insert(TRACE_DIR, folder.display().to_string());
    }
    RankPlan { rank, env, logs: folder(attempt).map(|folder| folder.join(index)) }
}

/// Checks what [`plan`] takes for granted: the number of ranks, the job's id, the names of the user's own variables.
pub(crate) fn check<'a>(
    ranks: usize,
    hosts: usize,
    job_id: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let (most, on) = if hosts > 1 { (WORLD_MAX, " on its hosts") } else { (RANKS_MAX, "") };
    if !(1..=most).contains(&ranks) {
        return Err(Error::config(format!(
            "the number of ranks (-n, --ranks): a job has 1 to {most} ranks{on}, not {ranks}"
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
    let site = Site { store: 0, lifeline: 0, master_port: 0, hosts: 1 };
    let order = Order { ranks: 1, job_id: String::new(), log_dir: None, max_restarts: 0, elastic: None };
    let host = Host { name: String::new(), places: 1, cores: 1, leader: IpAddr::from([0; 4]) };
    let plan = plan(&order, 0, &site, 0, (&host, Place { node: 0, local: 0 }));
    MORE.contains(&name) || (plan.env.contains_key(name) && !leaves_to_the_user(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const SITE: Site = Site { store: 40001, lifeline: 40003, master_port: 40002, hosts: 1 };

    fn host(places: usize, cores: usize) -> Host {
        Host { name: "h".into(), places, cores, leader: IpAddr::from([127, 0, 0, 1]) }
    }

    /// All processes of a job on one host with so many cores.
    fn table(order: &Order, attempt: usize, cores: usize) -> Vec<RankPlan> {
        let host = host(order.ranks, cores);
        let process = |rank| plan(order, attempt, &SITE, rank, (&host, Place { node: 0, local: rank }));
        (0..order.ranks).map(process).collect()
    }

    fn order(ranks: usize, log_dir: Option<&str>) -> Order {
        let log_dir = log_dir.map(PathBuf::from);
        Order { ranks, job_id: "job7".into(), log_dir, max_restarts: 3, elastic: None }
    }

    #[test]
    fn the_table_of_a_job() {
        let table = table(&order(2, Some("logs")), 0, 8);
        insta::assert_debug_snapshot!(table);
    }

    #[test]
    fn attempts_have_folders_of_their_own_but_traces_of_one_group_lie_together() {
        let rank = |order: &Order| table(order, 2, 8).remove(1);
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
            for rank in table(&order(ranks, None), 0, cores) {
                assert_eq!(rank.env["OMP_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
                assert_eq!(rank.env["RAYON_NUM_THREADS"], each, "{cores} cores, {ranks} ranks");
            }
        }
    }

    #[test]
    fn thread_counts_and_traces_are_the_users_to_set() {
        let [logged, bare] = [Some("logs"), None].map(|logs| table(&order(1, logs), 0, 1).remove(0).env);
        let left: Vec<_> = logged.keys().filter(|name| leaves_to_the_user(name)).copied().collect();
        assert_eq!(left, ["GLIBC_TUNABLES", "OMP_NUM_THREADS", "PHALANX_TRACE_DIR", "RAYON_NUM_THREADS"]);
        assert_eq!(logged[TRACE_DIR], "logs/job7/attempt_0");
        assert!(!bare.contains_key(TRACE_DIR));
    }

    #[test]
    fn a_rank_knows_its_place_among_the_hosts() {
        let host = Host { leader: IpAddr::from([10, 0, 0, 7]), ..host(2, 8) };
        let site = Site { hosts: 3, ..SITE };
        let rank = plan(&order(5, None), 0, &site, 4, (&host, Place { node: 2, local: 1 }));
        for (name, value) in [
            ("PHALANX_RANK", "4"),
            ("WORLD_SIZE", "5"),
            ("LOCAL_RANK", "1"),
            ("PHALANX_LOCAL_WORLD_SIZE", "2"),
            ("PHALANX_NODE_RANK", "2"),
            ("GROUP_RANK", "2"),
            ("GROUP_WORLD_SIZE", "3"),
            ("PHALANX_STORE", "tcp://10.0.0.7:40001"),
            ("PHALANX_LIFELINE", "10.0.0.7:40003"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("OMP_NUM_THREADS", "4"),
        ] {
            assert_eq!(rank.env[name], value, "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let refusal = |ranks, id: &str, name: &str| match check(ranks, 1, id, [name]) {
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
