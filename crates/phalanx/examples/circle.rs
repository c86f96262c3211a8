//! Ranks that wait for each other: what they are told, and a program that only seems to do so.
//!
//! The argument says what they do: `send`, `recv`, `mixed`; or `patient`, where another thread receives.

use phalanx::{ProcessGroup, Result, init};
use std::time::Duration;

/// More than any transport takes without a receiver.
const LONG: usize = 64 << 20;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> Result<()> {
    let group = init()?;
    let way = std::env::args().nth(1).unwrap_or_else(|| "send".into());
    let next = (group.rank() + 1) % group.world_size();
    let outcome = match (way.as_str(), group.rank()) {
        ("send", _) => group.send(&vec![0u8; LONG], next, 3),
        ("recv", _) => group.recv(&mut [0u8], next, 3),
        ("mixed", 0) => group.barrier(),
        ("mixed", _) => group.recv(&mut [0u8], 0, 3),
        _ => be_patient(&group, next),
    };
    match outcome {
        Ok(()) => println!("rank {} is done", group.rank()),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// All send first; a thread of each receives, when it comes to that.
fn be_patient(group: &ProcessGroup, next: usize) -> Result<()> {
    let prev = (group.rank() + group.world_size() - 1) % group.world_size();
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            std::thread::sleep(Duration::from_secs(6));
            group.recv(&mut vec![0u8; LONG], prev, 3)
        });
        group.send(&vec![0u8; LONG], next, 3)?;
        received.join().expect("it does not panic")
    })?;
    group.barrier()
}
