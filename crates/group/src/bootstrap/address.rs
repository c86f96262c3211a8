//! The address at which this rank listens, and the one at which the others reach it: the same, unless an address translation stands between.

use super::interface;
use crate::control::notice::Member;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::Config;
use phalanx_transport::loopback;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The address on which one rank listens, and the one that it tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The address at which it listens; port 0 is any free one.
    bind: SocketAddr,
    /// The address that the others use.
    ip: IpAddr,
    port: Option<u16>,
}

impl Address {
    /// From the configuration. `routed` is the address from which this host reaches the store: it will most likely be reached there by those who
    /// reach the store too.
    ///
    /// # Errors
    /// [`Error::Io`]: a name has no address. [`Error::Config`]: there are not so many ports, or no such interface.
    pub(crate) fn of(config: &Config, routed: Option<IpAddr>) -> Result<Self> {
        let told = config.advertise.as_deref().map(|host| resolve("PHALANX_HOST", host)).transpose()?;
        let interface =
            config.interface.as_deref().map(|names| interface::address(names, routed)).transpose()?;
        let listens = config.bind.as_deref().map(|host| resolve("PHALANX_BIND", host)).transpose()?;
        if let (Some(bind), Some(interface)) = (&config.bind, &config.interface) {
            return Err(Error::config(format!(
                "PHALANX_BIND={bind} and PHALANX_INTERFACE={interface} both say where to listen: unset one of them"
            )));
        }
        if let (Some(first), Some(last), Some(told)) = (config.port, config.port_last, config.advertise_port)
        {
            return Err(Error::config(format!(
                "PHALANX_PORT={first}-{last} lets each rank take any of these ports, and PHALANX_HOST tells the others port {told} for the first rank of \
                 this host: where ports are translated on the way, give PHALANX_PORT one port"
            )));
        }
        let usual = || routed.unwrap_or_else(loopback);
        let bind = listens.or(interface).or(told).unwrap_or_else(usual);
        let ip = told.unwrap_or_else(|| if bind.is_unspecified() { usual() } else { bind });
        let place = |name: &str, port: Option<u16>| match port {
            None => Ok(None),
            Some(first) => match first.checked_add(config.local_rank as u16) {
                Some(port) if config.local_rank <= usize::from(u16::MAX) => Ok(Some(port)),
                _ => Err(Error::config(format!(
                    "{name} is {first}: there is no port for local rank {}",
                    config.local_rank
                ))),
            },
        };
        let bind_port = match (config.port, config.port_last) {
            // Each rank begins elsewhere, so that they seldom get into each other's way.
            (Some(first), Some(last)) => {
                let ports = usize::from(last - first) + 1;
                first + (config.local_rank % ports) as u16
            }
            (port, _) => place("PHALANX_PORT", port)?.unwrap_or(0),
        };
        let port = place("the port of PHALANX_HOST", config.advertise_port)?;
        Ok(Self { bind: SocketAddr::new(bind, bind_port), ip, port })
    }

    /// The addresses to try to listen on, best first.
    pub(crate) fn binds(&self, config: &Config) -> Vec<SocketAddr> {
        let (Some(first), Some(last)) = (config.port, config.port_last) else { return vec![self.bind] };
        let all = (self.bind.port()..=last).chain(first..self.bind.port());
        all.map(|port| SocketAddr::new(self.bind.ip(), port)).collect()
    }

    /// The address that the others use, once this rank listens at `bound`.
    pub(crate) fn told(&self, bound: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(bound.port()))
    }

    /// The address that this process itself uses: the way out and back in again may not be open.
    pub(crate) fn own(bound: SocketAddr) -> SocketAddr {
        match bound.ip() {
            ip if !ip.is_unspecified() => bound,
            IpAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], bound.port())),
            IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, bound.port())),
        }
    }

    /// The error when the system refused to listen.
    pub(crate) fn refused(&self, config: &Config, error: Error) -> Error {
        let Error::Io { source, .. } = &error else { return error };
        match (source.kind(), &config.bind, &config.advertise) {
            (ErrorKind::AddrNotAvailable, Some(name), _) => Error::config(format!(
                "PHALANX_BIND={name} is no address of this host ({}): set it to one, or to 0.0.0.0 for all",
                self.bind.ip()
            )),
            (ErrorKind::AddrNotAvailable, None, Some(name)) => Error::config(format!(
                "PHALANX_HOST={name} is no address of this host ({}): set it to one at which the other ranks reach this host; where they reach it \
                 by an address that is translated on the way, set PHALANX_BIND to where to listen (0.0.0.0 for all addresses)",
                self.bind.ip()
            )),
            (ErrorKind::AddrInUse, ..) if config.port_last.is_some() => Error::config(format!(
                "the ports {} to {} of {} are all in use: give PHALANX_PORT more of them, at least one for each rank of this host",
                config.port.unwrap_or_default(),
                config.port_last.unwrap_or_default(),
                self.bind.ip()
            )),
            (ErrorKind::AddrInUse, ..) if config.port.is_some() => Error::config(format!(
                "port {} is in use: rank {} listens at PHALANX_PORT plus its local rank ({})",
                self.bind.port(),
                config.rank,
                config.local_rank
            )),
            _ => error,
        }
    }

    /// A rank that gave out a loopback address can't be reached from other hosts, and one that gave out another may be on one.
    ///
    /// # Errors
    /// [`Error::Config`] says who.
    pub(crate) fn check_reachable(&self, members: &[Member]) -> Result<()> {
        match members.iter().find(|member| member.addr.ip().is_loopback() && !self.ip.is_loopback()) {
            None => Ok(()),
            Some(Member { peer, addr, .. }) => Err(Error::config(format!(
                "{peer} can be reached at {addr} only from its own host; set PHALANX_HOST or PHALANX_INTERFACE there"
            ))),
        }
    }
}

fn resolve(variable: &str, host: &str) -> Result<IpAddr> {
    let addrs = (host, 0).to_socket_addrs();
    let mut addrs = addrs.map_err(|e| Error::io(format!("resolving {variable}={host}"), e))?;
    let first = addrs.next().ok_or_else(|| Error::config(format!("{variable}={host} has no address")))?;
    Ok(first.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Peer;

    fn config(variables: &str) -> Config {
        Config::from_lookup(|name| {
            let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(n, _)| *n == name).map(|(_, value)| value.to_owned()).next()
        })
        .unwrap()
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_told_is_what_is_bound_unless_something_else_is_said() {
        let routed = Some("192.0.2.7".parse().unwrap());
        for (variables, bind, told) in [
            ("", "192.0.2.7:0", "192.0.2.7:4000"),
            ("PHALANX_HOST=192.0.2.9", "192.0.2.9:0", "192.0.2.9:4000"),
            ("PHALANX_BIND=192.0.2.8", "192.0.2.8:0", "192.0.2.8:4000"),
            ("PHALANX_BIND=0.0.0.0", "0.0.0.0:0", "192.0.2.7:4000"),
            ("PHALANX_BIND=:: PHALANX_HOST=2001:db8::1", "[::]:0", "[2001:db8::1]:4000"),
            (
                "PHALANX_BIND=0.0.0.0 PHALANX_HOST=198.51.100.1:7000 PHALANX_PORT=6000",
                "0.0.0.0:6000",
                "198.51.100.1:7000",
            ),
            ("PHALANX_PORT=6000 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", "192.0.2.7:6000", "192.0.2.7:4000"),
        ] {
            let address = Address::of(&config(variables), routed).unwrap();
            assert_eq!(
                (address.bind, address.told(addr("127.0.0.1:4000"))),
                (addr(bind), addr(told)),
                "{variables}"
            );
        }
        assert_eq!(Address::of(&config(""), None).unwrap().bind, SocketAddr::new(loopback(), 0));
        assert_eq!(Address::own(addr("0.0.0.0:7")), addr("127.0.0.1:7"));
        assert_eq!(Address::own(addr("[::]:7")), addr("[::1]:7"));
        assert_eq!(Address::own(addr("192.0.2.7:7")), addr("192.0.2.7:7"));
    }

    #[test]
    fn each_rank_of_a_host_has_a_port_of_its_own() {
        let mut config = config("PHALANX_PORT=65534 PHALANX_HOST=192.0.2.7:7000");
        config.local_rank = 1;
        let address = Address::of(&config, None).unwrap();
        assert_eq!((address.bind.port(), address.told(addr("127.0.0.1:1")).port()), (65535, 7001));
        config.local_rank = 2;
        let error = Address::of(&config, None).unwrap_err().to_string();
        assert!(error.contains("PHALANX_PORT is 65534: there is no port for local rank 2"), "{error}");
    }

    #[test]
    fn of_several_ports_each_rank_begins_with_another() {
        let mut range = config("PHALANX_PORT=6000-6002");
        let mut ports = |local_rank| {
            range.local_rank = local_rank;
            let binds = Address::of(&range, None).unwrap().binds(&range);
            binds.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        assert_eq!(ports(0), [6000, 6001, 6002]);
        assert_eq!(ports(2), [6002, 6000, 6001]);
        assert_eq!(ports(4), [6001, 6002, 6000]);
        let both = config("PHALANX_PORT=6000-6002 PHALANX_HOST=192.0.2.7:7000");
        let error = Address::of(&both, None).unwrap_err().to_string();
        assert!(error.contains("PHALANX_PORT=6000-6002") && error.contains("port 7000"), "{error}");
    }

    #[test]
    fn an_interface_says_where_to_listen() {
        let lo = interface::address("lo", None).unwrap();
        let address =
            Address::of(&config("PHALANX_INTERFACE=lo"), Some("192.0.2.7".parse().unwrap())).unwrap();
        assert_eq!((address.bind.ip(), address.ip), (lo, lo));
        let address = Address::of(&config("PHALANX_INTERFACE=lo PHALANX_HOST=192.0.2.9"), None).unwrap();
        assert_eq!(
            (address.bind.ip(), address.ip),
            (lo, "192.0.2.9".parse().unwrap()),
            "translated on the way"
        );
        let both = Address::of(&config("PHALANX_INTERFACE=lo PHALANX_BIND=0.0.0.0"), None).unwrap_err();
        assert!(both.to_string().contains("unset one of them"), "{both}");
    }

    #[test]
    fn a_refusal_to_listen_says_what_to_set() {
        let refused = |variables: &str, kind: ErrorKind| {
            let config = config(variables);
            let address = Address::of(&config, None).unwrap();
            address.refused(&config, Error::io("listening", kind.into())).to_string()
        };
        let told = refused("PHALANX_HOST=192.0.2.7", ErrorKind::AddrNotAvailable);
        assert!(
            told.contains("PHALANX_HOST=192.0.2.7 is no address of this host")
                && told.contains("PHALANX_BIND")
        );
        let bound = refused("PHALANX_BIND=192.0.2.7", ErrorKind::AddrNotAvailable);
        assert!(bound.contains("PHALANX_BIND=192.0.2.7 is no address of this host"), "{bound}");
        let taken = refused("PHALANX_PORT=6000", ErrorKind::AddrInUse);
        assert!(taken.contains("port 6000 is in use") && taken.contains("PHALANX_PORT"), "{taken}");
        let taken = refused("PHALANX_PORT=6000-6001", ErrorKind::AddrInUse);
        assert!(taken.contains("ports 6000 to 6001") && taken.contains("PHALANX_PORT"), "{taken}");
        assert_eq!(
            refused("", ErrorKind::AddrInUse),
            Error::io("listening", ErrorKind::AddrInUse.into()).to_string()
        );
    }

    #[test]
    fn a_loopback_address_among_others_is_refused() {
        let members = |addrs: [&str; 2]| {
            let member = |(rank, text): (usize, &str)| Member {
                peer: Peer { rank, host: "h".into() },
                addr: SocketAddr::new(text.parse().unwrap(), 1),
                local: None,
            };
            addrs.into_iter().enumerate().map(member).collect::<Vec<_>>()
        };
        let (here, there) = ("127.0.0.1", "192.0.2.7");
        let check = |ip: &str, addrs| {
            let address = Address { bind: addr("0.0.0.0:0"), ip: ip.parse().unwrap(), port: None };
            address.check_reachable(&members(addrs))
        };
        assert!(check(here, [here, here]).is_ok() && check(there, [there, there]).is_ok());
        let error = check(there, [there, here]).unwrap_err().to_string();
        assert!(
            error.contains("rank 1") && error.contains("set PHALANX_HOST or PHALANX_INTERFACE there"),
            "{error}"
        );
    }
}
