//! Collectives of many tensors in one call: over the host those of [`ProcessGroup`], on a GPU one launch.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::element::{Shared, Taken, read, unsupported_dtype, with_element};
use crate::group::Reach;
use crate::perform::{alike, in_order};
#[cfg(feature = "cuda")]
use crate::request::Shape;
#[cfg(feature = "cuda")]
use crate::tensor::zeros;
use crate::tensor::{dealt, gathered};
use crate::{Group, Result};
use candle_core::Tensor;
#[cfg(feature = "cuda")]
use phalanx::backend::{Buffers, Layout};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup, ReduceOp};

/// As [`all_reduce`](crate::all_reduce) of each of `tensors`, in place, which are of one type and in one place: small ones travel together.
///
/// While it runs the tensors have no memory, so nobody else may use them.
///
/// # Errors
/// [`phalanx::Error::Misuse`] for tensors of unlike types or places, [`Error::Candle`](crate::Error::Candle) for two that share their memory. In both cases
/// nothing was sent.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use phalanx::ReduceOp;
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let (weight, bias) = (Tensor::ones((2, 2), DType::F32, &Device::Cpu)?, Tensor::new(&[3f32], &Device::Cpu)?);
/// phalanx_candle::all_reduce_coalesced(&group, &[&weight, &bias], ReduceOp::Sum)?;
/// assert_eq!((weight.to_vec2::<f32>()?, bias.to_vec1::<f32>()?), (vec![vec![2.0; 2]; 2], vec![6.0]));
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn all_reduce_coalesced(group: &impl Group, tensors: &[&Tensor], op: ReduceOp) -> Result<()> {
    let (kind, site) = (OpKind::AllReduce, CallSite::caller());
    let Some(first) = tensors.first() else {
        return Ok(group.host().with_call_site(site).all_reduce_coalesced::<f32>(&mut [], op)?);
    };
    for tensor in tensors {
        alike(kind, first, tensor)?;
        in_order(kind, tensor)?;
    }
    let reach = Reach::of(group, kind, first.device())?;
    with_element!(first.dtype(),
        T => match reach {
            Reach::Host(group) => {
                let mut taken = tensors.iter().map(|tensor| Taken::of(tensor)).collect::<Result<Vec<_>, _>>()?;
                let mut buffers = taken.iter_mut().map(Taken::elements::<T>).collect::<Result<Vec<_>, _>>()?;
                Ok(group.with_call_site(site).all_reduce_coalesced(&mut buffers, op)?)
            }
            #[cfg(feature = "cuda")]
            Reach::Device(hybrid) => {
                let request = || Shape::AllReduce { buffers: Buffers::InPlace(()), reduce: op };
                let lend = |tensor: &&Tensor| cuda::Lent::<T>::of(hybrid, None, Some(tensor), request());
                cuda::perform_all(hybrid, tensors.iter().map(lend).collect::<Result<_>>()?, site)
            }
        },
        other => Err(unsupported_dtype(group.host(), kind, other).into()),
    )
}

/// As [`all_gather`](crate::all_gather) of each of `tensors`, which are of one type and in one place: small ones travel together.
///
/// # Errors
/// [`phalanx::Error::Misuse`] for tensors of unlike types or places.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let (one, two) = (Tensor::new(group.rank() as u32, &Device::Cpu)?, Tensor::new(&[7u32, 8], &Device::Cpu)?);
/// let all = phalanx_candle::all_gather_coalesced(&group, &[&one, &two])?;
/// assert_eq!((all[0].to_vec1::<u32>()?, all[1].to_vec1::<u32>()?), (vec![0, 1], vec![7, 8, 7, 8]));
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn all_gather_coalesced(group: &impl Group, tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let world_size = group.host().world_size();
    let shapes = tensors.iter().map(|tensor| gathered(tensor, world_size)).collect();
    How::AllGather.perform(group, tensors, shapes, CallSite::caller())
}

/// As [`reduce_scatter`](crate::reduce_scatter) of each of `tensors`, which are of one type and in one place: small ones travel together.
///
/// # Errors
/// [`phalanx::Error::Misuse`] for tensors of unlike types or places, or whose first dimension is not a multiple of the world size.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let (one, two) = (Tensor::new(&[1f32, 2.0], &Device::Cpu)?, Tensor::new(&[3f32, 4.0, 5.0, 6.0], &Device::Cpu)?);
/// let mine = phalanx_candle::reduce_scatter_coalesced(&group, &[&one, &two], ReduceOp::Avg)?;
/// assert_eq!(mine[1].to_vec1::<f32>()?, [[3.0, 4.0], [5.0, 6.0]][group.rank()]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn reduce_scatter_coalesced(
    group: &impl Group,
    tensors: &[&Tensor],
    op: ReduceOp,
) -> Result<Vec<Tensor>> {
    let world_size = group.host().world_size();
    let shape = |tensor: &&Tensor| dealt(OpKind::ReduceScatter, tensor, world_size);
    let shapes = tensors.iter().map(shape).collect::<Result<_>>()?;
    How::ReduceScatter(op).perform(group, tensors, shapes, CallSite::caller())
}

/// A collective from one tensor to another.
#[derive(Clone, Copy)]
enum How {
    AllGather,
    ReduceScatter(ReduceOp),
}

impl How {
    fn kind(self) -> OpKind {
        match self {
            Self::AllGather => OpKind::AllGather,
            Self::ReduceScatter(_) => OpKind::ReduceScatter,
        }
    }

    /// From each input to a new tensor of the shape of its number.
    fn perform(
        self,
        group: &impl Group,
        inputs: &[&Tensor],
        shapes: Vec<Vec<usize>>,
        site: CallSite,
    ) -> Result<Vec<Tensor>> {
        let kind = self.kind();
        let Some(first) = inputs.first() else {
            self.on_host::<f32>(&group.host().with_call_site(site), &[], &mut [])?;
            return Ok(Vec::new());
        };
        inputs.iter().try_for_each(|input| alike(kind, first, input))?;
        let reach = Reach::of(group, kind, first.device())?;
        with_element!(first.dtype(),
            T => match reach {
                Reach::Host(group) => {
                    let inputs = inputs.iter().map(|input| read(input, <[T]>::to_vec));
                    let inputs = inputs.collect::<candle_core::Result<Vec<_>>>()?;
                    let zeros = |shape: &Vec<usize>| vec![T::default(); shape.iter().product()];
                    let mut outputs: Vec<Vec<T>> = shapes.iter().map(zeros).collect();
                    let from: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
                    let mut to: Vec<&mut [T]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                    self.on_host(&group.with_call_site(site), &from, &mut to)?;
                    let made = outputs.into_iter().zip(shapes);
                    Ok(made.map(|(all, shape)| Tensor::from_vec(all, shape, first.device())).collect::<Result<_, _>>()?)
                }
                #[cfg(feature = "cuda")]
                Reach::Device(hybrid) => {
                    let outputs = shapes.iter().map(|shape| zeros(shape, first)).collect::<Result<Vec<_>>>()?;
                    let lend = |(input, output): (&&Tensor, &Tensor)| {
                        let request = self.request(hybrid.world_size(), input.elem_count().max(output.elem_count()));
                        cuda::Lent::<T>::of(hybrid, Some(input), Some(output), request)
                    };
                    let lent = inputs.iter().zip(&outputs).map(lend).collect::<Result<_>>()?;
                    cuda::perform_all(hybrid, lent, site)?;
                    Ok(outputs)
                }
            },
            other => Err(unsupported_dtype(group.host(), kind, other).into()),
        )
    }

    fn on_host<T: Shared>(
        self,
        group: &ProcessGroup,
        inputs: &[&[T]],
        outputs: &mut [&mut [T]],
    ) -> phalanx::Result<()> {
        match self {
            Self::AllGather => group.all_gather_coalesced(inputs, outputs),
            Self::ReduceScatter(op) => group.reduce_scatter_coalesced(inputs, outputs, op),
        }
    }

    /// One of them, of so many elements of all ranks.
    #[cfg(feature = "cuda")]
    fn request(self, world_size: usize, elements: usize) -> Shape {
        let (buffers, blocks) = (Buffers::Separate((), ()), Layout::even(world_size, elements));
        match self {
            Self::AllGather => Shape::AllGather { buffers, blocks },
            Self::ReduceScatter(reduce) => Shape::ReduceScatter { buffers, blocks, reduce },
        }
    }
}
