//! What Python's arrays are made of, as elements that phalanx has.

use phalanx::{DType, ReduceOp};

/// The type of the elements of a Python array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elements {
    /// One of phalanx's own types.
    Plain(DType),
    /// Truth values, a byte each.
    Bool,
    /// Pairs of `f32`.
    Complex64,
    /// Pairs of `f64`.
    Complex128,
    /// Bytes that are moved, and never combined.
    Opaque,
}

impl Elements {
    /// By the name that the Python side has for it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "complex64" => Self::Complex64,
            "complex128" => Self::Complex128,
            "bytes" => Self::Opaque,
            _ => Self::Plain(DType::ALL.into_iter().find(|dtype| dtype.name() == name)?),
        })
    }

    /// By the format of Python's buffer protocol, that of the module `struct`, and the bytes of an element.
    pub(crate) fn of_format(format: &str, size: usize) -> Option<Self> {
        let order = if cfg!(target_endian = "little") { '<' } else { '>' };
        let code = format.trim_start_matches(['@', '=', order]);
        Some(match (code, size) {
            ("?", 1) => Self::Bool,
            ("e", 2) => Self::Plain(DType::F16),
            ("f", 4) => Self::Plain(DType::F32),
            ("d", 8) => Self::Plain(DType::F64),
            ("Zf" | "F", 8) => Self::Complex64,
            ("Zd" | "D", 16) => Self::Complex128,
            ("b", 1) => Self::Plain(DType::I8),
            ("B" | "c", 1) => Self::Plain(DType::U8),
            ("h" | "i" | "l" | "q" | "n", 2) => Self::Plain(DType::I16),
            ("h" | "i" | "l" | "q" | "n", 4) => Self::Plain(DType::I32),
            ("h" | "i" | "l" | "q" | "n", 8) => Self::Plain(DType::I64),
            ("H" | "I" | "L" | "Q" | "N", 2) => Self::Plain(DType::U16),
            ("H" | "I" | "L" | "Q" | "N", 4) => Self::Plain(DType::U32),
            ("H" | "I" | "L" | "Q" | "N", 8) => Self::Plain(DType::U64),
            _ => return None,
        })
    }

    /// By the code and the bits of DLPack.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<Self> {
        const INT: u8 = 0;
        const UINT: u8 = 1;
        const FLOAT: u8 = 2;
        const BFLOAT: u8 = 4;
        const COMPLEX: u8 = 5;
        const BOOL: u8 = 6;
        Some(match (code, bits) {
            (INT, 8) => Self::Plain(DType::I8),
            (INT, 16) => Self::Plain(DType::I16),
            (INT, 32) => Self::Plain(DType::I32),
            (INT, 64) => Self::Plain(DType::I64),
            (UINT, 8) => Self::Plain(DType::U8),
            (UINT, 16) => Self::Plain(DType::U16),
            (UINT, 32) => Self::Plain(DType::U32),
            (UINT, 64) => Self::Plain(DType::U64),
            (FLOAT, 16) => Self::Plain(DType::F16),
            (FLOAT, 32) => Self::Plain(DType::F32),
            (FLOAT, 64) => Self::Plain(DType::F64),
            (BFLOAT, 16) => Self::Plain(DType::BF16),
            (COMPLEX, 64) => Self::Complex64,
            (COMPLEX, 128) => Self::Complex128,
            (BOOL, 8) => Self::Bool,
            _ => return None,
        })
    }

    /// The type as which phalanx moves and combines them.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Plain(dtype) => dtype,
            Self::Bool | Self::Opaque => DType::U8,
            Self::Complex64 => DType::F32,
            Self::Complex128 => DType::F64,
        }
    }

    /// How many elements of that type are one of these.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::Complex64 | Self::Complex128 => 2,
            Self::Plain(_) | Self::Bool | Self::Opaque => 1,
        }
    }

    /// Bytes of one.
    pub(crate) fn size(self) -> usize {
        self.dtype().size() * self.parts()
    }

    /// How values of that type are combined so that these are.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn reduce(self, op: ReduceOp) -> Result<ReduceOp, String> {
        match (self, op) {
            (Self::Plain(_), _) => Ok(op),
            // A sum of truth values is true if one of them is.
            (Self::Bool, ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) => Ok(ReduceOp::BitOr),
            (Self::Bool, ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd) => Ok(ReduceOp::BitAnd),
            (Self::Bool, ReduceOp::BitXor) => Ok(ReduceOp::BitXor),
            (Self::Bool, _) => Err(format!("{op} of truth values has no meaning")),
            (Self::Complex64 | Self::Complex128, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_)) => {
                Ok(op)
            }
            (Self::Complex64 | Self::Complex128, _) => {
                Err(format!("{op} of complex numbers is not there: they can be summed and averaged"))
            }
            (Self::Opaque, _) => {
                Err("elements of this type are moved only, and never combined: convert them first".into())
            }
        }
    }
}

impl std::fmt::Display for Elements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(f),
            Self::Bool => f.pad("bool"),
            Self::Complex64 => f.pad("complex64"),
            Self::Complex128 => f.pad("complex128"),
            Self::Opaque => f.pad("bytes"),
        }
    }
}
