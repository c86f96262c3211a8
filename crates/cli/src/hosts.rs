//! This host among those of a job.

use crate::cli::Hosts;
use phalanx_core::{Deadline, Error, Result};
use phalanx_launch::{
    Asking, Node, RemoteHost, StepSecret, ThisHost, TimeLimits, host_name, read_secret, refuse_foreign_job,
    secret_of_environment,
};
use std::net::{ToSocketAddrs, UdpSocket};
use std::time::Instant;

/// What another launcher says of this host, if there is one.
pub(crate) fn of_environment() -> Result<Option<ThisHost>> {
    ThisHost::from_lookup(|name| std::env::var(name).ok())
}

/// A host of a job over several, and what its launchers share: to be kept as long as the job runs.
pub(crate) type Member = (Node, Option<StepSecret>);

/// The host that the flags speak of, and where they don't, the environment; `None`: the job has no other.
pub(crate) fn node(flags: Hosts, here: Option<&ThisHost>) -> Result<Option<Member>> {
    let Hosts { nnodes, node_rank, rendezvous, secret_file, .. } = flags;
    let lookup = |name: &str| std::env::var(name).ok();
    let refuse = || refuse_foreign_job(Asking::Launcher, lookup);
    let rank = node_rank.or_else(|| here?.rank);
    let rendezvous_set = rendezvous.is_some();
    let rendezvous = rendezvous.or_else(|| here?.rendezvous.clone());
    let count = nnodes.or_else(|| here?.count);
    match nnodes {
        Some(1) if node_rank.is_none_or(|rank| rank == 0) => return Ok(None),
        Some(_) => {}
        None if here.is_none() => {
            refuse()?;
            let alone = node_rank.is_none() && !rendezvous_set;
            return if alone { Ok(None) } else { Err(missing("--nnodes, the number of hosts")) };
        }
        // Which variables were seen, and what they lack.
        None if rank.is_none() || rendezvous.is_none() || count.is_none() => return refuse().map(|()| None),
        None => {}
    }
    let count = count.ok_or_else(|| missing("--nnodes, the number of hosts"))?;
    let rank = rank.ok_or_else(|| missing("--node-rank, the number of this one"))?;
    let rendezvous =
        rendezvous.ok_or_else(|| missing("--rendezvous, where the command of node rank 0 listens"))?;
    let set = match secret_file {
        Some(file) => Some(read_secret(&file)?),
        None => secret_of_environment(lookup)?,
    };
    let shared = match (&set, here) {
        (None, Some(_)) => {
            let limit = TimeLimits::from_lookup(lookup)?.init_timeout;
            StepSecret::share(lookup, rank, &Deadline::after(Instant::now(), limit))?
        }
        _ => None,
    };
    let Some(secret) = set.or_else(|| Some(shared.as_ref()?.secret().clone())) else {
        if nnodes.is_none() {
            refuse()?;
        }
        return Err(missing(
            "--secret-file, by which they know each other (or PHALANX_SECRET_FILE, or PHALANX_SECRET)",
        ));
    };
    Ok(Some((Node::new(rank, count, rendezvous, secret)?, shared)))
}

/// The hosts of a list, of which the first is this one: how many ranks it has, and the others. `None`: there is no list.
pub(crate) fn listed(flags: &Hosts, ranks: Option<usize>) -> Result<Option<(usize, Vec<RemoteHost>)>> {
    let words = match &flags.hostfile {
        None if flags.hosts.is_empty() => return Ok(None),
        None => flags.hosts.clone(),
        Some(file) => {
            let text = std::fs::read_to_string(file);
            lines(&text.map_err(|error| Error::config(format!("--hostfile {}: {error}", file.display())))?)
        }
    };
    let hosts: Vec<RemoteHost> = words.iter().map(|word| host(word, ranks)).collect::<Result<_>>()?;
    let Some((first, others)) = hosts.split_first() else {
        return Err(Error::config("the list of hosts is empty"));
    };
    if !is_this_host(&first.name) {
        return Err(Error::config(format!(
            "the first of the hosts, {}, is not this one, from which the job is led: begin the list with localhost:N",
            first.name
        )));
    }
    Ok(Some((first.ranks, others.to_vec())))
}

/// The hosts of a file: what is behind `#` is a remark.
fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| line.replace(" slots=", ":")).collect()
}

/// `HOST` or `HOST:N`.
fn host(word: &str, ranks: Option<usize>) -> Result<RemoteHost> {
    let bad = |why| Error::config(format!("{word:?} in the list of hosts: {why}"));
    let (name, count) = match word.trim().rsplit_once(':') {
        None => {
            (word.trim(), ranks.ok_or_else(|| bad("how many ranks? HOST:N or -n with a number says so"))?)
        }
        Some((name, count)) => {
            (name.trim(), count.trim().parse().map_err(|_| bad("that is no number of ranks"))?)
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._@".contains(c);
    // What begins with a dash would be a flag of ssh.
    if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
        return Err(bad("that is no host"));
    }
    Ok(RemoteHost::new(name, count))
}

fn is_this_host(name: &str) -> bool {
    let own = host_name().unwrap_or_default();
    name == "localhost" || name == own || own.split('.').next() == Some(name) || is_own_address(name)
}

fn is_own_address(name: &str) -> bool {
    let found = (name, 0).to_socket_addrs();
    found.is_ok_and(|mut found| found.any(|addr| UdpSocket::bind((addr.ip(), 0)).is_ok()))
}

fn missing(what: &str) -> Error {
    Error::config(format!("a job over several hosts needs {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_read_as_other_launchers_write_them() {
        let text = "# the cluster\nlocalhost slots=2\n\nnode-b:4 # twice as fast\nuser@node-c\n";
        let hosts: Vec<_> = lines(text).iter().map(|word| host(word, Some(8)).unwrap()).collect();
        let all = [("localhost", 2), ("node-b", 4), ("user@node-c", 8)];
        assert_eq!(hosts, all.map(|(name, ranks)| RemoteHost::new(name, ranks)));
        for (word, why) in [
            ("b:x", "no number of ranks"),
            ("", "no host"),
            (":3", "no host"),
            ("-oProxyCommand=x", "no host"),
            ("b;rm", "no host"),
        ] {
            let error = host(word, Some(1)).unwrap_err().to_string();
            assert!(error.contains(why), "{word}: {error}");
        }
        assert!(host("b", None).unwrap_err().to_string().contains("how many ranks"));
    }
}
