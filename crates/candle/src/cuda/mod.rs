//! Tensors on a GPU, whose memory an operation gets for a while.

mod gradients;

pub(crate) use gradients::memory;

use crate::Result;
use crate::element::{Shared, unsupported_dtype, with_element};
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Tensor};
use phalanx::error::OpKind;
use phalanx::{CallSite, ReduceOp};
use phalanx_nccl::{Batch, DeviceBuffer, DeviceElement, HybridGroup};
use std::cell::RefCell;

/// A type that candle, phalanx and devices carry.
pub(crate) trait OnGpu: Shared + DeviceElement + CudaDType + DeviceRepr + ValidAsZeroBits {}

impl<T: Shared + DeviceElement + CudaDType + DeviceRepr + ValidAsZeroBits> OnGpu for T {}

/// The memory of a tensor, away from the tensor: behind what candle has enqueued so far. When it is back, what candle enqueues next is behind what was done with it.
///
/// Meanwhile the tensor, and all that share its memory, must not be used.
pub(crate) struct Loan<T: OnGpu> {
    tensor: Tensor,
    gpu: CudaDevice,
    /// Elements of the whole memory, of which the tensor may be a part.
    len: usize,
    /// The tensor's memory; `None` once the tensor has it again.
    buffer: Option<DeviceBuffer<T>>,
}

impl<T: OnGpu> Loan<T> {
    /// Takes the memory of `tensor`, whose elements lie in row-major order.
    pub(crate) fn of(tensor: &Tensor, hybrid: &HybridGroup) -> Result<Self> {
        let Some((start, end)) = tensor.layout().contiguous_offsets() else {
            return Err(candle_core::Error::msg("the elements do not lie in row-major order").into());
        };
        let gpu = tensor.device().as_cuda_device()?.clone();
        // Something must be in its place.
        let slice = exchange::<T>(tensor, gpu.alloc_zeros(1)?)?;
        let len = slice.len();
        if len < end {
            // What was there is in place of memory that is away.
            exchange(tensor, slice)?;
            let what = "the tensor's memory is with another operation; use a tensor in one thread";
            return Err(candle_core::Error::msg(what).into());
        }
        let mut loan = Self { tensor: tensor.clone(), gpu, len, buffer: None };
        match DeviceBuffer::from_slice(hybrid.device(), slice, start..end) {
            Ok(buffer) => loan.buffer = Some(buffer),
            Err(error) => {
                loan.replace()?;
                return Err(error.into());
            }
        }
        Ok(loan)
    }

    pub(crate) fn buffer(&mut self) -> &mut DeviceBuffer<T> {
        self.buffer.as_mut().expect("it is away until the loan ends")
    }

    /// Gives the memory back.
    pub(crate) fn end(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        match buffer.into_slice() {
            Ok(slice) => exchange(&self.tensor, slice).map(drop),
            Err(error) => {
                self.replace()?;
                Err(error.into())
            }
        }
    }

    /// Gives the tensor zeros in place of memory that is lost: candle would read what is not there.
    fn replace(&self) -> Result<()> {
        exchange::<T>(&self.tensor, self.gpu.alloc_zeros(self.len)?).map(drop)
    }
}

impl<T: OnGpu> Drop for Loan<T> {
    fn drop(&mut self) {
        // Something has failed, of which the caller knows.
        if let Err(error) = self.give_back() {
            tracing::error!(%error, "a tensor has lost its memory");
        }
    }
}

/// Performs an operation in place, on the device: in candle's order, and without waiting for it here.
pub(crate) fn in_place<T: OnGpu>(
    hybrid: &HybridGroup,
    tensor: &Tensor,
    site: CallSite,
    put: impl for<'b> FnOnce(&mut Batch<'b>, &'b mut DeviceBuffer<T>) -> phalanx::Result<()>,
) -> Result<()> {
    let mut loan = Loan::<T>::of(tensor, hybrid)?;
    let mut batch = hybrid.batch();
    put(&mut batch, loan.buffer())?;
    // The group looks after it; the next call returns what goes wrong later.
    let _ = hybrid.launch_at(&batch, site)?;
    loan.end()
}

/// The tensors of all ranks in new memory of this `shape`.
pub(crate) fn all_gather(
    hybrid: &HybridGroup,
    tensor: &Tensor,
    shape: Vec<usize>,
    site: CallSite,
) -> Result<Tensor> {
    let all = Tensor::zeros(shape, tensor.dtype(), tensor.device())?;
    // In place: this rank's part is where it belongs.
    let (mine, at) = (tensor.flatten_all()?.contiguous()?, hybrid.rank() * tensor.elem_count());
    all.flatten_all()?.slice_set(&mine, 0, at)?;
    with_element!(all.dtype(),
        T => in_place::<T>(hybrid, &all, site, |batch, all| batch.all_gather_in_place(all))?,
        other => return Err(unsupported_dtype(hybrid.host(), OpKind::AllGather, other).into()),
    );
    Ok(all)
}

/// This rank's part, of this `shape`, of what the ranks' tensors are combined to.
pub(crate) fn reduce_scatter(
    hybrid: &HybridGroup,
    tensor: &Tensor,
    shape: Vec<usize>,
    op: ReduceOp,
    site: CallSite,
) -> Result<Tensor> {
    let all = tensor.flatten_all()?.force_contiguous()?;
    with_element!(all.dtype(),
        T => in_place::<T>(hybrid, &all, site, |batch, all| batch.reduce_scatter_in_place(all, op))?,
        other => return Err(unsupported_dtype(hybrid.host(), OpKind::ReduceScatter, other).into()),
    );
    let len = all.elem_count() / hybrid.world_size();
    // A copy, so that the rest is freed.
    let mine = all.narrow(0, hybrid.rank() * len, len)?.force_contiguous()?;
    Ok(mine.reshape(shape)?)
}

/// Gives `tensor`, and all that share its memory, another, and returns what it had.
fn exchange<T: OnGpu>(tensor: &Tensor, slice: CudaSlice<T>) -> Result<CudaSlice<T>> {
    let exchange = Exchange(RefCell::new(slice));
    tensor.inplace_op1(&exchange)?;
    Ok(exchange.0.into_inner())
}

/// An exchange of a tensor's memory dressed as a candle operation: only these are given it.
struct Exchange<T>(RefCell<CudaSlice<T>>);

impl<T: OnGpu> InplaceOp1 for Exchange<T> {
    fn name(&self) -> &'static str {
        "phalanx"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("expected a tensor on a GPU, found one on the CPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        std::mem::swap(storage.as_cuda_slice_mut::<T>()?, &mut self.0.borrow_mut());
        Ok(())
    }
}
