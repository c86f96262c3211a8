//! Parameters for which no rank has a gradient: who hears of them, and how often.

mod common;

use common::{ALL, everywhere, gradients, parameters, reducer};
use phalanx_testkit::World;
use phalanx_train::{Array, Error, MissingGradients, Parameter, Reducer, Share, sync_gradients};
use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};

const NAMED: &str = "no rank has a gradient for `b`, `f`, so no optimizer changes them. Either the loss does not depend on them, or an operation \
                     between them and the loss has no backward pass. If they are to stay as they are, set MissingGradients::Allow";

/// This rank's gradients but for those that nobody has, and one that only rank 1 has.
fn some(rank: usize, step: usize) -> Vec<Option<Array>> {
    let mut grads = gradients(rank, step, 1.0);
    (grads[1], grads[5]) = (None, None);
    if rank != 1 {
        grads[0] = None;
    }
    grads
}

#[test]
fn an_error_names_them_on_all_ranks_in_each_step() {
    everywhere(2, |group, overlap| {
        let mut reducer = reducer(&group, 100, overlap);
        reducer.set_missing_gradients(MissingGradients::Error);
        for step in 0..2 {
            let error = reducer.reduce(some(group.rank(), step), Share::EQUAL).unwrap_err();
            assert!(matches!(&error, Error::NoGradient { names, .. } if names == &["b", "f"]), "{error}");
            assert_eq!((error.to_string(), format!("{error:?}")), (NAMED.to_owned(), NAMED.to_owned()));
        }
        reducer.reduce(gradients(group.rank(), 0, 1.0), Share::EQUAL).unwrap();
        // Without samples nobody is to have gradients.
        reducer.reduce(vec![None; ALL], Share::new(0, 0)).unwrap();
        let error = reducer.reduce(vec![None; ALL], Share::EQUAL).unwrap_err();
        assert!(matches!(&error, Error::NoGradient { names, .. } if names.len() == ALL), "{error}");
    });
}

#[test]
fn some_may_be_without() {
    everywhere(2, |group, overlap| {
        let optional = |(index, parameter): (usize, Parameter<()>)| match index {
            1 | 5 => parameter.optional(),
            _ => parameter,
        };
        let parameters: Vec<_> = parameters().into_iter().enumerate().map(optional).collect();
        let mut reducer = Reducer::<Array>::new(parameters, &group, 100, overlap).unwrap();
        reducer.set_missing_gradients(MissingGradients::Error);
        let grads = reducer.reduce(some(group.rank(), 0), Share::EQUAL).unwrap();
        assert_eq!(
            grads.iter().map(Option::is_none).collect::<Vec<_>>(),
            [false, true, false, false, false, true, false]
        );
    });
}

/// A training of two ranks, of the parts of the next tests.
fn train(choice: Option<MissingGradients>) {
    World::thread().run(2, move |group| {
        let mut reducer = reducer(&group, 100, group.rank() > 9);
        if let Some(choice) = choice {
            reducer.set_missing_gradients(choice);
        }
        // Nobody has samples: that says nothing.
        reducer.reduce(vec![None; ALL], Share::new(0, 0)).unwrap();
        for step in 0..3 {
            reducer.reduce(some(group.rank(), step), Share::EQUAL).unwrap();
        }
        sync_gradients(parameters(), some(group.rank(), 4), &group).unwrap();
    });
}

#[test]
#[ignore = "this is what the next test runs, in a process without a subscriber"]
fn without_a_subscriber() {
    train(None);
}

/// Else the warning would be nobody's.
#[test]
fn a_program_that_does_not_listen_is_told_on_stderr_once() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let run = child.args(["--exact", "without_a_subscriber", "--ignored", "--nocapture"]).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}");
    let warnings: Vec<_> = told.lines().filter(|line| line.contains("gradient")).collect();
    assert_eq!(warnings, [format!("phalanx: warning: {NAMED}")]);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "this is what the next test runs, in a process of its own"]
fn with_a_subscriber() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).init();
    let told = |choice| {
        train(choice);
        let log = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
        log.lines().filter(|line| line.contains("gradient")).map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [format!(" WARN phalanx_train::missing: {NAMED}")];
    assert_eq!(told(None), expected);
    assert_eq!(told(Some(MissingGradients::Warn)), expected);
    assert_eq!(told(Some(MissingGradients::Allow)), [""; 0]);
}

#[test]
fn a_program_that_listens_is_told_once_by_an_event() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let run = child.args(["--exact", "with_a_subscriber", "--ignored", "--nocapture"]).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}{}", String::from_utf8_lossy(&run.stdout));
    assert!(!told.contains("gradient"), "{told}");
}
