//! Every backend passes the same suite.

use phalanx_testkit::World;

mod thread {
    phalanx_testkit::group_conformance!(super::World::thread());
}

mod tcp {
    phalanx_testkit::group_conformance!(super::World::tcp());
}

mod checked_tcp {
    phalanx_testkit::group_conformance!(super::World::checked_tcp());
}

mod tcp_encrypted {
    phalanx_testkit::group_conformance!(super::World::tcp().encrypted());
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

/// Which backend a group has follows from where its ranks are.
#[cfg(target_os = "linux")]
#[test]
fn groups_say_what_performs_their_operations() {
    let says = |world: World, ranks: usize, line: &str| {
        assert_eq!(world.run(ranks, |group| group.describe()), vec![line; ranks]);
    };
    says(World::thread(), 2, "thread: 2 ranks");
    says(World::tcp(), 3, "tcp: 3 ranks");
    says(World::shm(), 2, "shm: 2 ranks on this host");
    says(World::hosts(1), 3, "tcp: 3 ranks on 3 hosts");
    says(World::hosts(2), 4, "two-level: 2 hosts x 2 ranks: shm inside, tcp across");
    says(World::hosts(2), 3, "two-level: 3 ranks on 2 hosts: shm inside, tcp across");
    // What is forced for one operation moves no group.
    says(World::shm().algorithms("all_reduce=ring"), 2, "shm: 2 ranks on this host");
    let forced = World::hosts(2).algorithms("all_reduce=ring");
    says(forced, 4, "two-level: 2 hosts x 2 ranks: shm inside, tcp across");
    says(World::tcp(), 1, "alone: 1 rank, nothing is sent");
}

/// What the levels do does not depend on how the upper one speaks.
#[cfg(target_os = "linux")]
#[test]
fn levels_may_be_encrypted() {
    use phalanx_testkit::conformance::group;
    let world = World::hosts(2).encrypted();
    group::movements::movements_over_several_frames(&world);
    group::reductions::reductions_over_several_frames(&world);
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
