//! The name of this host, and by which addresses the other hosts of a job may reach it.

use crate::meeting::HOSTS_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

/// Addresses that no host has: the route there is that to everywhere.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// Addresses of this host: those of its `names`, of which some may be unknown, then those from which it reaches the rest of the world. Of one
/// family, as one server listens for all. Last comes the loopback address, for processes that share the host without a network.
///
/// # Examples
/// ```
/// assert!(phalanx_rendezvous::own_hosts(&["localhost".into()]).last().unwrap().is_loopback());
/// ```
pub fn own_hosts(names: &[String]) -> Vec<IpAddr> {
    let resolved = names.iter().filter_map(|name| (name.as_str(), 0).to_socket_addrs().ok()).flatten();
    let routed = FAR_AWAY.into_iter().filter_map(source_towards);
    chosen(resolved.map(|addr| addr.ip()).filter(|ip| is_own(*ip)).chain(routed))
}

/// The name that the system has for this host, if it has one.
///
/// # Examples
/// ```
/// let host = phalanx_rendezvous::host_name().unwrap_or("a host".into());
/// println!("rank 0 runs on {host}");
/// ```
pub fn host_name() -> Option<String> {
    #[cfg(unix)]
    return Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
    #[cfg(not(unix))]
    std::env::var("COMPUTERNAME").ok()
}

fn chosen(found: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for ip in found.filter(|ip| !ip.is_loopback() && !ip.is_unspecified()) {
        let is_of_one_family = all.first().is_none_or(|first| first.is_ipv4() == ip.is_ipv4());
        if is_of_one_family && !all.contains(&ip) && all.len() < HOSTS_MAX - 1 {
            all.push(ip);
        }
    }
    all.push(match all.first() {
        Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        Some(IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
        None => phalanx_transport::loopback(),
    });
    all
}

/// The address that packets to there would have as their source. Nothing is sent.
fn source_towards(there: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((there, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_reach_come_first_and_are_of_one_family() {
        let ips = |text: &str| text.split_whitespace().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (found, all) in [
            ("127.0.1.1 10.0.0.7 ::1 fd00::7 10.0.0.7 10.0.0.8", "10.0.0.7 10.0.0.8 127.0.0.1"),
            ("fd00::7 10.0.0.7", "fd00::7 ::1"),
            ("0.0.0.0", "127.0.0.1"),
        ] {
            assert_eq!(chosen(ips(found).into_iter()), ips(all), "{found}");
        }
        let many: Vec<IpAddr> = (1..20).map(|n| Ipv4Addr::new(10, 0, 0, n).into()).collect();
        assert_eq!(chosen(many.into_iter()).len(), HOSTS_MAX);
    }

    #[test]
    fn all_are_of_this_host() {
        let found = own_hosts(&["localhost".into(), "no.such.host.invalid".into(), "192.0.2.77".into()]);
        assert!(found.iter().all(|ip| is_own(*ip)), "{found:?}");
        assert!(found.last().unwrap().is_loopback());
    }
}
