//! A backend, or links, of the program's own that panic while `init` makes them: the other ranks hear that this rank panicked, and the launcher
//! shows where.

#![cfg(target_os = "linux")]

mod support;

use phalanx::backend::{
    Backend, BackendFactory, BackendKind, Deadline, GroupId, JobHandle, Signature, register_backend,
};
use phalanx::launch::{ExitKind, Outcome};
use phalanx::transport::{JobLinks, LinksStart};
use phalanx::{Config, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const WORDS: &str = "no device of that name";

/// Panics in one of its functions on one rank.
#[derive(Debug)]
struct Fragile(Option<String>);

impl Fragile {
    fn reach(&self, function: &str) {
        assert!(self.0.as_deref() != Some(function), "{WORDS}");
    }
}

impl BackendKind for Fragile {
    fn about(&self) -> &str {
        "a backend that panics"
    }

    fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        // What a rank said before another came is of an earlier start, as far as that one knows.
        let here = |rank: usize| std::env::temp_dir().join(format!("rank {rank} is here"));
        std::fs::write(here(at.rank()), "").expect("the folder is there");
        let until = Instant::now() + Duration::from_secs(60);
        while self.0.is_some()
            && !(0..at.world_size()).all(|rank| here(rank).exists())
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.reach("links");
        Ok(at.tcp())
    }

    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
        self.reach("factory");
        Ok(Arc::new(Factory(job.over_links(), Self(self.0.clone()))))
    }
}

#[derive(Debug)]
struct Factory(Arc<dyn BackendFactory>, Fragile);

impl BackendFactory for Factory {
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>> {
        self.1.reach("create");
        self.0.create(id, members, call, deadline)
    }
}

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    // The launcher asks the others to end half a second after the first has, and they look at the store once a second.
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, asked).expect("it may be caught");
    let (function, victim) = role.rsplit_once(' ').expect("what panics, and where");
    let mut config = Config::from_env().expect("a launcher started it");
    config.backend = "fragile".into();
    let is_victim = victim == config.rank.to_string();
    let kind = Fragile(is_victim.then(|| function.to_owned()));
    register_backend("fragile", Arc::new(kind)).expect("the name is free");
    if let Err(error) = phalanx::join(&config) {
        support::say("error", &error);
        std::process::exit(1);
    }
}

#[test]
fn a_panic_in_a_backend_of_ones_own_is_told_as_that() {
    for (function, victim) in [("factory", 1), ("create", 0), ("links", 2), ("links", 0)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job(&format!("{function} {victim}"), 3, folder.path());
        let outcome = launch.run().expect("the job starts");
        let context = format!("{function}, rank {victim}: {outcome}\n{}", output.text());
        let Outcome::Failure(failure) = &outcome else { panic!("{context}") };
        assert_eq!((failure.rank, failure.exit), (victim, ExitKind::Code(101)), "{context}");
        assert!(failure.to_string().contains("panicked at "), "{context}");
        assert!(failure.to_string().contains("panic_in_init.rs:"), "{context}");
        let errors: Vec<String> =
            (0..3).filter(|&rank| rank != victim).flat_map(|rank| output.said(rank, "error")).collect();
        let says_so =
            |error: &String| error.contains(&format!("rank {victim} (")) && error.contains("panicked");
        assert!(errors.iter().all(says_so) && errors.len() == 2, "{context}");
    }
}
