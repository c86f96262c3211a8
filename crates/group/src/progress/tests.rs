//! Operations that are driven on one thread or another: their time, and which thread it is.

use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::GroupHealth;
use crate::control::job_context::JobContext;
use crate::engine::attempt::Attempt;
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::operation::Operation;
use crate::group::backend::{Address, Backend};
use crate::group::pending::Pending;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, DType, Error, OpKind, Signature, WORLD};
use phalanx_transport::Direction;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Whenever it is asked, more data have moved; for so long that its end is that of the test.
struct Endless(Signature, Instant);

impl Operation for Endless {
    fn poll(&mut self, _core: &mut Core) -> Result<Progress, Fault> {
        let is_over = self.1.elapsed() > Duration::from_secs(20);
        Ok(if is_over { Progress::Finished } else { Progress::Moved })
    }

    fn wants(&self, _core: &Core, wants: &mut Vec<(usize, Direction)>) {
        wants.push((1, Direction::Recv));
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn seq(&self) -> u64 {
        1
    }

    fn bytes(&self) -> (u64, u64) {
        (1, u64::MAX)
    }

    fn is_due(&self, _core: &Core) -> bool {
        true
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn pair() -> [ScheduledBackend; 2] {
    let jobs = ThreadJob::create(2, MINUTE);
    let backend = |job| {
        let job: Arc<dyn JobContext> = Arc::new(job);
        let health = Arc::new(GroupHealth::new(job, WORLD, vec![0, 1]));
        ScheduledBackend::new(health, BackendChoice::Auto, Arc::new(Selector::default()))
    };
    let pair: Vec<_> = jobs.into_iter().map(backend).collect();
    pair.try_into().expect("two were asked for")
}

#[test]
fn what_moves_without_end_ends_when_its_time_is_over() {
    let [backend, _other] = pair();
    let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
    let attempt = Attempt::new(Instant::now(), Duration::from_millis(20));
    let error = backend.engine.drive(&mut Endless(signature, Instant::now()), attempt).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

fn address(op: OpKind, peer: usize, tag: u64) -> Address {
    let signature = Signature { dtype: Some(DType::U8), count: 1, ..Signature::bare(op, CallSite::caller()) };
    Address { signature, peer, tag }
}

/// A receive from rank 1 that was begun, and which thread ended it.
fn receive(backend: &ScheduledBackend, tag: u64) -> (Pending, Arc<Mutex<Option<ThreadId>>>) {
    let begun = backend.submit_message(address(OpKind::Recv, 1, tag), Box::new(vec![0u8]), MINUTE).unwrap();
    let ended = Arc::new(Mutex::new(None));
    let by = ended.clone();
    let begun = begun.then(move |outcome| {
        *by.lock().unwrap() = Some(std::thread::current().id());
        outcome
    });
    (begun, ended)
}

fn send(backend: &ScheduledBackend, tag: u64) {
    backend.send(address(OpKind::Send, 0, tag), &[7], MINUTE).unwrap();
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < MINUTE, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_waits_performs_it_and_leaves_the_rest_to_the_thread() {
    let [backend, other] = pair();
    let ((first, ended), (second, second_ended)) = (receive(&backend, 1), receive(&backend, 2));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| first.wait().map(|mut bytes| bytes.bytes()[0]).unwrap());
        let its_id = waiter.thread().id();
        wait_until(|| backend.engine.jobs.is_with_waiter());
        send(&other, 1);
        assert_eq!(waiter.join().unwrap(), 7);
        assert_eq!(*ended.lock().unwrap(), Some(its_id));
    });
    send(&other, 2);
    // A look is no wait.
    wait_until(|| second.is_done());
    assert_ne!(*second_ended.lock().unwrap(), Some(std::thread::current().id()));
}

#[test]
fn who_waits_for_a_time_goes_on_then_and_so_does_the_operation() {
    let [backend, other] = pair();
    let (pending, _) = receive(&backend, 1);
    assert!(!pending.wait_until(Some(Instant::now() + Duration::from_millis(20))));
    send(&other, 1);
    wait_until(|| pending.is_done());
    assert_eq!(pending.wait().unwrap().bytes(), [7]);
}

#[test]
fn what_is_begun_meanwhile_is_performed_by_who_waits() {
    let [backend, other] = pair();
    let (first, _) = receive(&backend, 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| first.wait().map(drop).unwrap());
        let its_id = waiter.thread().id();
        wait_until(|| backend.engine.jobs.is_with_waiter());
        let (second, second_ended) = receive(&backend, 2);
        send(&other, 2);
        second.wait().unwrap();
        assert_eq!(*second_ended.lock().unwrap(), Some(its_id));
        send(&other, 1);
        waiter.join().unwrap();
    });
}

#[test]
fn a_short_message_is_sent_where_it_is_begun() {
    let [backend, other] = pair();
    let (received, _) = receive(&backend, 1);
    send(&other, 1);
    received.wait().unwrap();
    // There is a link now.
    let begun = other.submit_message(address(OpKind::Send, 0, 2), Box::new(vec![7u8]), MINUTE).unwrap();
    assert!(begun.is_done());
    assert_eq!(receive(&backend, 2).0.wait().unwrap().bytes(), [7]);
    begun.wait().unwrap();
}
