//! Process groups: who is in them, and what is made of them.

use crate::errors::exception;
use crate::interrupt::Waits;
use crate::meeting::meeting;
use crate::site::caller;
use crate::work::duration;
use phalanx::ProcessGroup;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Some ranks that work together: this rank's handle on them.
///
/// The collectives of a group are performed one after the other, in the order of the calls, which must be the same on all ranks; messages go beside
/// them. Every call ends, at the latest when the group's ``timeout`` passes. When a rank dies, all others get ``PeerLostError`` that names it; ranks that call
/// different things get ``MismatchError`` with both places. After such an error the group raises ``PoisonedError`` with the first cause.
///
/// Buffers are numpy arrays, tensors on the CPU, or anything else with Python's buffer protocol or DLPack; they must be contiguous. Results are
/// written into them; nothing is copied. The interpreter's lock is released meanwhile. With ``async_op=True`` a call returns a ``Work`` at once, and the
/// buffers belong to the operation until that is over. Lengths are in elements.
#[pyclass(frozen, weakref, module = "phalanx")]
#[derive(Debug)]
pub(crate) struct Group {
    /// `None` once it was given up.
    group: RwLock<Option<ProcessGroup>>,
}

/// The group while a call uses it.
pub(crate) struct Held<'g>(RwLockReadGuard<'g, Option<ProcessGroup>>);

impl std::ops::Deref for Held<'_> {
    type Target = ProcessGroup;

    fn deref(&self) -> &ProcessGroup {
        self.0.as_ref().expect("`held` has looked")
    }
}

impl Group {
    pub(crate) fn new(group: ProcessGroup) -> Self {
        Self { group: RwLock::new(Some(group)) }
    }

    /// # Errors
    /// `ValueError`: it was finalized.
    pub(crate) fn held(&self) -> PyResult<Held<'_>> {
        let group = self.group.read().unwrap_or_else(PoisonError::into_inner);
        if group.is_none() {
            return Err(PyValueError::new_err("the group was finalized, and can no longer be used"));
        }
        Ok(Held(group))
    }

    fn taken(&self, py: Python<'_>) -> Option<ProcessGroup> {
        // Calls of other threads end first.
        py.detach(|| self.group.write().unwrap_or_else(PoisonError::into_inner).take())
    }
}

/// Runs `wait`, which waits in `group`, without the interpreter. Ctrl-C ends it.
pub(crate) fn waiting<R: Send>(
    py: Python<'_>,
    group: &ProcessGroup,
    wait: impl FnOnce(&ProcessGroup) -> phalanx::Result<R> + Send,
) -> PyResult<R> {
    let waits = Waits::in_group(group);
    let done = py.detach(|| wait(group));
    drop(waits);
    done.map_err(|error| py.check_signals().err().unwrap_or_else(|| exception(py, &error)))
}

#[pymethods]
impl Group {
    /// This rank within the group, below ``world_size``.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.held()?.rank())
    }

    /// How many ranks the group has.
    #[getter]
    fn world_size(&self) -> PyResult<usize> {
        Ok(self.held()?.world_size())
    }

    /// This rank among those of the group on its host.
    #[getter]
    fn local_rank(&self) -> PyResult<usize> {
        Ok(self.held()?.local_rank())
    }

    /// How many ranks of the group are on this host.
    #[getter]
    fn local_world_size(&self) -> PyResult<usize> {
        Ok(self.held()?.local_world_size())
    }

    /// The group's ranks as ranks of the job, in the order of the group.
    #[getter]
    fn members(&self) -> PyResult<Vec<usize>> {
        Ok(self.held()?.members().to_vec())
    }

    /// The name by which errors and traces know the group.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.held()?.id().to_string())
    }

    /// What performs the operations: ``shm``, ``tcp``, ….
    #[getter]
    fn backend_name(&self) -> PyResult<&'static str> {
        Ok(self.held()?.backend_name())
    }

    /// How long an operation may take, in seconds.
    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(self.held()?.timeout().as_secs_f64())
    }

    /// What performs the operations of the group, in words.
    fn describe(&self) -> PyResult<String> {
        Ok(self.held()?.describe())
    }

    /// This group with another time limit for each operation, in seconds. Ranks may have different limits; the first that passes fails the group for all.
    fn with_timeout(&self, seconds: f64) -> PyResult<Self> {
        Ok(Self::new(self.held()?.with_timeout(duration(seconds)?)))
    }

    /// This group with reductions that add up in the order of the ranks: the same bits on every machine, whatever carries the data.
    fn reproducible(&self) -> PyResult<Self> {
        Ok(Self::new(self.held()?.reproducible()))
    }

    /// Splits the group: ranks that give the same ``color`` are in one group, in the order of ``key``, then of their ranks. ``None`` as a color: in none.
    /// Collective.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let group = self.held()?.with_call_site(caller(py));
        Ok(waiting(py, &group, |group| group.split(color, key))?.map(Self::new))
    }

    /// A group of these ranks, in the order of their numbers here. Only they call it; a rank that is not among them gets ``None``.
    fn new_group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<Option<Self>> {
        let group = self.held()?.with_call_site(caller(py));
        // Of the group that is being made only its members know, so there is nothing that Ctrl-C could abort.
        Ok(meeting(py, "phalanx-new-group", move || group.new_group(&ranks))?.map(Self::new))
    }

    /// Leaves the group in good order, and waits until the others do. The group can't be used afterwards.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        match self.taken(py) {
            Some(group) => {
                let handle = group.clone();
                waiting(py, &handle, |_| group.finalize())
            }
            None => Ok(()),
        }
    }

    /// Drops this handle. Operations that run go on; the group is left when the last handle is gone.
    fn close(&self, py: Python<'_>) {
        let group = self.taken(py);
        py.detach(|| drop(group));
    }

    /// Fails the group on all its ranks, which are told the reason.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let group = self.held()?;
        py.detach(|| group.abort(reason));
        Ok(())
    }

    /// Writes this rank's latest operations to a file, for ``phalanx trace``.
    fn dump_trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let group = self.held()?;
        py.detach(|| group.dump_trace(path)).map_err(|error| exception(py, &error))
    }

    /// For the package: whether it was neither given up nor has failed.
    fn _is_usable(&self) -> bool {
        self.held().is_ok_and(|group| group.failure().is_none())
    }

    fn __repr__(&self) -> String {
        match self.held() {
            Ok(group) => format!("<Group {}: rank {} of {}>", group.id(), group.rank(), group.world_size()),
            Err(_) => "<Group: finalized>".into(),
        }
    }
}
