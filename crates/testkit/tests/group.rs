//! Every backend passes the same suite.

use phalanx_testkit::World;

mod thread {
    phalanx_testkit::group_conformance!(super::World::thread());
}

mod tcp {
    phalanx_testkit::group_conformance!(super::World::tcp());
}

#[cfg(target_os = "linux")]
mod shm {
    phalanx_testkit::group_conformance!(super::World::shm());
}

/// Equal hosts: pairs of ranks, and one that is alone in worlds of odd size.
#[cfg(target_os = "linux")]
mod hosts_of_two {
    phalanx_testkit::group_conformance!(super::World::hosts(2));
}

/// Unlike hosts in most worlds.
#[cfg(target_os = "linux")]
mod hosts_of_three {
    phalanx_testkit::group_conformance!(super::World::hosts(3));
}

/// The other address family differs in how links are made, not in what goes over them.
#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn ipv6_works() {
    let loopback = std::net::Ipv6Addr::LOCALHOST;
    if let Err(error) = std::net::TcpListener::bind((loopback, 0)) {
        return println!("skipped: no {loopback} here: {error}");
    }
    phalanx_testkit::conformance::group::movements::movements_of_every_kind(&World::tcp_on(loopback.into()));
}
