//! The transport passes the suites that phalanx's own transports pass, over UCX's TCP and over its shared memory.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "tests that are skipped say so")]

use phalanx_group::{LinkPeer, register_transport};
use phalanx_testkit::{Links, World};
use phalanx_ucx::{Ucp, Ucx};
use std::sync::{Arc, Once};

const TCP: (&str, &str) = ("ucx-tcp", "tcp,self");
const SHARED_MEMORY: (&str, &str) = ("ucx-posix", "posix,cma,self");

mod tcp_links {
    phalanx_testkit::transport_conformance!(super::links(super::TCP));
}

mod tcp_group {
    phalanx_testkit::group_conformance!(super::world(super::TCP));
}

mod shared_memory_links {
    phalanx_testkit::transport_conformance!(super::links(super::SHARED_MEMORY));
}

mod shared_memory_group {
    phalanx_testkit::group_conformance!(super::world(super::SHARED_MEMORY));
}

/// Whether there is no UCX here. Then the suites have nothing to show, and say so.
fn is_missing() -> bool {
    Ucp::load().inspect_err(|why| eprintln!("skipped, over threads instead: {why}")).is_err()
}

/// Links without a job: each rank is told of the others.
fn links((name, transports): (&'static str, &str)) -> Links {
    if is_missing() {
        return Links::thread();
    }
    let ucx = Ucx::over(transports).expect("a name");
    Links::of(name, move |world_size| {
        let all = (0..world_size).map(|rank| ucx.links(rank, world_size, [7; 16]));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = all.iter().map(|links| links.address().expect("an address")).collect();
        let peer = |(rank, address)| LinkPeer::new(rank, address);
        let peers: Vec<_> = addresses.iter().map(Vec::as_slice).enumerate().map(peer).collect();
        Ok(all.iter().map(|links| links.open(phalanx_core::WORLD, &peers)).collect())
    })
}

/// Ranks that meet in a store and are given each other's addresses by it.
fn world((name, _): (&'static str, &str)) -> World {
    if is_missing() {
        return World::thread();
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        for (name, transports) in [TCP, SHARED_MEMORY] {
            let ucx = Arc::new(Ucx::over(transports).expect("a name"));
            register_transport(name, ucx).expect("the name is free");
        }
    });
    World::named(name)
}
