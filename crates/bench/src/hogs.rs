//! Other programs that want the cores too.
//!
//! Each is this program again, spinning until the pipe that is its stdin closes: the kernel closes it however
//! the benchmark ends. (A parent's death signal would do so on Linux only.)

use phalanx::{Error, Result};
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Tells a process that it is one.
const HOG_VAR: &str = "PHALANX_BENCH_HOG";

/// Processes that spin while this lives.
#[derive(Debug)]
pub(crate) struct Hogs(Vec<Child>);

impl Hogs {
    /// # Errors
    /// `Io`: one cannot be started.
    pub(crate) fn start(number: usize) -> Result<Self> {
        let failed = |error| Error::io("starting a process that spins", error);
        let mut hogs = Self(Vec::new());
        for _ in 0..number {
            let mut command = Command::new(std::env::current_exe().map_err(failed)?);
            command.args(std::env::args_os().skip(1)).env(HOG_VAR, "1");
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            hogs.0.push(command.spawn().map_err(failed)?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            // An error means that it has ended by itself.
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

/// Whether this process is one.
pub(crate) fn is_one() -> bool {
    std::env::var_os(HOG_VAR).is_some()
}

/// Takes all the time that the scheduler gives, until the benchmark ends.
pub(crate) fn spin() -> ! {
    std::thread::spawn(|| {
        // It writes nothing: this returns when it is gone.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}
