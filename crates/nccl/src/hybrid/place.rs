//! Where data is, and by which half it goes.

use super::HybridGroup;
use crate::buffer::DeviceBuffer;
use crate::element::DeviceElement;
use crate::group::Work;
use phalanx_core::{CallSite, Element, Error, OpKind, Result};
use phalanx_group::Request;

/// A place where elements are: `[T]` is memory of the host, [`DeviceBuffer<T>`](DeviceBuffer) of a device.
pub trait Place: Placed {}

impl<T: Element> Place for [T] {}
impl<T: DeviceElement> Place for DeviceBuffer<T> {}

/// What is asked of a [`HybridGroup`] for memory of one kind.
#[derive(Debug)]
pub enum Asked<'a, P: ?Sized> {
    Collective(Request<&'a P, &'a mut P>),
    Send(&'a P, usize),
    Recv(&'a mut P, usize),
}

/// The half of a [`HybridGroup`] that can reach a place. Nobody outside can name it.
pub trait Placed {
    /// Elements in it.
    fn count(&self) -> usize;
    fn perform(asked: Asked<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work>;
    /// Receives from whichever rank sends first, and returns that rank.
    fn recv_any(&mut self, all: &HybridGroup, site: CallSite) -> Result<usize>;
}

impl<T: Element> Placed for [T] {
    fn count(&self) -> usize {
        self.len()
    }

    fn perform(asked: Asked<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work> {
        let host = all.host().with_call_site(site);
        let outcome = match asked {
            Asked::Collective(request) => host.request(request),
            Asked::Send(buffer, dst) => host.send(buffer, dst, 0),
            Asked::Recv(buffer, src) => host.recv(buffer, src, 0),
        };
        // Others may wait in the half that has not heard of it.
        outcome.inspect_err(|_| drop(all.health().failure())).map(|()| Work::over())
    }

    fn recv_any(&mut self, all: &HybridGroup, site: CallSite) -> Result<usize> {
        let outcome = all.host().with_call_site(site).recv_any(self, 0);
        outcome.inspect_err(|_| drop(all.health().failure()))
    }
}

impl<T: DeviceElement> Placed for DeviceBuffer<T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn perform(asked: Asked<'_, Self>, all: &HybridGroup, site: CallSite) -> Result<Work> {
        let mut batch = all.batch();
        match asked {
            Asked::Collective(request) => batch.request(request),
            Asked::Send(buffer, dst) => batch.send(buffer, dst),
            Asked::Recv(buffer, src) => batch.recv(buffer, src),
        }?;
        all.launch_at(&batch, site)
    }

    fn recv_any(&mut self, _all: &HybridGroup, site: CallSite) -> Result<usize> {
        let hint = format!(
            "NCCL receives only from a rank that is named: use recv, or receive into memory of the host, at {site}"
        );
        Err(Error::Unsupported { op: OpKind::RecvAny, backend: "nccl", hint })
    }
}
