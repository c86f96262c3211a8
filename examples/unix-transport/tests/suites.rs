//! The transport passes the suites that phalanx's own transports pass.
#![cfg(target_os = "linux")]

use phalanx::transport::{JobLinks, LinkPeer, register_transport};
use phalanx_testkit::{Links, World};
use std::sync::{Arc, Once};
use unix_transport::{Unix, UnixLinks};

mod transport {
    phalanx_testkit::transport_conformance!(super::links());
}

mod group {
    phalanx_testkit::group_conformance!(super::world());
}

/// Links without a job: each rank listens, and is told of the others.
fn links() -> Links {
    Links::of("unix", |world_size| {
        let listen = |rank| UnixLinks::listen(rank, "key").expect("listens");
        let all: Vec<_> = (0..world_size).map(listen).collect();
        let names: Vec<_> = all.iter().map(|links| links.address().expect("a name")).collect();
        let peers: Vec<_> = names.iter().enumerate().map(|(rank, name)| LinkPeer::new(rank, name)).collect();
        let ends: Vec<_> = all.iter().map(|links| links.open(phalanx::backend::WORLD, &peers)).collect();
        Ok(ends)
    })
}

/// Ranks that meet in a store and are given each other's names by it.
fn world() -> World {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| register_transport("unix", Arc::new(Unix)).expect("the name is free"));
    World::named("unix")
}
