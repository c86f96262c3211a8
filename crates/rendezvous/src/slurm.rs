//! Steps of Slurm: what their variables say of a task.

use crate::shared_file::SharedFile;
use phalanx_core::{Error, Result};
use std::path::PathBuf;

/// Slurm's numbers for steps that are no `srun`: the batch script, an interactive shell, and others.
const SPECIAL_STEPS: u64 = 0xffff_fff0;
/// The directory for files that all hosts of a job see.
pub(crate) const SHARED_DIR: &str = "PHALANX_SHARED_DIR";

/// The number of this task's step. The shell of a batch job has Slurm's variables too, and is one process.
pub(crate) fn step(set: &impl Fn(&str) -> Option<String>) -> Option<u64> {
    set("SLURM_STEP_ID")?.parse::<u64>().ok().filter(|step| *step < SPECIAL_STEPS)
}

/// This task among those on its host, and their number: hosts may have different numbers of tasks.
pub(crate) fn local(set: &impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let rank: usize = set("SLURM_LOCALID")?.parse().ok()?;
    let tasks = set("SLURM_STEP_TASKS_PER_NODE").or_else(|| set("SLURM_TASKS_PER_NODE"))?;
    let size = tasks_of_node(&tasks, set("SLURM_NODEID")?.parse().ok()?)?;
    (rank < size).then_some((rank, size))
}

/// The tasks of a node, counted from 0, of a list such as `2(x3),1`: three nodes with two tasks each, then one with one.
pub(crate) fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut before = 0usize;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.checked_add(nodes)?;
        if node < before {
            return tasks.parse().ok().filter(|tasks| *tasks > 0);
        }
    }
    None
}

/// The first host of a list such as `gpu[07-08,11],node3`.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let name = list.split(',').next()?;
    let host = match name.split_once('[') {
        None => name.to_owned(),
        Some((before, numbers)) => {
            let number = numbers.split(['-', ',', ']']).next()?;
            // Behind the brackets names may go on, which only some sites have.
            let after = list.split_once(']').map_or("", |(_, after)| after.split(',').next().unwrap_or(""));
            format!("{before}{number}{after}")
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!host.is_empty() && host.len() <= 255 && host.chars().all(plain)).then_some(host)
}

/// The file by which the tasks of a step can meet: its name is that of this step, of no other, and of no other try to run the job.
///
/// # Errors
/// [`Error::Config`]: there is no directory for it.
pub(crate) fn meeting_file(set: &impl Fn(&str) -> Option<String>) -> Result<Option<SharedFile>> {
    let number = |name: &str| set(name).and_then(|text| text.parse::<u64>().ok());
    let (Some(job), Some(step)) = (number("SLURM_JOB_ID"), step(set)) else { return Ok(None) };
    let cluster = set("SLURM_CLUSTER_NAME").unwrap_or_default();
    let cluster: String = cluster.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    let tries = number("SLURM_RESTART_COUNT").unwrap_or(0);
    let named = set(SHARED_DIR).map(PathBuf::from);
    let dir = named.or_else(|| Some(PathBuf::from(set("HOME")?).join(".phalanx")));
    let dir = dir.filter(|dir| dir.is_absolute()).ok_or_else(|| {
        Error::config(format!(
            "the processes of a step of Slurm without PMI meet by a file, and neither {SHARED_DIR} nor HOME is a full path: set {SHARED_DIR} to a \
             directory that all hosts see, or use srun --mpi=pmi2"
        ))
    })?;
    Ok(Some(SharedFile::new(dir, format!("slurm-{cluster}-{job}.{step}-{tries}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_may_have_different_numbers_of_tasks() {
        let all = |list: &str| (0..9).map_while(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(all("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(all("3,1"), [3, 1]);
        assert_eq!(all("4"), [4]);
        for nonsense in ["", ",", "(x3)", "2(x", "2(xx3)", "0", "a,1", "2(x99999999999999999999),1"] {
            assert_eq!(all(nonsense), [0; 0], "{nonsense}");
        }
        assert_eq!(tasks_of_node("1(x18446744073709551615),1(x2)", usize::MAX), None);
    }

    #[test]
    fn the_first_of_a_list_of_hosts() {
        for (list, first) in [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("gpu[07-08,11],n3", Some("gpu07")),
            ("rack[1-2]-ib", Some("rack1-ib")),
            ("a[3,7]", Some("a3")),
            ("", None),
            ("a b", None),
            ("a[1[2]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_are_written(tasks in prop::collection::vec((1usize..200, 1usize..50), 1..20)) {
            let list: Vec<_> = tasks.iter().map(|(tasks, nodes)| format!("{tasks}(x{nodes})")).collect();
            let list = list.join(",");
            let each: Vec<_> = tasks.iter().flat_map(|(tasks, nodes)| vec![*tasks; *nodes]).collect();
            for (node, tasks) in each.iter().enumerate() {
                prop_assert_eq!(tasks_of_node(&list, node), Some(*tasks));
            }
            prop_assert_eq!(tasks_of_node(&list, each.len()), None);
        }

        #[test]
        fn any_text_is_a_list_or_none(list in "[0-9(x),a ]{0,40}", node in any::<usize>()) {
            let _ = tasks_of_node(&list, node);
            let _ = first_host(&list);
        }
    }
}
