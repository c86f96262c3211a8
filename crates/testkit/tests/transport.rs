//! Every transport passes the same suite.

use phalanx_testkit::Links;

mod thread {
    phalanx_testkit::transport_conformance!(super::Links::thread());
}

mod tcp {
    phalanx_testkit::transport_conformance!(super::Links::tcp());
}

mod encrypted_tcp {
    phalanx_testkit::transport_conformance!(super::Links::encrypted_tcp());
}

#[cfg(target_os = "linux")]
mod shm {
    phalanx_testkit::transport_conformance!(super::shm());
}

#[cfg(target_os = "linux")]
fn shm() -> Links {
    use phalanx_shm::{ShmTransport, create, pipes_len};
    Links::of("shm", |world_size| {
        let file = create(pipes_len(world_size))?;
        let end = |rank| Ok(Box::new(ShmTransport::join(&file, rank, world_size)?) as phalanx_testkit::End);
        (0..world_size).map(end).collect()
    })
}
