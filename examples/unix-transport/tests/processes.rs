//! Real processes over unix-domain sockets.
#![cfg(target_os = "linux")]

use phalanx::launch::Launch;
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What four ranks say with this backend.
fn said(backend: &str) -> (bool, String) {
    let lines = Lines::default();
    let launch = Launch::new(env!("CARGO_BIN_EXE_unix-ranks")).ranks(4).env("PHALANX_BACKEND", backend);
    let outcome = launch.prefix(false).output(lines.clone(), lines.clone()).run().expect("the job starts");
    let text = String::from_utf8_lossy(&lines.0.lock().expect("nobody panicked")).into_owned();
    (outcome == phalanx::launch::Outcome::Success, text)
}

#[test]
fn processes_add_up_over_it() {
    let (done, text) = said("unix");
    assert!(done && text.matches("unix: 4 ranks; the sum is 6").count() == 4, "{text}");
}

#[test]
fn a_name_that_is_not_registered_is_refused_with_those_that_are() {
    let (done, text) = said("verbs");
    assert!(
        !done && text.contains("no backend \"verbs\" is registered in this program, only auto, shm, tcp, u"),
        "{text}"
    );
}
