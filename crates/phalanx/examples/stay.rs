//! A rank that does nothing but be there, to be looked at: what it costs to start many of them, and to have them. `scripts/many-ranks` runs it.
//!
//! `phalanx run -n 200 target/debug/examples/stay FILE`: each rank says that it is there, and stays until there is such a file.

use std::path::PathBuf;
use std::time::Duration;

/// How often a rank looks for the file.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> phalanx::Result<()> {
    let until = std::env::args_os().nth(1).map(PathBuf::from);
    let group = phalanx::init()?;
    group.barrier()?;
    println!("rank {} of {} is here", group.rank(), group.world_size());
    while until.as_ref().is_some_and(|file| !file.exists()) {
        std::thread::sleep(LOOK_INTERVAL);
    }
    group.finalize()
}
