//! How a call from Python becomes an operation: its buffers are looked at, its place is found, and it is performed here or begun.

use crate::elements::Elements;
use crate::errors::exception;
use crate::group::{Group, Held, waiting};
use crate::memory::Region;
use crate::site::{Site, caller};
use crate::work::{Running, Work};
use phalanx::backend::{Buffers, Layout, Request, Untyped};
use phalanx::{CallSite, ReduceOp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;

/// What every operation takes beside its buffers.
pub(crate) struct Call<'py, 'g> {
    py: Python<'py>,
    pub(crate) group: Held<'g>,
    is_async: bool,
    site: CallSite,
}

/// A request on Python's memory.
pub(crate) type RegionRequest = Request<Region, Region>;

impl<'py, 'g> Call<'py, 'g> {
    pub(crate) fn of(
        py: Python<'py>,
        group: &'g Group,
        is_async: bool,
        site: Option<&Bound<'py, Site>>,
    ) -> PyResult<Self> {
        let site = site.map_or_else(|| caller(py), |site| site.get().0.clone());
        Ok(Self { py, group: group.held()?, is_async, site })
    }

    /// The operator for these elements.
    pub(crate) fn reduce(&self, op: ReduceOp, elements: Elements) -> PyResult<ReduceOp> {
        elements.reduce(op).map_err(|what| PyValueError::new_err(format!("{what}, at {}", self.site)))
    }

    /// The blocks of so many of Python's elements for each rank.
    pub(crate) fn blocks(&self, counts: &[usize], elements: Elements) -> PyResult<Layout> {
        let (n, world_size, site) = (counts.len(), self.group.world_size(), &self.site);
        if n != world_size {
            return Err(PyValueError::new_err(format!("{n} counts for {world_size} ranks, at {site}")));
        }
        let parts = elements.parts();
        let scaled: Option<Vec<usize>> = counts.iter().map(|count| count.checked_mul(parts)).collect();
        let sum =
            scaled.as_ref().and_then(|counts| counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)));
        match (scaled, sum) {
            (Some(counts), Some(_)) => Ok(Layout::from_counts(&counts)),
            _ => Err(PyValueError::new_err(format!("counts whose sum does not fit, at {site}"))),
        }
    }

    /// Equal blocks of a whole that has so many elements of phalanx's.
    pub(crate) fn equal_blocks(&self, count: usize) -> PyResult<Layout> {
        let world_size = self.group.world_size();
        if !count.is_multiple_of(world_size) {
            let site = &self.site;
            return Err(PyValueError::new_err(format!("{count} elements for {world_size} ranks, at {site}")));
        }
        Ok(Layout::even(world_size, count))
    }

    /// The range of this rank's block in bytes of the whole.
    pub(crate) fn own(&self, blocks: &Layout, elements: Elements) -> Range<usize> {
        let (block, size) = (blocks.block(self.group.rank()), elements.dtype().size());
        block.start * size..block.end * size
    }

    /// An input and an output, which may be one where `is_one`.
    pub(crate) fn buffers(
        &self,
        input: Region,
        output: Region,
        is_one: impl FnOnce(&Region, &Region) -> bool,
        whole_is_input: bool,
    ) -> PyResult<Buffers<Region, Region>> {
        self.check_alike(&input, &output)?;
        if !input.overlaps(&output) {
            return Ok(Buffers::Separate(input, output));
        }
        if !is_one(&input, &output) {
            return Err(self.overlapping());
        }
        let (whole, part) = if whole_is_input { (input, output) } else { (output, input) };
        part.release(self.py);
        Ok(Buffers::InPlace(whole))
    }

    /// Refuses an input and an output that the operation can't tell apart, or of unlike elements.
    pub(crate) fn check_apart(&self, input: &Region, output: &Region) -> PyResult<()> {
        self.check_alike(input, output)?;
        if input.overlaps(output) { Err(self.overlapping()) } else { Ok(()) }
    }

    fn check_alike(&self, input: &Region, output: &Region) -> PyResult<()> {
        let (from, to) = (input.elements, output.elements);
        if from == to {
            return Ok(());
        }
        let site = &self.site;
        Err(PyValueError::new_err(format!("the input has elements of {from}, the output of {to}, at {site}")))
    }

    fn overlapping(&self) -> PyErr {
        let site = &self.site;
        PyValueError::new_err(format!(
            "input and output overlap in memory: give the operation two buffers, at {site}"
        ))
    }

    /// Performs `request`, whose buffers have these elements, or begins it.
    pub(crate) fn perform(self, request: RegionRequest, elements: Elements) -> PyResult<Option<Work>> {
        let Self { py, group, is_async, site } = self;
        if is_async {
            let begun = py.detach(|| group.untyped(elements.dtype()).called_at(site).begin(request));
            let work = begun.map_err(|error| exception(py, &error))?;
            return Ok(Some(Work::new(Running::Nothing(work))));
        }
        let mut request = request;
        let lent = request.each().map(
            // SAFETY: input and output are apart, which was looked at, and the program leaves both alone while this call lasts.
            |input: &mut Region| unsafe { input.read() },
            // SAFETY: as above.
            |output: &mut Region| unsafe { output.write() },
        );
        let done = waiting(py, &group, |group| group.untyped(elements.dtype()).called_at(site).request(lent));
        request.map(|input| input.release(py), |output| output.release(py));
        done.map(|()| None)
    }

    /// Performs or begins a message of `region`.
    pub(crate) fn message<R: Send>(
        self,
        mut region: Region,
        perform: impl FnOnce(&Untyped<'_>, &mut [u8]) -> phalanx::Result<R> + Send,
        begin: impl FnOnce(&Untyped<'_>, Region) -> phalanx::Result<Running> + Send,
    ) -> PyResult<Result<R, Work>> {
        let Self { py, group, is_async, site } = self;
        let dtype = region.elements.dtype();
        if is_async {
            let begun = py.detach(|| begin(&group.untyped(dtype).called_at(site), region));
            return Ok(Err(Work::new(begun.map_err(|error| exception(py, &error))?)));
        }
        // SAFETY: the program leaves the buffer alone while this call lasts; a message that is sent is only read.
        let bytes = unsafe { region.write() };
        let done = waiting(py, &group, |group| perform(&group.untyped(dtype).called_at(site), bytes));
        region.release(py);
        done.map(Ok)
    }
}
