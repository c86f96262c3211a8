//! One operation on raw device memory, as it was asked for: by what way the data goes is another matter.

use crate::abilities::Abilities;
use crate::action::Action;
use crate::call::{Call, Kind, out_of_range};
use crate::element::{DataType, DeviceElement};
use crate::on_host::{Perform, perform};
use crate::sys::cuda::RawPointer;
use phalanx_core::{CallSite, DType, Error, Method, OpKind, ReduceOp, Result, Signature};
use phalanx_group::{Buffers, Request};

/// By what way the data of a batch goes, and so which operations there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// NCCL, which can do so much.
    Nccl(Abilities),
    /// Collectives of the host, through its memory.
    Host,
}

/// What elements are: to phalanx, to NCCL, and to the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ElementType {
    name: &'static str,
    dtype: Option<DType>,
    data_type: Option<DataType>,
    pub(crate) size: usize,
    /// Does an operation on elements in the host's memory.
    pub(crate) on_host: Perform,
}

impl ElementType {
    pub(crate) fn of<T: DeviceElement>() -> Self {
        let name = std::any::type_name::<T>();
        let (dtype, data_type, size) = (T::DTYPE, T::DATA_TYPE, size_of::<T>());
        Self { name, dtype, data_type, size, on_host: perform::<T::OnHost> }
    }
}

/// One operation on raw device memory.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// What is called.
    pub(crate) op: OpKind,
    pub(crate) action: Action,
    pub(crate) element: ElementType,
    /// Of one rank's block, where the data of a rank has several; else of all of it.
    pub(crate) count: usize,
}

impl Operation {
    /// The root, or the other end of a message.
    pub(crate) fn rank(&self) -> Option<usize> {
        match &self.action {
            Action::Collective(request) => request.root(),
            Action::Send { dst: peer, .. } | Action::Recv { src: peer, .. } => Some(*peer),
        }
    }

    fn reduce(&self) -> Option<ReduceOp> {
        match &self.action {
            Action::Collective(request) => request.reduce().copied(),
            Action::Send { .. } | Action::Recv { .. } => None,
        }
    }

    /// Where the input of rank `rank` is, and its output; 0 where it has none.
    pub(crate) fn memory(&self, rank: usize) -> (RawPointer, RawPointer) {
        let own = (rank * self.count * self.element.size) as u64;
        let request = match &self.action {
            Action::Collective(request) => request,
            Action::Send { from, .. } => return (*from, 0),
            Action::Recv { to, .. } => return (0, *to),
        };
        match request {
            Request::AllReduce { buffers, .. }
            | Request::Scan { buffers, .. }
            | Request::AllToAll { buffers, .. } => match *buffers {
                Buffers::InPlace(buffer) => (buffer, buffer),
                Buffers::Separate(input, output) => (input, output),
            },
            Request::Reduce { buffer, .. } | Request::Broadcast { buffer, .. } => (*buffer, *buffer),
            Request::AllGather { buffers, .. } => match *buffers {
                Buffers::InPlace(buffer) => (buffer + own, buffer),
                Buffers::Separate(input, output) => (input, output),
            },
            Request::ReduceScatter { buffers, .. } => match *buffers {
                Buffers::InPlace(buffer) => (buffer, buffer + own),
                Buffers::Separate(input, output) => (input, output),
            },
            Request::Gather { input, output, .. } => {
                let whole = output.unwrap_or(0);
                (input.unwrap_or(whole + own), whole)
            }
            Request::Scatter { input, output, .. } => {
                let whole = input.unwrap_or(0);
                (whole, output.unwrap_or(whole + own))
            }
            Request::Barrier => (0, 0),
        }
    }

    /// Refuses what the carrier has not, and ranks that there are not.
    pub(crate) fn check(&self, carrier: Carrier, me: usize, world_size: usize) -> Result<()> {
        let (op, name) = (self.op, self.element.name);
        if let Some(rank) = self.rank().filter(|&rank| rank >= world_size) {
            return Err(Error::misuse(op, out_of_range(rank, world_size)));
        }
        if !self.is_collective() && carrier == Carrier::Host && self.rank() == Some(me) {
            let end = if op == OpKind::Recv { "source" } else { "destination" };
            return Err(Error::misuse(op, format!("the {end} is this rank, which goes over NCCL only")));
        }
        let unsupported = |backend, hint| Err(Error::Unsupported { op, backend, hint });
        if let (Action::Collective(request @ (Request::Scan { .. } | Request::Barrier)), Carrier::Nccl(_)) =
            (&self.action, carrier)
        {
            return unsupported("nccl", format!("NCCL has no {}: make it of others", request.kind()));
        }
        if let Action::Collective(Request::AllToAll { buffers: Buffers::InPlace(_), .. }) = &self.action {
            let backend = if carrier == Carrier::Host { "host" } else { "nccl" };
            let hint = "on a device it goes from one buffer to another".to_owned();
            return unsupported(backend, hint);
        }
        let Some(reduce) = self.reduce() else { return Ok(()) };
        match (carrier, self.element.dtype) {
            // The same here as on the host, though NCCL takes what of a factor is whole.
            (Carrier::Nccl(_), Some(dtype)) if reduce.factor().is_some() && !dtype.is_float() => {
                reduce.check(dtype).map_err(|what| Error::misuse(op, what))
            }
            (Carrier::Nccl(abilities), _) => {
                let lack = abilities.lack(self.element.data_type, name, reduce);
                lack.map_or(Ok(()), |hint| unsupported("nccl", hint))
            }
            (Carrier::Host, None) => unsupported("host", format!("the host does not reduce {name}")),
            (Carrier::Host, Some(dtype)) => reduce.check(dtype).map_err(|what| Error::misuse(op, what)),
        }
    }

    /// Blocks of `count` elements that the root, or every rank, has in its input or its output: one for each rank, or one for all.
    pub(crate) fn blocks(&self, world_size: usize) -> usize {
        match &self.action {
            Action::Collective(
                Request::AllGather { .. }
                | Request::ReduceScatter { .. }
                | Request::AllToAll { .. }
                | Request::Gather { .. }
                | Request::Scatter { .. },
            ) => world_size,
            Action::Collective(
                Request::AllReduce { .. }
                | Request::Reduce { .. }
                | Request::Broadcast { .. }
                | Request::Scan { .. }
                | Request::Barrier,
            )
            | Action::Send { .. }
            | Action::Recv { .. } => 1,
        }
    }

    /// Whether it is between all ranks.
    pub(crate) fn is_collective(&self) -> bool {
        matches!(self.action, Action::Collective(_))
    }

    /// What all ranks must mean alike. It differs from every call that moves data over the host.
    pub(crate) fn signature(&self, world_size: usize, site: CallSite) -> Signature {
        let of_device = usize::from_be_bytes(*b"on GPUs.");
        let type_number = self.element.data_type.map_or(usize::MAX, |data_type| data_type as usize);
        let signature = Signature {
            op: self.op,
            dtype: self.element.dtype,
            count: (self.count * self.blocks(world_size)) as u64,
            reduce: self.reduce(),
            root: self.rank().map(|root| root as u32),
            detail: Signature::detail_of(&[of_device, type_number]),
            method: Method::UNSAID,
            site,
        };
        if self.op == OpKind::Barrier {
            // What NCCL moves for one is nobody's data.
            return Signature { dtype: None, count: 0, reduce: None, ..signature };
        }
        signature
    }

    /// What NCCL is asked to do; nothing for no elements, for which it does nothing.
    pub(crate) fn calls(&self, rank: usize, world_size: usize) -> Vec<Call> {
        if self.count == 0 {
            return Vec::new();
        }
        let size = self.element.size;
        let as_bytes = (DataType::U8, self.count * size);
        let (data_type, count) = self.element.data_type.map_or(as_bytes, |its| (its, self.count));
        let (from, to) = self.memory(rank);
        let call = |kind| Call { kind, from, to, count, data_type };
        let block = |address: RawPointer, i: usize| address + (i * self.count * size) as u64;
        let send = |dst: usize, i| Call { from: block(from, i), ..call(Kind::Send { dst }) };
        let recv = |src: usize, i| Call { to: block(to, i), ..call(Kind::Recv { src }) };
        let request = match &self.action {
            Action::Collective(request) => request,
            Action::Send { dst, .. } => return vec![send(*dst, 0)],
            Action::Recv { src, .. } => return vec![recv(*src, 0)],
        };
        match *request {
            Request::AllReduce { reduce, .. } => vec![call(Kind::AllReduce(reduce))],
            Request::Reduce { reduce, root, .. } => vec![call(Kind::Reduce { reduce, root })],
            Request::ReduceScatter { reduce, .. } => vec![call(Kind::ReduceScatter(reduce))],
            Request::AllGather { .. } => vec![call(Kind::AllGather)],
            Request::Broadcast { root, .. } => vec![call(Kind::Broadcast { root })],
            Request::AllToAll { .. } => {
                (0..world_size).flat_map(|other| [send(other, other), recv(other, other)]).collect()
            }
            Request::Gather { root, .. } => {
                let received = (0..world_size).filter(|_| rank == root).map(|src| recv(src, src));
                std::iter::once(send(root, 0)).chain(received).collect()
            }
            Request::Scatter { root, .. } => {
                let sent = (0..world_size).filter(|_| rank == root).map(|dst| send(dst, dst));
                std::iter::once(recv(root, 0)).chain(sent).collect()
            }
            // Refused by `check`.
            Request::Scan { .. } | Request::Barrier => Vec::new(),
        }
    }
}
