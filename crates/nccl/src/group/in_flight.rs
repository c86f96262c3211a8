//! One operation on its way: agreed on over the host, and at work on the device.

use super::connection::Connection;
use crate::queue::Event;
use crate::stream::Stream;
use crate::wait::wait_until;
use phalanx_core::{Deadline, Error, Result, Signature};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// NCCL knows of trouble: that is often the loss of a rank, of which the group will tell better.
pub(crate) const HEARSAY_TIME: Duration = Duration::from_secs(2);
/// How long after the deadline the agreement may still say who is missing.
const SETTLE_TIME: Duration = Duration::from_secs(3);

pub(crate) struct InFlight {
    connection: Arc<Connection>,
    signature: Signature,
    /// The operation's place among the group's collectives; 0 for messages.
    seq: u64,
    /// Without whom it does not end.
    others: Vec<usize>,
    deadline: Deadline,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    agreement: Option<phalanx_group::Work<()>>,
    /// The event behind the operation; `None` before it is on the stream.
    event: Option<Event>,
    /// Why it will never be.
    refusal: Option<Error>,
    outcome: Option<Result<()>>,
}

impl InFlight {
    pub(crate) fn new(
        connection: Arc<Connection>,
        (signature, seq, others): (Signature, u64, Vec<usize>),
        deadline: Deadline,
        agreement: Option<phalanx_group::Work<()>>,
    ) -> Self {
        let state = Mutex::new(State { agreement, ..State::default() });
        Self { connection, signature, seq, others, deadline, state }
    }

    /// Notes that the operation is on its stream, or will never be: then it can only end in an error. Returns whether it is.
    pub(crate) fn launched(&self, event: Result<Event>) -> bool {
        let mut state = self.state();
        match event {
            Ok(event) => state.event = Some(event),
            // That is no more than late, and who is missing the agreement knows.
            Err(_) if self.deadline.has_passed(Instant::now()) => {}
            Err(error) => state.refusal = Some(error),
        }
        state.event.is_some()
    }

    /// The outcome, once it is known. Looking is what makes it known.
    pub(crate) fn look(&self) -> Option<Result<()>> {
        let mut state = self.state();
        if state.outcome.is_none() {
            state.outcome = self.judge(&mut state, Instant::now());
        }
        state.outcome.clone()
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn judge(&self, state: &mut State, now: Instant) -> Option<Result<()>> {
        let connection = &self.connection;
        let failed =
            |cause| Some(Err(connection.health.error(&self.signature, self.seq, &self.deadline, cause)));
        if let Some(agreement) = state.agreement.take_if(|agreement| agreement.is_done())
            && let Err(error) = agreement.wait()
        {
            return failed(connection.health.give_up(&error));
        }
        let trouble = state.refusal.clone().map_or_else(|| connection.comm.async_error(), Err);
        if let (None, Some(event), Ok(())) = (&state.agreement, &state.event, &trouble) {
            match event.is_over() {
                // An abort ends it too, without a result.
                Ok(true) if !connection.is_aborted() => return Some(Ok(())),
                Ok(_) => {}
                Err(error) => return failed(connection.health.give_up(&error)),
            }
        }
        if let Some(cause) = connection.health.failure() {
            return failed(cause);
        }
        // Either may still say who is missing.
        let is_open = state.agreement.is_some() || trouble.is_err();
        if let Err(error) = trouble {
            let mut trouble = connection.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            let since = *trouble.get_or_insert(now);
            if now.saturating_duration_since(since) >= HEARSAY_TIME {
                return failed(connection.health.give_up(&error));
            }
        }
        let patience = if is_open { SETTLE_TIME } else { Duration::ZERO };
        let elapsed = self.deadline.elapsed(now);
        if elapsed < self.deadline.limit().saturating_add(patience) {
            return None;
        }
        failed(connection.health.late(&self.signature, self.seq, elapsed, &self.others))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation on its way. Dropping it changes nothing: the operation goes on, and is watched.
///
/// One that was over when its call returned, as on memory of the host, is one too.
#[must_use = "whether it went well is in here"]
pub struct Work(Option<Arc<InFlight>>);

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(flight) => write!(f, "Work({})", flight.signature),
            None => f.write_str("Work(over)"),
        }
    }
}

impl Work {
    pub(crate) fn new(flight: Arc<InFlight>) -> Self {
        Self(Some(flight))
    }

    /// An operation that has ended well.
    pub(crate) fn over() -> Self {
        Self(None)
    }

    /// Whether [`wait`](Self::wait) would return at once.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let work = devices.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// while !work.is_done() {
    ///     std::thread::yield_now(); // or something useful
    /// }
    /// work.wait()?; // at once
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|flight| flight.look().is_some())
    }

    /// Waits on the host until all ranks have agreed and this rank's device is done. It ends: every operation has a deadline.
    ///
    /// # Errors
    /// Those of the group's [contract](super::NcclGroup#contract).
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let work = devices.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// // … something else meanwhile …
    /// work.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn wait(self) -> Result<()> {
        let Some(flight) = self.0 else { return Ok(()) };
        let without_end = Deadline::after(Instant::now(), Duration::MAX);
        let mut outcome = None;
        wait_until(&without_end, || {
            outcome = flight.look();
            Ok(outcome.is_some())
        })?;
        outcome.unwrap_or_else(|| Err(Error::Internal { what: "an operation without an outcome".into() }))
    }

    /// Later work on `stream` waits for the operation, on the device; the host does not. Of buffers nothing needs to be said: they
    /// [know](crate::DeviceBuffer) what to wait for.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), as far as they are known.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::{DeviceBuffer, Stream};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let work = devices.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// let compute = Stream::new(devices.device())?;
    /// work.wait_on(&compute)?; // what is put there from now on comes behind the sum
    /// # assert!(compute.synchronize(limit)?);
    /// # work.wait()?;
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        let Some(flight) = &self.0 else { return Ok(()) };
        match &*flight.state() {
            State { outcome: Some(outcome), .. } => outcome.clone(),
            State { event: Some(event), .. } => stream.wait_for(event),
            State { event: None, .. } => Ok(()),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use crate::{Batch, Cuda, Device, DeviceBuffer, Nccl, NcclGroup};
    use phalanx_core::{CallSite, Error, ReduceOp};
    use phalanx_group::ProcessGroup;
    use phalanx_testkit::World;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    fn backend(group: &ProcessGroup) -> NcclGroup {
        let file = std::env::current_exe().unwrap().with_file_name("libphalanx_nccl_double.so");
        let device = Cuda::open(&file).and_then(|cuda| Device::open(cuda, group.rank()));
        NcclGroup::over(group, Nccl::open(file), device).unwrap()
    }

    #[test]
    fn when_the_last_handle_is_dropped_no_thread_holds_the_group() {
        World::thread().run(2, |group| {
            let all = backend(&group);
            let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
            all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap().wait().unwrap();
            let connection = Arc::downgrade(&all.shared.connection);
            drop((buffer, all));
            assert!(connection.upgrade().is_none());
        });
    }

    /// Tells the others that this rank means what `batch` does.
    fn agree(all: &NcclGroup, batch: &Batch<'_>) {
        let call = batch.collective(&CallSite::caller()).unwrap();
        let agreement = all.shared.connection.health.control.agree_async(call);
        agreement.and_then(phalanx_group::Work::wait).unwrap();
    }

    /// Rank 1 says that it means the same, and its device does nothing.
    #[test]
    fn a_device_that_was_stopped_is_not_done() {
        let is_over = Barrier::new(2);
        World::thread().run(2, move |group| {
            let all = backend(&group);
            let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
            let mut batch = all.batch();
            batch.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            if group.rank() == 0 {
                let work = all.launch(&batch).unwrap();
                while work.0.as_ref().unwrap().state().agreement.is_some() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                all.shared.connection.abort();
                assert!(all.stream().synchronize(LONG).unwrap());
                let is_done = work.is_done();
                is_over.wait();
                assert!(!is_done);
                all.abort("enough");
                assert!(matches!(work.wait(), Err(Error::Aborted { .. })));
            } else {
                agree(&all, &batch);
                is_over.wait();
            }
        });
    }

    /// Rank 1 does on its device what rank 0 does, without a word on the host about what it means.
    #[test]
    fn a_device_that_is_done_is_not_enough() {
        let devices_are_done = Barrier::new(2);
        World::thread().run(2, move |group| {
            let all = backend(&group);
            let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
            let mut batch = all.batch();
            batch.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            if group.rank() == 0 {
                let work = all.launch(&batch).unwrap();
                assert!(all.stream().synchronize(LONG).unwrap());
                let is_done = work.is_done();
                devices_are_done.wait();
                assert!(!is_done);
                work.wait().unwrap();
            } else {
                all.shared.connection.comm.launch(&batch, all.stream(), LONG).unwrap();
                assert!(all.stream().synchronize(LONG).unwrap());
                devices_are_done.wait();
                agree(&all, &batch);
            }
        });
    }
}
