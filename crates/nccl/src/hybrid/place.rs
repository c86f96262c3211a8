//! Where data is, and by which half it goes.

use super::HybridGroup;
use crate::buffer::DeviceBuffer;
use crate::element::DeviceElement;
use crate::group::Work;
use phalanx_core::{CallSite, Element, ReduceOp, Result};

/// A place where elements are: `[T]` is memory of the host, [`DeviceBuffer<T>`](DeviceBuffer) of a device.
pub trait Place: Placed {}

impl<T: Element> Place for [T] {}
impl<T: DeviceElement> Place for DeviceBuffer<T> {}

/// What is asked of a [`HybridGroup`]. Roots and peers stand last.
#[derive(Debug)]
pub enum Request<'a, P: ?Sized> {
    AllReduce(&'a mut P, ReduceOp),
    Reduce(&'a mut P, ReduceOp, usize),
    Broadcast(&'a mut P, usize),
    AllGather(&'a P, &'a mut P),
    ReduceScatter(&'a P, &'a mut P, ReduceOp),
    AllToAll(&'a P, &'a mut P),
    Gather(&'a P, Option<&'a mut P>, usize),
    Scatter(Option<&'a P>, &'a mut P, usize),
    Send(&'a P, usize),
    Recv(&'a mut P, usize),
}

/// The half of a [`HybridGroup`] that can reach a place. Nobody outside can name it.
pub trait Placed {
    fn perform(request: Request<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work>;
}

impl<T: Element> Placed for [T] {
    fn perform(request: Request<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work> {
        let host = all.host().with_call_site(site);
        let outcome = match request {
            Request::AllReduce(buffer, op) => host.all_reduce(buffer, op),
            Request::Reduce(buffer, op, root) => host.reduce(buffer, op, root),
            Request::Broadcast(buffer, root) => host.broadcast(buffer, root),
            Request::AllGather(input, output) => host.all_gather(input, output),
            Request::ReduceScatter(input, output, op) => host.reduce_scatter(input, output, op),
            Request::AllToAll(input, output) => host.all_to_all(input, output),
            Request::Gather(input, output, root) => host.gather(input, output, root),
            Request::Scatter(input, output, root) => host.scatter(input, output, root),
            Request::Send(buffer, dst) => host.send(buffer, dst, 0),
            Request::Recv(buffer, src) => host.recv(buffer, src, 0),
        };
        // Others may wait in the half that has not heard of it.
        outcome.inspect_err(|_| drop(all.health().failure())).map(|()| Work::over())
    }
}

impl<T: DeviceElement> Placed for DeviceBuffer<T> {
    fn perform(request: Request<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work> {
        let mut batch = all.batch();
        match request {
            Request::AllReduce(buffer, op) => batch.all_reduce(buffer, op),
            Request::Reduce(buffer, op, root) => batch.reduce(buffer, op, root),
            Request::Broadcast(buffer, root) => batch.broadcast(buffer, root),
            Request::AllGather(input, output) => batch.all_gather(input, output),
            Request::ReduceScatter(input, output, op) => batch.reduce_scatter(input, output, op),
            Request::AllToAll(input, output) => batch.all_to_all(input, output),
            Request::Gather(input, output, root) => batch.gather(input, output, root),
            Request::Scatter(input, output, root) => batch.scatter(input, output, root),
            Request::Send(buffer, dst) => batch.send(buffer, dst),
            Request::Recv(buffer, src) => batch.recv(buffer, src),
        }?;
        all.launch_at(&batch, site)
    }
}
