//! Everything that strangers, peers that lie, and files of uncertain origin can put before phalanx, as fuzz targets: each
//! takes any bytes and panics where a promise is broken.
//!
//! `cargo xtask fuzz` runs them under libFuzzer; `cargo test` replays the kept corpus and changes it a little. What a
//! target promises stands beside the code it is about, in the module `fuzz` of each crate.

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use phalanx_group::fuzz::control;
pub use phalanx_launch::fuzz::hosts;
pub use phalanx_rendezvous::fuzz::store;

/// A target's name and itself.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 7] = [
    ("handshake", handshake),
    ("frames", frames),
    ("store", store),
    ("control", control),
    ("files", files),
    ("launchers", launchers),
    ("hosts", hosts),
];

/// What is said before anybody is trusted: the first byte chooses between a network that forges and an end that hears
/// in pieces what anybody says.
pub fn handshake(data: &[u8]) {
    use phalanx_transport::fuzz;
    match data.split_first() {
        Some((0xc0.., rest)) => fuzz::pieces(rest),
        _ => fuzz::handshake(data),
    }
}

/// What a peer that knows the secret can send: the first byte chooses between the frames of links, with checksums or without,
/// what operations make of them, the messages of sessions, and the records of links and sessions that are sealed.
pub fn frames(data: &[u8]) {
    use phalanx_transport::fuzz;
    match data.split_first() {
        Some((what @ 0..0x40, rest)) => fuzz::frames(rest, what & 1 == 1),
        Some((0x40..0x80, rest)) => phalanx_group::fuzz::operations(rest),
        Some((0x80..0xc0, rest)) => fuzz::sessions(rest),
        Some((_, rest)) => fuzz::records(rest),
        None => {}
    }
}

/// What is read from disk and from the environment: the first byte chooses what it is.
pub fn files(data: &[u8]) {
    let Some((what, rest)) = data.split_first() else { return };
    match what % 4 {
        0 => phalanx_rendezvous::fuzz::config(rest),
        1 => phalanx_rendezvous::fuzz::files(rest),
        2 => phalanx_group::fuzz::prices(rest),
        _ => phalanx_group::fuzz::traces(rest),
    }
}

/// What launchers of others say, and ranks through them: the first byte chooses what it is.
pub fn launchers(data: &[u8]) {
    let Some((what, rest)) = data.split_first() else { return };
    match what % 3 {
        0 => phalanx_pmi::fuzz::talk(rest),
        1 => phalanx_rendezvous::fuzz::meeting(rest),
        _ => phalanx_rendezvous::fuzz::tasks(rest),
    }
}

/// The kept inputs of a target with their names, in the order of these: what is in `corpus/TARGET.tar.gz`.
///
/// # Panics
/// If the archive can't be read.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{target}.tar.gz"));
    let archive = File::open(&archive).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let input = |entry: io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry?;
        let mut input = Vec::new();
        entry.read_to_end(&mut input)?;
        Ok((entry.path()?.display().to_string(), input))
    };
    let inputs: io::Result<_> = archive.entries().and_then(|entries| entries.map(input).collect());
    inputs.expect("it is an archive")
}
