//! Launches: how calls get from a batch to a stream.

use crate::batch::Batch;
use crate::call::{Call, Operator};
use crate::comm::Communicator;
use crate::in_order::use_in_order;
use crate::load::Nccl;
use crate::nccl_thread::Late;
use crate::operation::Carrier;
use crate::stream::Stream;
use crate::sys::nccl::{Code, IN_PROGRESS, RawComm};
use phalanx_core::{Deadline, Result};
use std::time::{Duration, Instant};

impl Communicator {
    /// An empty batch for [`launch`](Self::launch).
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::{DeviceBuffer, Stream};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// # let stream = &Stream::new(&device)?;
    /// let mut buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut batch = comm.batch();
    /// batch.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// comm.launch(&batch, stream, limit)?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]); // this rank is alone
    /// # comm.finalize(limit)?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn batch<'a>(&self) -> Batch<'a> {
        Batch::new(self.rank(), self.world_size(), self.carrier())
    }

    /// Refuses a batch that was made for another.
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<()> {
        batch.check(self, (self.rank(), self.world_size(), self.carrier()), self.device())
    }

    fn carrier(&self) -> Carrier {
        Carrier::Nccl(self.abilities())
    }

    /// Puts everything in `batch` on `stream`, as one launch. What is in it may read or write the buffers as if at the same time: nothing in a
    /// batch sees what another call of the same batch has done.
    ///
    /// NCCL is called on the communicator's own thread, which costs a hand-over there and back. Done when the stream has it, which the first time takes as long as NCCL needs to connect the ranks, and later some microseconds. Collective, as far
    /// as the calls in it are; whether all ranks mean the same, NCCL does not check.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): NCCL refused, failed earlier, or did not take it within `timeout`; abort the communicator.
    /// [`Misuse`](phalanx_core::Error::Misuse): a batch of another communicator, or a buffer of another device; [`Config`](phalanx_core::Error::Config): a stream
    /// of another device, one that is on each thread [another](Stream::from_raw), or one that captures a graph; nothing was begun.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::{DeviceBuffer, Stream};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// # let stream = &Stream::new(&device)?;
    /// let mut buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut batch = comm.batch();
    /// batch.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// comm.launch(&batch, stream, limit)?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]); // this rank is alone
    /// # comm.finalize(limit)?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn launch(&self, batch: &Batch<'_>, stream: &Stream, timeout: Duration) -> Result<()> {
        self.check(batch)?;
        let (calls, memory) = (batch.calls(), batch.memory());
        use_in_order(stream, memory, || {
            // SAFETY: the memory lives until its last use is over, and this is one.
            let outcome = unsafe { self.put(&calls, stream, timeout) }?;
            if outcome.is_err() {
                memory.iter().for_each(|piece| piece.lose());
            }
            outcome
        })
    }

    /// As [`launch`](Self::launch), on raw memory.
    ///
    /// # Errors
    /// As for `launch`; [`Misuse`](phalanx_core::Error::Misuse) and [`Unsupported`](phalanx_core::Error::Unsupported): nothing was begun.
    ///
    /// # Safety
    /// The memory of all calls is that of this device, has as many elements as they say, and is there, unused by anything else, until the stream is past the launch.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::{Call, DataType, DeviceBuffer, Kind, Stream};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// # let stream = &Stream::new(&device)?;
    /// let buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?; // or what another library has
    /// let (from, to) = (buffer.address(), buffer.address());
    /// let kind = Kind::AllReduce(ReduceOp::Sum.into());
    /// let call = Call { kind, from, to, count: 2, data_type: DataType::F32 };
    /// // SAFETY: the buffer has two elements, and lives until they were read behind the launch, on the same stream.
    /// unsafe { comm.launch_raw(&[call], stream, limit)? };
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # comm.finalize(limit)?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub unsafe fn launch_raw(&self, calls: &[Call], stream: &Stream, timeout: Duration) -> Result<()> {
        stream.check_capture()?;
        // SAFETY: as the caller says.
        unsafe { self.put(calls, stream, timeout) }?
    }

    /// The inner error: part of it may come to the stream later.
    ///
    /// # Safety
    /// As for `launch_raw`.
    unsafe fn put(&self, calls: &[Call], stream: &Stream, timeout: Duration) -> Result<Result<()>> {
        calls.iter().try_for_each(|call| call.check(self.world_size(), self.abilities()))?;
        stream.check(self.device())?;
        let deadline = Deadline::after(Instant::now(), timeout);
        let shared = &*self.shared;
        let _turn = shared.turn();
        shared.idle()?;
        let launch = Launch { nccl: shared.nccl, calls: calls.to_vec(), stream: stream.clone() };
        // SAFETY: as the caller says; the communicator lives while a call is in it.
        let answer = self.hand_over(move |raw| unsafe { launch.make(raw) });
        let late = || shared.late("ncclGroupEnd", timeout);
        let (operators, begun) = match answer.wait(deadline.remaining(Instant::now()), || shared.is_ending())
        {
            Ok(made) => made?,
            Err(Late::Never) => return Err(late()),
            Err(Late::UnderWay) => return Ok(Err(late())),
        };
        let outcome = begun.map(|()| match shared.settled(&deadline) {
            Ok(true) => {
                shared.all_is_well();
                Ok(())
            }
            Ok(false) => Err(late()),
            Err(error) => Err(error),
        });
        for operator in operators {
            // SAFETY: the communicator lives while it is locked.
            shared.at_once(|raw| unsafe { operator.destroy(shared.nccl, raw) });
        }
        outcome
    }
}

/// The launch that is handed over to the thread that calls NCCL.
struct Launch {
    nccl: Nccl,
    calls: Vec<Call>,
    stream: Stream,
}

impl Launch {
    /// Makes all calls as one, and returns the operators that were made for them.
    ///
    /// # Safety
    /// As for [`Communicator::launch_raw`], with a communicator that lives.
    unsafe fn make(&self, raw: RawComm) -> (Vec<Operator>, Result<()>) {
        let mut operators = Vec::with_capacity(self.calls.len());
        let outcome = self.calls.iter().try_for_each(|call| {
            // SAFETY: as the caller says.
            operators.push(unsafe { Operator::of(call, self.nccl, raw) }?);
            Ok(())
        });
        // SAFETY: as the caller says.
        let outcome = outcome.and_then(|()| unsafe { self.group(&operators, raw) });
        (operators, outcome)
    }

    /// # Safety
    /// As above.
    unsafe fn group(&self, operators: &[Operator], raw: RawComm) -> Result<()> {
        let table = self.nccl.table();
        // SAFETY: no memory is involved.
        self.nccl.check("ncclGroupStart", unsafe { (table.group_start)() }, Some(raw))?;
        let mut first = Ok(());
        for (call, operator) in self.calls.iter().zip(operators) {
            // SAFETY: as the caller says.
            let (name, code) = unsafe { call.make(self.nccl, raw, operator.raw, self.stream.raw()) };
            first = first.and_then(|()| self.begun(name, code, raw));
        }
        // Whatever happened, the group of this thread must end.
        // SAFETY: no memory but that of the calls is involved.
        let code = unsafe { (table.group_end)() };
        first.and_then(|()| self.begun("ncclGroupEnd", code, raw))
    }

    fn begun(&self, call: &'static str, code: Code, raw: RawComm) -> Result<()> {
        if code == IN_PROGRESS { Ok(()) } else { self.nccl.check(call, code, Some(raw)) }
    }
}
