//! This host among those of a job.

use crate::cli::Hosts;
use phalanx_core::{Error, Result};
use phalanx_launch::{
    Asking, Node, RemoteHost, Secret, ThisHost, host_name, read_secret, refuse_foreign_job,
    secret_of_environment,
};
use std::net::{ToSocketAddrs, UdpSocket};

/// What another launcher says of this host, if there is one.
pub(crate) fn of_environment() -> Result<Option<ThisHost>> {
    ThisHost::from_lookup(|name| std::env::var(name).ok())
}

/// The host that the flags speak of, and where they don't, the environment; `None`: the job has no other.
pub(crate) fn node(flags: Hosts, here: Option<&ThisHost>) -> Result<Option<Node>> {
    let Hosts { nnodes, node_rank, rendezvous, secret_file, .. } = flags;
    let node_rank = node_rank.or_else(|| here?.rank);
    let rendezvous = rendezvous.or_else(|| here?.rendezvous.clone());
    if nnodes.is_none()
        && let Some(here) = here
    {
        let said = || Some((node_rank?, here.count?, rendezvous.clone()?));
        let secret = if secret_file.is_some() { Some(secret(secret_file)?) } else { secret_set()? };
        return match (said(), secret) {
            (Some((rank, count, rendezvous)), Some(secret)) => {
                Node::new(rank, count, rendezvous, secret).map(Some)
            }
            _ => refuse_foreign_job(Asking::Launcher, |name| std::env::var(name).ok()).map(|()| None),
        };
    }
    let Some(count) = nnodes else {
        refuse_foreign_job(Asking::Launcher, |name| std::env::var(name).ok())?;
        let alone = node_rank.is_none() && rendezvous.is_none();
        return if alone { Ok(None) } else { Err(missing("--nnodes, the number of hosts")) };
    };
    if count == 1 && node_rank.is_none_or(|rank| rank == 0) {
        return Ok(None);
    }
    let rank = node_rank.ok_or_else(|| missing("--node-rank, the number of this one"))?;
    let rendezvous =
        rendezvous.ok_or_else(|| missing("--rendezvous, where the command of node rank 0 listens"))?;
    Node::new(rank, count, rendezvous, secret(secret_file)?).map(Some)
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
        None => (word.trim(), ranks.ok_or_else(|| bad("how many ranks? HOST:N or -n N says so"))?),
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

fn secret(file: Option<String>) -> Result<Secret> {
    if let Some(file) = file {
        return read_secret(&file);
    }
    secret_set()?.ok_or_else(|| {
        missing("--secret-file, by which they know each other (or PHALANX_SECRET_FILE, or PHALANX_SECRET)")
    })
}

fn secret_set() -> Result<Option<Secret>> {
    secret_of_environment(|name| std::env::var(name).ok())
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
