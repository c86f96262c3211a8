//! An operation whose data move is under the clock like one that waits.

use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::GroupHealth;
use crate::control::job_context::JobContext;
use crate::engine::attempt::Attempt;
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::operation::Operation;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, Error, OpKind, Signature, WORLD};
use phalanx_transport::Direction;
use std::sync::Arc;
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

#[test]
fn what_moves_without_end_ends_when_its_time_is_over() {
    let jobs = ThreadJob::create(2, Duration::from_secs(60));
    let [job, _other] = jobs.try_into().unwrap();
    let job: Arc<dyn JobContext> = Arc::new(job);
    let health = Arc::new(GroupHealth::new(job, WORLD, vec![0, 1]));
    let selector = Arc::new(Selector::default());
    let backend = ScheduledBackend::new(health, BackendChoice::Auto, selector);
    let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
    let attempt = Attempt::new(Instant::now(), Duration::from_millis(20));
    let error = backend.engine.drive(&mut Endless(signature, Instant::now()), attempt).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}
