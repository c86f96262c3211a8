//! One function call of NCCL on raw memory.

use crate::abilities::Abilities;
use crate::element::{DataType, number};
use crate::load::Nccl;
use crate::sys::cuda::{RawPointer, RawStream};
use crate::sys::nccl::{Code, RawComm, RawOp, SCALAR_ON_HOST};
use half::{bf16, f16};
use phalanx_core::{Error, OpKind, ReduceOp, Result};
use std::ffi::{c_int, c_void};

/// A call of NCCL on memory at raw addresses, which it reads and writes when the stream comes to it.
///
/// The memory is that of the communicator's device. Where input and output are the same, the call is in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// What.
    pub kind: Kind,
    /// The input.
    pub from: RawPointer,
    /// The output.
    pub to: RawPointer,
    /// Elements. Of one rank's part in [`AllGather`](Kind::AllGather) and [`ReduceScatter`](Kind::ReduceScatter).
    pub count: usize,
    /// Their type.
    pub data_type: DataType,
}

/// The functions of NCCL that carry data.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the variants are the names of NCCL's functions")]
pub enum Kind {
    AllReduce(ReduceOp),
    ReduceScatter(ReduceOp),
    AllGather,
    Broadcast {
        root: usize,
    },
    Reduce {
        reduce: ReduceOp,
        root: usize,
    },
    /// Ignores the output.
    Send {
        dst: usize,
    },
    /// Ignores the input.
    Recv {
        src: usize,
    },
}

impl Kind {
    /// The function of phalanx that is meant.
    pub(crate) fn op(self) -> OpKind {
        match self {
            Self::AllReduce(_) => OpKind::AllReduce,
            Self::ReduceScatter(_) => OpKind::ReduceScatter,
            Self::AllGather => OpKind::AllGather,
            Self::Broadcast { .. } => OpKind::Broadcast,
            Self::Reduce { .. } => OpKind::Reduce,
            Self::Send { .. } => OpKind::Send,
            Self::Recv { .. } => OpKind::Recv,
        }
    }

    fn reduce(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(reduce) | Self::ReduceScatter(reduce) | Self::Reduce { reduce, .. } => {
                Some(reduce)
            }
            _ => None,
        }
    }

    /// Root or peer.
    fn rank(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root, .. } => Some(root),
            Self::Send { dst: peer } | Self::Recv { src: peer } => Some(peer),
            _ => None,
        }
    }
}

/// What is wrong with a rank that the communicator does not have.
pub(crate) fn out_of_range(rank: usize, world_size: usize) -> String {
    format!("rank {rank} is out of range: the ranks of this communicator are 0..{world_size}")
}

impl Call {
    /// Refuses what NCCL has not, before anything is begun.
    pub(crate) fn check(&self, world_size: usize, abilities: Abilities) -> Result<()> {
        let op = self.kind.op();
        if let Some(rank) = self.kind.rank().filter(|&rank| rank >= world_size) {
            return Err(Error::misuse(op, out_of_range(rank, world_size)));
        }
        let data_type = self.data_type;
        let name = format_args!("{data_type:?}");
        let lack = self.kind.reduce().and_then(|op| abilities.lack(Some(data_type), name, op));
        lack.map_or(Ok(()), |hint| Err(Error::Unsupported { op, backend: "nccl", hint }))
    }

    /// Makes the call, with an operator that [`Operator::of`] has made for it.
    ///
    /// # Safety
    /// The memory is there until the stream is past the call; communicator and stream live, and the device's context is this thread's.
    pub(crate) unsafe fn make(
        &self,
        nccl: Nccl,
        comm: RawComm,
        operator: RawOp,
        stream: RawStream,
    ) -> (&'static str, Code) {
        let Self { kind, from, to, count, data_type } = *self;
        let (table, from, to) = (nccl.table(), from as *const c_void, to as *mut c_void);
        // What is only moved may be any bytes; of some types NCCL has refused to move what it did not reduce.
        let (data_type, count) = match kind.reduce() {
            Some(_) => (data_type, count),
            None => (DataType::U8, count * data_type.size()),
        };
        let (dtype, rank) = (data_type as c_int, kind.rank().unwrap_or_default() as c_int);
        match kind {
            Kind::AllReduce(_) => {
                // SAFETY: as the caller says, here and below.
                let code = unsafe { (table.all_reduce)(from, to, count, dtype, operator, comm, stream) };
                ("ncclAllReduce", code)
            }
            Kind::ReduceScatter(_) => {
                // SAFETY: see above.
                let code = unsafe { (table.reduce_scatter)(from, to, count, dtype, operator, comm, stream) };
                ("ncclReduceScatter", code)
            }
            Kind::AllGather => {
                // SAFETY: see above.
                ("ncclAllGather", unsafe { (table.all_gather)(from, to, count, dtype, comm, stream) })
            }
            Kind::Broadcast { .. } => {
                // SAFETY: see above.
                ("ncclBroadcast", unsafe { (table.broadcast)(from, to, count, dtype, rank, comm, stream) })
            }
            Kind::Reduce { .. } => {
                // SAFETY: see above.
                let code = unsafe { (table.reduce)(from, to, count, dtype, operator, rank, comm, stream) };
                ("ncclReduce", code)
            }
            Kind::Send { .. } => {
                // SAFETY: see above.
                ("ncclSend", unsafe { (table.send)(from, count, dtype, rank, comm, stream) })
            }
            Kind::Recv { .. } => {
                // SAFETY: see above.
                ("ncclRecv", unsafe { (table.recv)(to, count, dtype, rank, comm, stream) })
            }
        }
    }
}

/// NCCL's operator for a call; those with a scalar are made, and must be destroyed after the launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operator {
    pub(crate) raw: RawOp,
    is_made: bool,
}

impl Operator {
    /// # Safety
    /// The communicator lives.
    pub(crate) unsafe fn of(call: &Call, nccl: Nccl, comm: RawComm) -> Result<Self> {
        let Some(ReduceOp::PreMulSum(scalar)) = call.kind.reduce() else {
            let raw = call.kind.reduce().and_then(number).unwrap_or_default();
            return Ok(Self { raw, is_made: false });
        };
        let create = nccl.table().red_op_create_pre_mul_sum.of(&nccl)?;
        let (mut raw, mut scalar) = (0, scalar_bytes(scalar, call.data_type));
        let dtype = call.data_type as c_int;
        // SAFETY: the scalar has the type and is read at once; the caller vouches for the communicator.
        let code = unsafe { create(&raw mut raw, scalar.as_mut_ptr().cast(), dtype, SCALAR_ON_HOST, comm) };
        nccl.check("ncclRedOpCreatePreMulSum", code, Some(comm))?;
        Ok(Self { raw, is_made: true })
    }

    /// # Safety
    /// The communicator lives.
    pub(crate) unsafe fn destroy(self, nccl: Nccl, comm: RawComm) {
        if let (true, Some(destroy)) = (self.is_made, nccl.table().red_op_destroy.function) {
            // SAFETY: it was made for this communicator, for which the caller vouches.
            unsafe { destroy(self.raw, comm) };
        }
    }
}

/// The scalar in the element type, in memory that suits every type.
fn scalar_bytes(x: f64, data_type: DataType) -> [u64; 1] {
    let mut bytes = [0; 8];
    macro_rules! put {
        ($value:expr) => {{
            let value = $value.to_ne_bytes();
            bytes[..value.len()].copy_from_slice(&value);
        }};
    }
    match data_type {
        DataType::I8 => put!((x as i8)),
        DataType::U8 => put!((x as u8)),
        DataType::I32 => put!((x as i32)),
        DataType::U32 => put!((x as u32)),
        DataType::I64 => put!((x as i64)),
        DataType::U64 => put!((x as u64)),
        DataType::F16 => put!(f16::from_f64(x)),
        DataType::F32 => put!((x as f32)),
        DataType::F64 => put!(x),
        DataType::BF16 => put!(bf16::from_f64(x)),
        DataType::F8E4M3 => put!(eight_bits(x, 4)),
        DataType::F8E5M2 => put!(eight_bits(x, 5)),
    }
    [u64::from_ne_bytes(bytes)]
}

/// The float of eight bits, so many of them exponent, that is nearest to `x` and not greater in magnitude. What is not finite stays so: with four bits of exponent,
/// which leave no infinity, as NaN.
fn eight_bits(x: f64, exponent_bits: u32) -> u8 {
    const NAN: u8 = 0x7f;
    const INFINITY_OF_E5M2: u8 = 0x7c;
    let fraction_bits = 7 - exponent_bits;
    let largest = if exponent_bits == 4 { 0x7e } else { 0x7b };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let value = |bits: u8| {
        let (exponent, fraction) =
            (i32::from(bits >> fraction_bits), f64::from(bits & ((1 << fraction_bits) - 1)));
        let fraction = fraction / f64::from(1 << fraction_bits);
        if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        }
    };
    let magnitude = if x.is_finite() {
        (0..=largest).rev().find(|&bits| value(bits) <= x.abs()).unwrap_or_default()
    } else if x.is_infinite() && exponent_bits == 5 {
        INFINITY_OF_E5M2
    } else {
        NAN
    };
    magnitude | if x.is_sign_negative() { 0x80 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_elements_type() {
        assert_eq!(scalar_bytes(2.0, DataType::F16)[0], u64::from(0x4000u16));
        assert_eq!(scalar_bytes(-2.7, DataType::I8)[0], u64::from(-2i8 as u8));
        assert_eq!((eight_bits(1.0, 4), eight_bits(-0.5, 4), eight_bits(1e9, 4)), (0x38, 0xb0, 0x7e));
        assert_eq!((eight_bits(1.0, 5), eight_bits(0.5, 5), eight_bits(1e9, 5)), (0x3c, 0x38, 0x7b));
    }

    /// A sum of nothing but zeros would look well.
    #[test]
    fn scalars_that_are_not_finite_stay_so() {
        for data_type in [DataType::F8E4M3, DataType::F8E5M2] {
            assert_eq!(scalar_bytes(f64::NAN, data_type)[0] & 0x7f, 0x7f);
        }
        assert_eq!((eight_bits(f64::INFINITY, 5), eight_bits(f64::NEG_INFINITY, 5)), (0x7c, 0xfc));
        assert_eq!(eight_bits(f64::INFINITY, 4), 0x7f);
    }

    #[test]
    fn what_nccl_has_not_is_refused_before_anything_is_begun() {
        let version = crate::load::Version { major: 2, minor: 30, patch: 7 };
        let abilities = Abilities { version, capability: (9, 0), is_alone: false };
        let call = |kind| Call { kind, from: 0, to: 0, count: 1, data_type: DataType::I32 };
        let bits = call(Kind::AllReduce(ReduceOp::BitXor)).check(2, abilities).unwrap_err().to_string();
        assert_eq!(
            bits,
            "all_reduce is not supported by the nccl backend: NCCL has no bit_xor; reduce on the host, or another way"
        );
        let root = call(Kind::Broadcast { root: 2 }).check(2, abilities).unwrap_err().to_string();
        assert_eq!(root, "broadcast: rank 2 is out of range: the ranks of this communicator are 0..2");
    }
}
