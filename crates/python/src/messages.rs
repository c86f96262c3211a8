//! Messages between two ranks, and objects that are pickled.

use crate::call::Call;
use crate::group::{Group, waiting};
use crate::memory::Region;
use crate::site::{Site, caller};
use crate::work::{Running, Work, duration};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_bytes::ByteBuf;

type Object<'py> = Bound<'py, PyAny>;

#[pymethods]
impl Group {
    /// Sends the buffer to rank ``dst``. Messages to one rank with one tag arrive in their order. Up to 256 KiB need no receiver.
    #[pyo3(signature = (buffer, dst, tag=0, *, async_op=false, site=None))]
    fn send(
        &self,
        buffer: Object<'_>,
        dst: usize,
        tag: u64,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> PyResult<Option<Work>> {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let done = call.message(
            Region::of(&buffer)?,
            |group, bytes| group.send(bytes, dst, tag),
            |group, region| Ok(Running::Nothing(group.begin_send(region, dst, tag)?)),
        )?;
        Ok(done.err())
    }

    /// Receives the message with this tag that rank ``src`` sent, which must have this length and these elements. With ``timeout``, in seconds, it raises
    /// ``NoMessageError`` if none has come by then, and the group goes on.
    #[pyo3(signature = (buffer, src, tag=0, *, timeout=None, async_op=false, site=None))]
    fn recv(
        &self,
        buffer: Object<'_>,
        src: usize,
        tag: u64,
        timeout: Option<f64>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> PyResult<Option<Work>> {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let timeout = limit(timeout, async_op)?;
        let done = call.message(
            Region::of(&buffer)?.writable("buffer")?,
            |group, bytes| group.recv(bytes, src, tag, timeout),
            |group, region| Ok(Running::Nothing(group.begin_recv(region, src, tag)?)),
        )?;
        Ok(done.err())
    }

    /// Receives a message with this tag from whichever rank sends one first. Returns that rank; with ``async_op``, a ``Work`` whose ``wait()`` does.
    #[pyo3(signature = (buffer, tag=0, *, timeout=None, async_op=false, site=None))]
    fn recv_any<'py>(
        &self,
        buffer: Object<'py>,
        tag: u64,
        timeout: Option<f64>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> PyResult<Object<'py>> {
        let py = buffer.py();
        let call = Call::of(py, self, async_op, site.as_ref())?;
        let timeout = limit(timeout, async_op)?;
        let done = call.message(
            Region::of(&buffer)?.writable("buffer")?,
            |group, bytes| group.recv_any(bytes, tag, timeout),
            |group, region| Ok(Running::Rank(group.begin_recv_any(region, tag)?)),
        )?;
        match done {
            Ok(rank) => Ok(rank.into_pyobject(py)?.into_any()),
            Err(work) => Ok(Bound::new(py, work)?.into_any()),
        }
    }

    /// Every rank gets the root's object. Objects are pickled: ranks trust each other.
    #[pyo3(signature = (object, root))]
    fn broadcast_object<'py>(&self, object: Object<'py>, root: usize) -> PyResult<Object<'py>> {
        let py = object.py();
        let (group, site) = (self.held()?, caller(py));
        let own = if group.rank() == root { Some(pickled(&object)?) } else { None };
        let at = group.with_call_site(site);
        unpickled(py, &waiting(py, &group, |_| at.broadcast_object(own, root))?)
    }

    /// Every rank gets the objects of all, in the order of the ranks.
    fn all_gather_object<'py>(&self, object: Object<'py>) -> PyResult<Vec<Object<'py>>> {
        let py = object.py();
        let (group, site) = (self.held()?, caller(py));
        let (own, at) = (pickled(&object)?, group.with_call_site(site));
        let all = waiting(py, &group, |_| at.all_gather_object(&own))?;
        all.iter().map(|bytes| unpickled(py, bytes)).collect()
    }

    /// The root gets the objects of all, in the order of the ranks; the others get ``None``.
    fn gather_object<'py>(&self, object: Object<'py>, root: usize) -> PyResult<Option<Vec<Object<'py>>>> {
        let py = object.py();
        let (group, site) = (self.held()?, caller(py));
        let (own, at) = (pickled(&object)?, group.with_call_site(site));
        let all = waiting(py, &group, |_| at.gather_object(&own, root))?;
        all.map(|all| all.iter().map(|bytes| unpickled(py, bytes)).collect()).transpose()
    }

    /// Every rank gets its object of the root's list, which has one for each rank; the others give ``None``.
    fn scatter_object<'py>(
        &self,
        py: Python<'py>,
        objects: Option<Vec<Object<'py>>>,
        root: usize,
    ) -> PyResult<Object<'py>> {
        let (group, site) = (self.held()?, caller(py));
        let objects = match objects.filter(|_| group.rank() == root) {
            Some(objects) => Some(objects.iter().map(pickled).collect::<PyResult<Vec<_>>>()?),
            None => None,
        };
        let at = group.with_call_site(site);
        unpickled(py, &waiting(py, &group, |_| at.scatter_object(objects.as_deref(), root))?)
    }

    /// Sends an object to rank ``dst``.
    #[pyo3(signature = (object, dst, tag=0))]
    fn send_object(&self, object: Object<'_>, dst: usize, tag: u64) -> PyResult<()> {
        let py = object.py();
        let (group, site) = (self.held()?, caller(py));
        let (own, at) = (pickled(&object)?, group.with_call_site(site));
        waiting(py, &group, |_| at.send_object(&own, dst, tag))
    }

    /// Receives the object with this tag that rank ``src`` sent.
    #[pyo3(signature = (src, tag=0))]
    fn recv_object<'py>(&self, py: Python<'py>, src: usize, tag: u64) -> PyResult<Object<'py>> {
        let (group, site) = (self.held()?, caller(py));
        let at = group.with_call_site(site);
        unpickled(py, &waiting(py, &group, |_| at.recv_object::<ByteBuf>(src, tag))?)
    }
}

fn limit(timeout: Option<f64>, is_async: bool) -> PyResult<Option<std::time::Duration>> {
    if is_async && timeout.is_some() {
        return Err(PyValueError::new_err(
            "a timeout of its own has only a call that waits: give it to Work.wait()",
        ));
    }
    timeout.map(duration).transpose()
}

fn pickled(object: &Object<'_>) -> PyResult<ByteBuf> {
    let bytes = object.py().import("pickle")?.call_method1("dumps", (object, -1))?;
    Ok(ByteBuf::from(bytes.cast::<PyBytes>()?.as_bytes().to_vec()))
}

fn unpickled<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Object<'py>> {
    py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))
}
