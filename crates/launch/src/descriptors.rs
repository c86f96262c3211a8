//! How many descriptors (open files, pipes, connections) this process may have, and needs for its ranks.

use phalanx_core::Result;

/// Of a rank of this host: its stdout, its stderr, and what shows its end.
const OF_A_PROCESS: usize = 3;
/// Of a rank of any host, where the launcher leads: its connections to the store and to the lifeline.
const OF_CONNECTIONS: usize = 2;
/// Of a rank whose output is kept in files.
const OF_LOGS: usize = 2;
/// For all else that this process opens meanwhile.
#[cfg(unix)]
const SPARE: usize = 64;

/// Sees to it that the launcher which leads can have `ranks` ranks on so many hosts, `here` of them on its own.
///
/// # Errors
/// `Config`: the system does not allow it so many descriptors.
pub(crate) fn allow_to_lead(ranks: usize, hosts: usize, here: usize, has_logs: bool) -> Result<()> {
    let of_each = OF_CONNECTIONS + if has_logs { OF_LOGS } else { 0 };
    allow(hosts + ranks * of_each + here * OF_A_PROCESS, ranks)
}

/// As [`allow_to_lead`], for an agent with room for `places` ranks.
///
/// # Errors
/// As there.
pub(crate) fn allow_to_serve(places: usize) -> Result<()> {
    allow(places * OF_A_PROCESS, places)
}

/// Sees to it that this process may open `wanted` more descriptors for `ranks` ranks.
#[cfg(unix)]
fn allow(wanted: usize, ranks: usize) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let needed = open() + wanted + SPARE;
    let is_enough = |most: Option<u64>| most.is_none_or(|most| most >= needed as u64);
    if is_enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed as u64), ..limit };
    if is_enough(limit.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(too_few(needed, limit.maximum.unwrap_or(u64::MAX), ranks))
}

#[cfg(not(unix))]
fn allow(_wanted: usize, _ranks: usize) -> Result<()> {
    Ok(())
}

/// How many are open.
#[cfg(unix)]
fn open() -> usize {
    std::fs::read_dir("/dev/fd").map_or(SPARE, Iterator::count)
}

#[cfg(unix)]
fn too_few(needed: usize, allowed: u64, ranks: usize) -> phalanx_core::Error {
    phalanx_core::Error::config(format!(
        "the launcher needs {needed} descriptors (open files) for the {ranks} ranks of this job, and the system allows it {allowed}: raise the hard \
         limit (ulimit -Hn, \"nofile\" in limits.conf, LimitNOFILE= of a service), or start fewer ranks on this host"
    ))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_allowed_is_and_what_cannot_is_an_error_in_numbers() {
        use rustix::process::{Resource, getrlimit};
        let most = getrlimit(Resource::Nofile).maximum;
        if let Some(most) = most {
            let error = allow(usize::try_from(most).unwrap(), 7).unwrap_err().to_string();
            assert!(error.contains("7 ranks") && error.contains(&format!("allows it {most}")), "{error}");
            let wanted = usize::try_from(most).unwrap() - open() - 2 * SPARE;
            allow(wanted, 7).unwrap();
            assert!(getrlimit(Resource::Nofile).current.is_none_or(|now| now >= wanted as u64));
        }
        allow(1, 1).unwrap();
    }
}
