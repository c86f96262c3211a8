//! A process that stands for another rank.

use std::process::{Child, Command, Stdio};

/// A process that would take long. It does not outlive its test.
pub(crate) struct Sleeper(pub(crate) Child);

impl Sleeper {
    pub(crate) fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
