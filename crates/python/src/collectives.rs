//! The collectives of a group.

use crate::call::Call;
use crate::elements::Elements;
use crate::group::{Group, waiting};
use crate::memory::Region;
use crate::reduce_op::meant;
use crate::site::{Site, caller};
use crate::work::{Work, duration};
use phalanx::DType;
use phalanx::backend::{BlockExchange, Buffers, Request};
use pyo3::prelude::*;

type Object<'py> = Bound<'py, PyAny>;
type Done = PyResult<Option<Work>>;

/// What a barrier carries.
const NOTHING: Elements = Elements::Plain(DType::U8);

fn output(object: &Object<'_>) -> PyResult<Region> {
    Region::of(object)?.writable("output")
}

fn in_and_out(object: &Object<'_>) -> PyResult<Region> {
    Region::of(object)?.writable("buffer")
}

#[pymethods]
impl Group {
    /// Every rank ends with the combination of all ranks' buffers, in place. n elements on each rank.
    #[pyo3(signature = (buffer, op=None, *, async_op=false, site=None))]
    fn all_reduce(
        &self,
        buffer: Object<'_>,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let buffer = in_and_out(&buffer)?;
        let elements = buffer.elements;
        let reduce = call.reduce(meant(op.as_ref())?, elements)?;
        call.perform(Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce }, elements)
    }

    /// Rank r ends with the combination of the buffers of ranks 0 to r, in place. n elements on each rank.
    #[pyo3(signature = (buffer, op=None, *, async_op=false, site=None))]
    fn scan(
        &self,
        buffer: Object<'_>,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let buffer = in_and_out(&buffer)?;
        let elements = buffer.elements;
        let reduce = call.reduce(meant(op.as_ref())?, elements)?;
        call.perform(Request::Scan { buffers: Buffers::InPlace(buffer), reduce }, elements)
    }

    /// The root ends with the combination of all ranks' buffers, in place; elsewhere the buffer holds anything afterwards. n elements on each rank.
    #[pyo3(signature = (buffer, root, op=None, *, async_op=false, site=None))]
    fn reduce(
        &self,
        buffer: Object<'_>,
        root: usize,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let buffer = in_and_out(&buffer)?;
        let elements = buffer.elements;
        let reduce = call.reduce(meant(op.as_ref())?, elements)?;
        call.perform(Request::Reduce { buffer, reduce, root }, elements)
    }

    /// Every rank ends with the root's buffer. n elements on each rank.
    #[pyo3(signature = (buffer, root, *, async_op=false, site=None))]
    fn broadcast(
        &self,
        buffer: Object<'_>,
        root: usize,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(buffer.py(), self, async_op, site.as_ref())?;
        let buffer = in_and_out(&buffer)?;
        let elements = buffer.elements;
        call.perform(Request::Broadcast { buffer, root }, elements)
    }

    /// Every rank ends with the inputs of all, in the order of the ranks. n elements in, world_size × n out. The input may be this rank's block of the
    /// output.
    #[pyo3(signature = (input, output, *, async_op=false, site=None))]
    fn all_gather(
        &self,
        input: Object<'_>,
        output: Object<'_>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.gathered(&input, &output, None, async_op, site.as_ref())
    }

    /// As ``all_gather``, with ``counts[r]`` elements from rank r. The output has their sum.
    #[pyo3(signature = (input, output, counts, *, async_op=false, site=None))]
    fn all_gather_v(
        &self,
        input: Object<'_>,
        output: Object<'_>,
        counts: Vec<usize>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.gathered(&input, &output, Some(&counts), async_op, site.as_ref())
    }

    /// Every rank ends with its block of the combination of all inputs. world_size × n elements in, n out. The output may be this rank's block of the
    /// input; the rest of that holds anything afterwards then.
    #[pyo3(signature = (input, output, op=None, *, async_op=false, site=None))]
    fn reduce_scatter(
        &self,
        input: Object<'_>,
        output: Object<'_>,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.scattered_sum(&input, &output, None, op.as_ref(), async_op, site.as_ref())
    }

    /// As ``reduce_scatter``, with ``counts[r]`` elements for rank r. The input has their sum.
    #[pyo3(signature = (input, output, counts, op=None, *, async_op=false, site=None))]
    fn reduce_scatter_v(
        &self,
        input: Object<'_>,
        output: Object<'_>,
        counts: Vec<usize>,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.scattered_sum(&input, &output, Some(&counts), op.as_ref(), async_op, site.as_ref())
    }

    /// The root ends with the inputs of all, in the order of the ranks. n elements in; world_size × n out on the root, ``None`` elsewhere.
    /// The root's input may be its block of the output.
    #[pyo3(signature = (input, output, root, *, async_op=false, site=None))]
    fn gather(
        &self,
        input: Object<'_>,
        output: Option<Object<'_>>,
        root: usize,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.gathered_at(root, &input, output.as_ref(), None, async_op, site.as_ref())
    }

    /// As ``gather``, with ``counts[r]`` elements from rank r. All ranks give the same counts.
    #[pyo3(signature = (input, output, counts, root, *, async_op=false, site=None))]
    fn gather_v(
        &self,
        input: Object<'_>,
        output: Option<Object<'_>>,
        counts: Vec<usize>,
        root: usize,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.gathered_at(root, &input, output.as_ref(), Some(&counts), async_op, site.as_ref())
    }

    /// Every rank ends with its block of the root's input. world_size × n elements in on the root, ``None`` elsewhere; n out.
    /// The root's output may be its block of the input.
    #[pyo3(signature = (input, output, root, *, async_op=false, site=None))]
    fn scatter(
        &self,
        input: Option<Object<'_>>,
        output: Object<'_>,
        root: usize,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.scattered_from(root, input.as_ref(), &output, None, async_op, site.as_ref())
    }

    /// As ``scatter``, with ``counts[r]`` elements for rank r. All ranks give the same counts.
    #[pyo3(signature = (input, output, counts, root, *, async_op=false, site=None))]
    fn scatter_v(
        &self,
        input: Option<Object<'_>>,
        output: Object<'_>,
        counts: Vec<usize>,
        root: usize,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        self.scattered_from(root, input.as_ref(), &output, Some(&counts), async_op, site.as_ref())
    }

    /// Every rank ends with one block of each rank's input. world_size × n elements in and out.
    #[pyo3(signature = (input, output, *, async_op=false, site=None))]
    fn all_to_all(
        &self,
        input: Object<'_>,
        output: Object<'_>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(input.py(), self, async_op, site.as_ref())?;
        let (input, output) = (Region::of(&input)?, self::output(&output)?);
        call.check_apart(&input, &output)?;
        let elements = input.elements;
        let count = call.equal_blocks(input.count())?.block(0).len();
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Even { count });
        call.perform(Request::AllToAll { buffers, blocks }, elements)
    }

    /// As ``all_to_all``, with ``send_counts[r]`` elements to rank r and ``recv_counts[r]`` from it.
    #[pyo3(signature = (input, send_counts, output, recv_counts, *, async_op=false, site=None))]
    fn all_to_all_v(
        &self,
        input: Object<'_>,
        send_counts: Vec<usize>,
        output: Object<'_>,
        recv_counts: Vec<usize>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(input.py(), self, async_op, site.as_ref())?;
        let (input, output) = (Region::of(&input)?, self::output(&output)?);
        call.check_apart(&input, &output)?;
        let elements = input.elements;
        let (send, recv) = (call.blocks(&send_counts, elements)?, call.blocks(&recv_counts, elements)?);
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Uneven { send, recv });
        call.perform(Request::AllToAll { buffers, blocks }, elements)
    }

    /// All buffers as ``all_reduce`` would, one after the other. All have elements of one type.
    #[pyo3(signature = (buffers, op=None, *, async_op=false, site=None))]
    fn all_reduce_coalesced(
        &self,
        py: Python<'_>,
        buffers: Vec<Object<'_>>,
        op: Option<Object<'_>>,
        async_op: bool,
        site: Option<Bound<'_, Site>>,
    ) -> PyResult<Option<Vec<Work>>> {
        let site = match site {
            Some(site) => site,
            None => Bound::new(py, Site(caller(py)))?,
        };
        let works: Vec<Option<Work>> = buffers
            .into_iter()
            .map(|buffer| self.all_reduce(buffer, op.clone(), async_op, Some(site.clone())))
            .collect::<PyResult<_>>()?;
        Ok(async_op.then(|| works.into_iter().flatten().collect()))
    }

    /// Waits until all ranks have come here.
    #[pyo3(signature = (*, async_op=false, site=None))]
    fn barrier(&self, py: Python<'_>, async_op: bool, site: Option<Bound<'_, Site>>) -> Done {
        let call = Call::of(py, self, async_op, site.as_ref())?;
        call.perform(Request::Barrier, NOTHING)
    }

    /// Waits until all ranks have come here, for at most ``timeout`` seconds; the error says which have not.
    fn monitored_barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let (group, timeout) = (self.held()?, duration(timeout)?);
        let at = group.with_call_site(caller(py));
        waiting(py, &group, |_| at.monitored_barrier(timeout))
    }
}

impl Group {
    fn gathered(
        &self,
        input: &Object<'_>,
        output: &Object<'_>,
        counts: Option<&[usize]>,
        async_op: bool,
        site: Option<&Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(input.py(), self, async_op, site)?;
        let (input, output) = (Region::of(input)?, self::output(output)?);
        let elements = output.elements;
        let blocks = match counts {
            Some(counts) => call.blocks(counts, elements)?,
            None => call.equal_blocks(input.count().saturating_mul(call.group.world_size()))?,
        };
        let own = call.own(&blocks, elements);
        let buffers = call.buffers(input, output, |input, whole| input.is_part(whole, own), false)?;
        call.perform(Request::AllGather { buffers, blocks }, elements)
    }

    fn scattered_sum(
        &self,
        input: &Object<'_>,
        output: &Object<'_>,
        counts: Option<&[usize]>,
        op: Option<&Object<'_>>,
        async_op: bool,
        site: Option<&Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(input.py(), self, async_op, site)?;
        let (input, output) = (Region::of(input)?, self::output(output)?);
        let elements = input.elements;
        let reduce = call.reduce(meant(op)?, elements)?;
        let blocks = match counts {
            Some(counts) => call.blocks(counts, elements)?,
            None => call.equal_blocks(input.count())?,
        };
        let own = call.own(&blocks, elements);
        let is_one = |whole: &Region, output: &Region| output.is_part(whole, own);
        let buffers = match call.buffers(input, output, is_one, true)? {
            Buffers::InPlace(whole) => Buffers::InPlace(whole.writable("input")?),
            separate => separate,
        };
        call.perform(Request::ReduceScatter { buffers, blocks, reduce }, elements)
    }

    fn gathered_at(
        &self,
        root: usize,
        input: &Object<'_>,
        output: Option<&Object<'_>>,
        counts: Option<&[usize]>,
        async_op: bool,
        site: Option<&Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(input.py(), self, async_op, site)?;
        let (input, output) = (Region::of(input)?, output.map(self::output).transpose()?);
        let elements = input.elements;
        let blocks = match counts {
            Some(counts) => call.blocks(counts, elements)?,
            None => call.equal_blocks(input.count().saturating_mul(call.group.world_size()))?,
        };
        let own = call.own(&blocks, elements);
        let (input, output) = match output {
            None => (Some(input), None),
            Some(output) => {
                match call.buffers(input, output, |input, whole| input.is_part(whole, own), false)? {
                    Buffers::InPlace(whole) => (None, Some(whole)),
                    Buffers::Separate(input, output) => (Some(input), Some(output)),
                }
            }
        };
        call.perform(Request::Gather { input, output, blocks, root }, elements)
    }

    fn scattered_from(
        &self,
        root: usize,
        input: Option<&Object<'_>>,
        output: &Object<'_>,
        counts: Option<&[usize]>,
        async_op: bool,
        site: Option<&Bound<'_, Site>>,
    ) -> Done {
        let call = Call::of(output.py(), self, async_op, site)?;
        let (input, output) = (input.map(Region::of).transpose()?, self::output(output)?);
        let elements = output.elements;
        let blocks = match counts {
            Some(counts) => call.blocks(counts, elements)?,
            None => call.equal_blocks(output.count().saturating_mul(call.group.world_size()))?,
        };
        let own = call.own(&blocks, elements);
        let (input, output) = match input {
            None => (None, Some(output)),
            Some(input) => {
                match call.buffers(input, output, |whole, output| output.is_part(whole, own), true)? {
                    Buffers::InPlace(whole) => (Some(whole), None),
                    Buffers::Separate(input, output) => (Some(input), Some(output)),
                }
            }
        };
        call.perform(Request::Scatter { input, output, blocks, root }, elements)
    }
}
