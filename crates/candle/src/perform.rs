//! Collectives and messages of tensors: by the half of a group that reaches them.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::element::{Shared, bytes_mut, read, unsupported_dtype, with_element};
use crate::group::Reach;
use crate::request::{Message, Shape};
use crate::{Group, Result};
use candle_core::Tensor;
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ProcessGroup};

/// Performs a collective from `input`, whose elements may lie in any order, to `output`; in place if there is no input.
pub(crate) fn perform(
    group: &impl Group,
    input: Option<&Tensor>,
    output: Option<&Tensor>,
    request: Shape,
    site: CallSite,
) -> Result<()> {
    let op = request.kind();
    let Some(tensor) = output.or(input) else { return Err(missing(op, &site).into()) };
    input.map_or(Ok(()), |input| alike(op, tensor, input))?;
    output.map_or(Ok(()), |output| in_order(op, output))?;
    let reach = Reach::of(group, op, tensor.device())?;
    with_element!(tensor.dtype(),
        T => match reach {
            // Candle makes the call, and passes no call site on.
            Reach::Host(group) => on_host::<T>(&group.with_call_site(site), input, output, request),
            #[cfg(feature = "cuda")]
            Reach::Device(hybrid) => cuda::perform::<T>(hybrid, input, output, request, site),
        },
        other => Err(unsupported_dtype(group.host(), op, other).into()),
    )
}

fn missing(op: OpKind, site: &CallSite) -> Error {
    Error::misuse(op, format!("this rank has no tensor for it, at {site}"))
}

/// Refuses tensors of unlike types or places.
pub(crate) fn alike(op: OpKind, one: &Tensor, other: &Tensor) -> phalanx::Result<()> {
    if one.device().same_device(other.device()) && one.dtype() == other.dtype() {
        return Ok(());
    }
    let of = |tensor: &Tensor| format!("{} on {:?}", tensor.dtype().as_str(), tensor.device().location());
    Err(Error::misuse(op, format!("one tensor is {}, and another {}", of(one), of(other))))
}

/// Refuses a tensor that can't be changed in place.
pub(crate) fn in_order(op: OpKind, tensor: &Tensor) -> phalanx::Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    let what = "the elements do not lie in row-major order; pass `tensor.contiguous()?` and use that";
    Err(Error::misuse(op, what))
}

/// On memory of the host. The input is copied: tensors are locked while their elements are looked at, and others may need them before this call ends.
fn on_host<T: Shared>(
    host: &ProcessGroup,
    input: Option<&Tensor>,
    output: Option<&Tensor>,
    request: Shape,
) -> Result<()> {
    let input = input.map(|input| read(input, <[T]>::to_vec)).transpose()?;
    let run = |output: &mut [T]| {
        let mut output = Some(output);
        host.request::<T>(
            request.map(|()| input.as_deref().unwrap_or_default(), |()| output.take().unwrap_or_default()),
        )
    };
    match output {
        Some(output) => Ok(bytes_mut(output, |bytes| run(bytemuck::cast_slice_mut(bytes)))??),
        None => Ok(run(&mut [])?),
    }
}

/// Sends `tensor`, or receives into it.
pub(crate) fn pass(group: &impl Group, message: Message, tensor: &Tensor, site: CallSite) -> Result<()> {
    let op = message.op();
    match message {
        Message::SendTo(_) => {}
        Message::RecvFrom(_) => in_order(op, tensor)?,
    }
    let reach = Reach::of(group, op, tensor.device())?;
    with_element!(tensor.dtype(),
        T => match reach {
            Reach::Host(group) => pass_on_host::<T>(&group.with_call_site(site), message, tensor),
            #[cfg(feature = "cuda")]
            Reach::Device(hybrid) => cuda::message::<T>(hybrid, tensor, message, site),
        },
        other => Err(unsupported_dtype(group.host(), op, other).into()),
    )
}

/// Receives into `tensor` from whichever rank sends first, and returns that rank.
pub(crate) fn pass_from_any(group: &impl Group, tensor: &Tensor, site: CallSite) -> Result<usize> {
    let op = OpKind::RecvAny;
    in_order(op, tensor)?;
    let reach = Reach::of(group, op, tensor.device())?;
    with_element!(tensor.dtype(),
        T => match reach {
            Reach::Host(host) => {
                let host = host.with_call_site(site);
                let recv = |bytes: &mut [u8]| host.recv_any::<T>(bytemuck::cast_slice_mut(bytes), TAG);
                Ok(bytes_mut(tensor, recv)??)
            }
            #[cfg(feature = "cuda")]
            Reach::Device(_) => {
                let hint = format!("NCCL receives only from a rank that is named: use recv, or a tensor on the CPU, at {site}");
                Err(phalanx::Error::Unsupported { op, backend: "nccl", hint }.into())
            }
        },
        other => Err(unsupported_dtype(group.host(), op, other).into()),
    )
}

/// A tensor that is sent is copied first, as any input; one that is received into is locked meanwhile.
fn pass_on_host<T: Shared>(host: &ProcessGroup, message: Message, tensor: &Tensor) -> Result<()> {
    match message {
        Message::SendTo(dst) => Ok(host.send(&read(tensor, <[T]>::to_vec)?, dst, TAG)?),
        Message::RecvFrom(src) => {
            let recv = |bytes: &mut [u8]| host.recv::<T>(bytemuck::cast_slice_mut(bytes), src, TAG);
            Ok(bytes_mut(tensor, recv)??)
        }
    }
}

/// Messages of tensors have no tags: those of devices have none.
const TAG: u64 = 0;
