//! Many jobs of a program that is to exit with 0 and to say nothing.

use phalanx::launch::{Launch, Outcome};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How the ranks of a job reach each other.
const WAYS_THERE: [&str; 3] = ["shm", "tcp", "two levels"];

/// Jobs at a time.
const AT_A_TIME: usize = 2;

/// What a job has written.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The built example `name`: cargo builds those of a package with its tests, beside the tests' own folder.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/<profile>/deps/<test>");
    profile.join("examples").join(name)
}

/// How many jobs of each kind the soak runs.
pub(crate) fn jobs_of_the_soak() -> usize {
    setting("JOBS").map_or(100, |text| text.parse().expect("a number"))
}

fn setting(name: &str) -> Option<String> {
    std::env::var(format!("PHALANX_ENDINGS_{name}")).ok()
}

/// Why a job is not what it should be, if so.
fn trouble(program: &str, argument: &str, ranks: usize, there: &str) -> Option<String> {
    let said = Said::default();
    let program = example(program);
    let launch = match there {
        // The hosts of ranks that really share one. `exec`: the program is what the launcher started.
        "two levels" => {
            let script = "PHALANX_HOST_ID=host-$((PHALANX_RANK % 2)) exec \"$0\" \"$@\"";
            let args = ["-c", script, program.to_str().expect("a readable path"), argument];
            Launch::new("/bin/sh").args(args).env("PHALANX_BACKEND", "auto")
        }
        _ => Launch::new(program).args([argument]).env("PHALANX_BACKEND", there),
    };
    let outcome = launch
        .ranks(ranks)
        .output(said.clone(), said.clone())
        .timeout(Some(Duration::from_secs(120)))
        .run()
        .expect("the job starts");
    let is_well = matches!(outcome, Outcome::Success) && said.text().is_empty();
    (!is_well).then(|| format!("{outcome}\n{}", said.text()))
}

/// Runs `jobs` jobs of each of these ways to end, with each number of ranks, however they reach each other.
///
/// # Panics
/// If one of them failed or said something, after all have run.
#[expect(clippy::print_stdout, reason = "a person watches")]
pub(crate) fn check(program: &str, ways: &[&str], ranks: &[usize], jobs: usize) {
    let only = setting("WAYS");
    let chosen = |way: &&&str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == **way));
    let mut failed = String::new();
    for there in WAYS_THERE {
        for way in ways.iter().filter(chosen) {
            for &ranks in ranks {
                let (next, troubles) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
                let work = || {
                    while next.fetch_add(1, Ordering::Relaxed) < jobs {
                        let trouble = trouble(program, way, ranks, there);
                        troubles.lock().expect("no other has panicked").extend(trouble);
                    }
                };
                std::thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
                let troubles = troubles.into_inner().expect("nobody has panicked");
                let line = format!("{way}, {ranks} ranks, {there}: {} of {jobs} jobs failed", troubles.len());
                println!("{line}");
                if let Some(first) = troubles.first() {
                    let _ = writeln!(failed, "{line}; the first:\n{first}");
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
