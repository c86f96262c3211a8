//! Jobs of real processes over UCX, and what they say where they can't have it.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "tests that are skipped say so")]

use phalanx_core::ReduceOp;
use phalanx_launch::{Launch, Outcome};
use phalanx_ucx::{UCX_LIBRARY, Ucp};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// Says to a process of this test that it is a rank.
const ROLE: &str = "PHALANX_TEST_ROLE";

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

/// A process of a job.
#[test]
#[ignore = "this is what the processes of the jobs run"]
fn rank() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    phalanx_ucx::register().expect("the name is free");
    let run = || {
        let group = phalanx_group::init()?;
        let mut sum = vec![group.rank() as f32; 300_000];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        let said = format!("{}; the sum is {}\n", group.describe(), sum[299_999]);
        std::io::stdout().write_all(said.as_bytes()).expect("the launcher reads");
        group.finalize()
    };
    if let Err(error) = run() {
        eprintln!("failed: {error}");
        std::process::exit(1);
    }
}

/// What three ranks say with these variables.
fn said(variables: &[(&str, &str)]) -> (bool, String) {
    let lines = Lines::default();
    let program = std::env::current_exe().expect("this test");
    let launch = Launch::new(program).args(["rank", "--exact", "--ignored", "--nocapture"]).ranks(3);
    let launch = launch.env(ROLE, "rank").env("PHALANX_BACKEND", "ucx");
    let launch = variables.iter().fold(launch, |launch, (name, value)| launch.env(*name, *value));
    let outcome = launch.prefix(false).output(lines.clone(), lines.clone()).run().expect("the job starts");
    let text = String::from_utf8_lossy(&lines.0.lock().expect("nobody panicked")).into_owned();
    (outcome == Outcome::Success, text)
}

#[test]
fn processes_add_up_over_every_transport_of_this_host() {
    if let Err(why) = Ucp::load() {
        return eprintln!("skipped: {why}");
    }
    for transports in ["tcp,self", "posix,cma,self", "all"] {
        let (done, text) = said(&[("UCX_TLS", transports)]);
        assert!(done && text.matches("ucx: 3 ranks; the sum is 3").count() == 3, "{transports}: {text}");
    }
}

#[test]
fn without_ucx_the_error_says_what_to_install() {
    let (done, text) = said(&[(UCX_LIBRARY, "/no/such/libucp.so.0")]);
    assert!(!done && text.contains("UCX, which PHALANX_BACKEND=ucx takes, is not available"), "{text}");
    for part in ["/no/such/libucp.so.0", "install libucx0 (Debian, Ubuntu) or ucx (Fedora)", UCX_LIBRARY] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A library that is there, and is another.
    let (done, text) = said(&[(UCX_LIBRARY, "libc.so.6")]);
    assert!(!done && text.contains("libc.so.6: it lacks ucp_get_version, "), "{text}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    if let Err(why) = Ucp::load() {
        return eprintln!("skipped: {why}");
    }
    let (done, text) = said(&[("UCX_TLS", "none-such"), ("UCX_LOG_LEVEL", "fatal")]);
    assert!(!done && text.contains("a UCX worker of rank"), "{text}");
    assert!(text.contains("UCX_TLS and UCX_NET_DEVICES say what it may use"), "{text}");
}

#[test]
fn a_job_that_encrypts_refuses_it() {
    if let Err(why) = Ucp::load() {
        return eprintln!("skipped: {why}");
    }
    let (done, text) = said(&[("PHALANX_ENCRYPT", "1")]);
    let words = "this job encrypts (PHALANX_ENCRYPT), and UCX does not: choose another PHALANX_BACKEND";
    assert!(!done && text.contains(words), "{text}");
}
