//! Tensors on a GPU, whose memory an operation gets for a while.

mod gradients;

pub(crate) use gradients::memory;

use crate::Result;
use crate::element::Shared;
use crate::request::{Message, Shape};
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Tensor};
use phalanx::CallSite;
use phalanx_nccl::{DeviceBuffer, DeviceElement, HybridGroup};
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

/// Performs a collective on the device: in candle's order, and without waiting for it here.
pub(crate) fn perform<T: OnGpu>(
    hybrid: &HybridGroup,
    input: Option<&Tensor>,
    output: Option<&Tensor>,
    request: Shape,
    site: CallSite,
) -> Result<()> {
    perform_all(hybrid, vec![Lent::<T>::of(hybrid, input, output, request)?], site)
}

/// As [`perform`], of several collectives in one launch.
pub(crate) fn perform_all<T: OnGpu>(
    hybrid: &HybridGroup,
    mut all: Vec<Lent<T>>,
    site: CallSite,
) -> Result<()> {
    let mut batch = hybrid.batch();
    for Lent { input, output, request } in &mut all {
        let mut output = output.as_mut().map(Loan::buffer);
        let input = input.as_mut().map(|input| &*input.buffer());
        let lost = || phalanx::Error::Internal { what: "a collective without its tensor".into() };
        let request = request.clone().try_map(
            |()| input.ok_or_else(lost),
            |()| output.take().ok_or_else(lost),
            |reduce| reduce,
        )?;
        batch.request(request)?;
    }
    // The group looks after it; the next call returns what goes wrong later.
    let _ = hybrid.launch_at(&batch, site)?;
    all.into_iter().map(Lent::end).fold(Ok(()), Result::and)
}

/// A collective with the memory of its tensors.
pub(crate) struct Lent<T: OnGpu> {
    input: Option<Loan<T>>,
    output: Option<Loan<T>>,
    request: Shape,
}

impl<T: OnGpu> Lent<T> {
    /// Takes the memory of both; of an input whose elements do not lie in row-major order, that of a copy.
    pub(crate) fn of(
        hybrid: &HybridGroup,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
        request: Shape,
    ) -> Result<Self> {
        let input = input.map(|input| Loan::of(&input.contiguous()?, hybrid)).transpose()?;
        let output = output.map(|output| Loan::of(output, hybrid)).transpose()?;
        Ok(Self { input, output, request })
    }

    fn end(self) -> Result<()> {
        [self.input, self.output].into_iter().flatten().map(Loan::end).fold(Ok(()), Result::and)
    }
}

/// Sends a tensor, or receives into one, on the device.
pub(crate) fn message<T: OnGpu>(
    hybrid: &HybridGroup,
    tensor: &Tensor,
    message: Message,
    site: CallSite,
) -> Result<()> {
    let mut loan = Loan::<T>::of(&tensor.contiguous()?, hybrid)?;
    let mut batch = hybrid.batch();
    match message {
        Message::SendTo(dst) => batch.send(loan.buffer(), dst)?,
        Message::RecvFrom(src) => batch.recv(loan.buffer(), src)?,
    }
    let _ = hybrid.launch_at(&batch, site)?;
    loan.end()
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
