//! Pre-multiplied sums: a rank's contribution is multiplied by its factor where it enters, and what backends perform is a sum.
//!
//! Products of half types are `f32` until the end, so they travel, and are added, as `f32`. All others are formed in place, or on the way to the output.

use crate::engine::scratch::Scratch;
use crate::group::call::HostRequest;
use crate::group::memory::{Changed, OwnedBuffer, Readable, Writable};
use crate::group::pending::Bytes;
use crate::group::request::{Buffers, Request};
use phalanx_core::{DType, ReduceOp, Result};
use phalanx_kernels::{Conversion, Factor, copy_slice};
use std::any::Any;
use std::convert::Infallible;
use std::ops::Range;

/// How the contribution to a request becomes products, if it has a factor, for elements of type `dtype`.
#[inline]
pub(crate) fn of<I, O>(request: &Request<I, O>, dtype: Option<DType>) -> Option<Products> {
    let (factor, dtype) = (request.reduce()?.factor()?, dtype?);
    Some(Products { factor: Factor::new(dtype, factor)?, dtype })
}

/// How contributions of one type become products.
#[derive(Debug, Clone)]
pub(crate) struct Products {
    factor: Factor,
    dtype: DType,
}

impl Products {
    /// Performs `request` on rank `rank`: `perform` is given the sum of products.
    pub(crate) fn perform(
        self,
        request: HostRequest<'_>,
        rank: usize,
        perform: impl FnOnce(HostRequest<'_>) -> Result<()>,
    ) -> Result<()> {
        match self.stage(request, rank).expect("a slice keeps its length") {
            (sum, Stage::InPlace(buffer)) => perform(sum.on(buffer)),
            (sum, Stage::Aside(mut aside)) => {
                perform(sum.on(aside.products.bytes_mut()))?;
                aside.finish().expect("a slice keeps its length");
                Ok(())
            }
        }
    }

    /// The sum of products, in buffers that an operation owns. It is completed with the buffer of the request's [result](Request::into_result).
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn owned(
        self,
        request: Request<OwnedBuffer, OwnedBuffer>,
        rank: usize,
    ) -> Result<Request<OwnedBuffer, OwnedBuffer>, Changed> {
        Ok(match self.stage(request, rank)? {
            (sum, Stage::InPlace(buffer)) => sum.on(buffer),
            (sum, Stage::Aside(aside)) => sum.on(OwnedBuffer::new(Box::new(aside))),
        })
    }

    /// Forms the products.
    fn stage<I: Readable, O: Writable>(
        self,
        request: Request<I, O>,
        rank: usize,
    ) -> Result<(Sum, Stage<O>), Changed> {
        let Self { factor, dtype } = self;
        let (sum, mut buffers) = Sum::of(request);
        let len = match &buffers {
            Buffers::InPlace(buffer) => buffer.len_bytes(),
            Buffers::Separate(input, _) => input.len_bytes(),
        };
        let own = sum.result(rank, len / dtype.size());
        let own = own.start * dtype.size()..own.end * dtype.size();
        let stage = match &mut buffers {
            Buffers::InPlace(buffer) if !factor.widens() => {
                factor.multiply_in_place(buffer.write()?);
                None
            }
            Buffers::Separate(input, output) if !factor.widens() && own.len() == len => {
                factor.multiply(input.read()?, output.write()?);
                None
            }
            Buffers::InPlace(buffer) => Some((Self::aside(&factor, buffer.write()?), own.clone())),
            Buffers::Separate(input, _) => Some((Self::aside(&factor, input.read()?), 0..own.len())),
        };
        let (Buffers::InPlace(output) | Buffers::Separate(_, output)) = buffers;
        Ok(match stage {
            None => (sum, Stage::InPlace(output)),
            Some((products, place)) => {
                let conversion = Conversion::new(dtype);
                (sum, Stage::Aside(Aside { products, own, output, place, conversion }))
            }
        })
    }

    fn aside(factor: &Factor, contribution: &[u8]) -> Scratch {
        let len = contribution.len();
        let mut products = Scratch::new(if factor.widens() { 2 * len } else { len });
        factor.multiply(contribution, products.bytes_mut());
        products
    }
}

/// A reduction apart from its buffers: a sum, in place.
struct Sum(Request<Infallible, ()>);

impl Sum {
    /// Takes a reduction apart.
    ///
    /// # Panics
    /// If it is none: only these have an operator, and so a factor.
    fn of<I, O>(request: Request<I, O>) -> (Self, Buffers<I, O>) {
        let (place, reduce) = (Buffers::InPlace(()), ReduceOp::Sum);
        let (sum, buffers) = match request {
            Request::AllReduce { buffers, .. } => (Request::AllReduce { buffers: place, reduce }, buffers),
            Request::Scan { buffers, .. } => (Request::Scan { buffers: place, reduce }, buffers),
            Request::Reduce { buffer, root, .. } => {
                (Request::Reduce { buffer: (), reduce, root }, Buffers::InPlace(buffer))
            }
            Request::ReduceScatter { buffers, blocks, .. } => {
                (Request::ReduceScatter { buffers: place, blocks, reduce }, buffers)
            }
            Request::Broadcast { .. }
            | Request::AllGather { .. }
            | Request::Gather { .. }
            | Request::Scatter { .. }
            | Request::AllToAll { .. }
            | Request::Barrier => unreachable!("what moves data, or none, has no factor"),
        };
        (Self(sum), buffers)
    }

    /// The elements of the result of rank `rank`, in a buffer of `count`.
    fn result(&self, rank: usize, count: usize) -> Range<usize> {
        self.0.blocks().map_or(0..count, |blocks| blocks.block(rank))
    }

    /// The sum in `buffer`.
    fn on<I, O>(self, buffer: O) -> Request<I, O> {
        let mut buffer = Some(buffer);
        self.0.map(|never| match never {}, |()| buffer.take().expect("a sum in place has one buffer"))
    }
}

/// Where the products of a request are, of which the sum is formed in place.
enum Stage<O> {
    /// In the output, or in the buffer that is input and output.
    InPlace(O),
    Aside(Aside<O>),
}

/// Products beside the buffers of the request.
struct Aside<O> {
    products: Scratch,
    /// The bytes that the result would have among contributions.
    own: Range<usize>,
    output: O,
    /// The bytes of the output that it becomes.
    place: Range<usize>,
    /// To the type of the output, where products have another.
    conversion: Option<Conversion>,
}

impl<O: Writable> Aside<O> {
    /// The sum is formed: the result goes where it belongs.
    fn finish(&mut self) -> Result<(), Changed> {
        let Self { products, own, output, place, conversion } = self;
        let output = &mut output.write()?[place.clone()];
        match conversion {
            Some(conversion) => conversion.narrow(&products.bytes()[2 * own.start..2 * own.end], output),
            None => copy_slice(output, &products.bytes()[own.clone()]),
        }
        Ok(())
    }
}

impl Bytes for Aside<OwnedBuffer> {
    fn bytes(&mut self) -> &mut [u8] {
        self.products.bytes_mut()
    }

    /// The output, with the result. One that is not as long as it was comes back as something else, which is an error of whoever waits.
    fn into_any(mut self: Box<Self>) -> Box<dyn Any + Send> {
        match self.finish() {
            Ok(()) => self.output.into_inner().into_any(),
            Err(changed) => Box::new(changed),
        }
    }
}
