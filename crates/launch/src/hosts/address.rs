//! Names and addresses of this host, as the others of the job know it.

use super::protocol::name;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::{host_name, own_hosts};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// By which name this host is called in lines and reports.
pub(super) fn own_name() -> String {
    let id = std::env::var("PHALANX_HOST_ID").ok().filter(|id| !id.is_empty());
    name(&id.or_else(host_name).unwrap_or_default())
}

/// Where the leader listens, and at which of its addresses ranks of this host and of others reach it, for a rendezvous at `host:port`.
///
/// Many systems give their own name a loopback address: nobody else reaches that, so all addresses are listened at then.
pub(super) fn own_address(rendezvous: &str) -> Result<(SocketAddr, IpAddr)> {
    let (host, port) = split(rendezvous)?;
    let found: Vec<IpAddr> = match (host.as_str(), port).to_socket_addrs() {
        Ok(found) => found.map(|addr| addr.ip()).collect(),
        Err(error) => {
            return Err(Error::io(
                format!("resolving {host}, where this launcher is to lead the job"),
                error,
            ));
        }
    };
    let is_own = |ip: &&IpAddr| UdpSocket::bind((**ip, 0)).is_ok();
    let is_meant = host == "localhost" || host.parse::<IpAddr>().is_ok();
    let own = found.iter().filter(is_own).find(|ip| is_meant || !ip.is_loopback());
    if let Some(&ip) = own.filter(|ip| !ip.is_unspecified()) {
        return Ok((SocketAddr::new(ip, port), ip));
    }
    let Some(known) = found.iter().find(is_own) else {
        let doing = format!(
            "node 0 is to lead the job at {rendezvous}, which is no address of its host (give this host --node-rank 0, or another address with --rendezvous)"
        );
        return Err(Error::io(doing, ErrorKind::AddrNotAvailable.into()));
    };
    let any: IpAddr =
        if known.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let same_family = |ip: &IpAddr| ip.is_ipv4() == known.is_ipv4();
    let reached = own_hosts(&[host]).into_iter().find(same_family).unwrap_or(*known);
    Ok((SocketAddr::new(any, port), reached))
}

/// Any port, at the address of this host that others will most likely reach.
pub(super) fn own_rendezvous() -> String {
    let names: Vec<String> = host_name().into_iter().collect();
    let ip = own_hosts(&names).first().copied().unwrap_or_else(phalanx_transport::loopback);
    SocketAddr::new(ip, 0).to_string()
}

/// Host and port of `host:port`, where an IPv6 address is written in brackets.
pub(super) fn split(rendezvous: &str) -> Result<(String, u16)> {
    let bad = || {
        Error::config(format!("--rendezvous is {rendezvous:?}, not host:port of the host with node rank 0"))
    };
    let (host, port) = rendezvous.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().map_err(|_| bad())?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.is_empty() || (bare.is_none() && host.contains([':', '[', ']', '/', ' '])) {
        return Err(bad());
    }
    Ok((bare.unwrap_or(host).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendezvous_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("node-1:29500", "node-1", 29500),
            ("[fd00::7]:1", "fd00::7", 1),
            ("10.0.0.7:80", "10.0.0.7", 80),
        ] {
            assert_eq!(split(text).unwrap(), (host.to_owned(), port));
        }
        for text in ["", "a", "a:", ":1", "a:65536", "fd00::7:1", "tcp://a:1"] {
            assert!(split(text).unwrap_err().to_string().contains("--rendezvous"), "{text}");
        }
    }

    #[test]
    fn the_leader_listens_where_it_is_told_to() {
        let (bind, leader) = own_address("127.0.0.1:29500").unwrap();
        assert_eq!((bind, leader), ("127.0.0.1:29500".parse().unwrap(), IpAddr::from([127, 0, 0, 1])));
        let elsewhere = own_address("192.0.2.7:29500").unwrap_err().to_string();
        assert!(elsewhere.contains("no address of its host"), "{elsewhere}");
    }
}
