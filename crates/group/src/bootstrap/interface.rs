//! The address of a network interface of this host.

use if_addrs::{IfAddr, Interface};
use phalanx_core::{Error, Result};
use std::net::IpAddr;

/// The address of the first of these interfaces (names with commas between them) that has one: of the family in which this host reaches the
/// store, if it has both.
///
/// # Errors
/// [`Error::Io`]: the system does not tell its interfaces. [`Error::Config`]: none of them is here, or has an address; it names those that do.
pub(super) fn address(names: &str, routed: Option<IpAddr>) -> Result<IpAddr> {
    let all = if_addrs::get_if_addrs().map_err(|e| Error::io("asking for the interfaces of this host", e))?;
    chosen(names, routed, &all)
}

fn chosen(names: &str, routed: Option<IpAddr>, all: &[Interface]) -> Result<IpAddr> {
    let prefers_v6 = routed.is_some_and(|ip| ip.is_ipv6());
    for name in names.split(',').map(str::trim) {
        let of_it = all.iter().filter(|interface| interface.name == name && is_usable(interface));
        if let Some(found) = of_it.map(Interface::ip).min_by_key(|ip| ip.is_ipv6() != prefers_v6) {
            return Ok(found);
        }
    }
    let usable = all.iter().filter(|interface| is_usable(interface));
    let known: Vec<_> = usable.map(|interface| format!("{} ({})", interface.name, interface.ip())).collect();
    Err(Error::config(format!(
        "PHALANX_INTERFACE is {names:?}, and no such interface of this host has an address; those that have: {}",
        known.join(", ")
    )))
}

/// A link-local address of IPv6 means something only together with the interface, which other hosts don't know.
fn is_usable(interface: &Interface) -> bool {
    match &interface.addr {
        IfAddr::V4(_) => true,
        IfAddr::V6(addr) => !addr.ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_has_an_address_counts() {
        assert!(address("no such thing, lo", None).unwrap().is_loopback());
        let error = address("nothing0,nothing1", None).unwrap_err().to_string();
        assert!(error.contains("\"nothing0,nothing1\"") && error.contains("lo ("), "{error}");
    }
}
