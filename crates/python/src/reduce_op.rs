//! How a reduction combines the values of the ranks.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// How a reduction combines the values of the ranks: ``ReduceOp.SUM``, ``AVG``, ``PROD``, ``MIN``, ``MAX``, ``BIT_AND``, ``BIT_OR``, ``BIT_XOR``, or
/// ``ReduceOp.pre_mul_sum(factor)``: the sum of the ranks' values, each multiplied by its rank's factor. Operations take their names, ``"sum"``, as well.
#[pyclass(frozen, eq, name = "ReduceOp", module = "phalanx")]
#[derive(Debug, PartialEq)]
pub(crate) struct Op(phalanx::ReduceOp);

#[pymethods]
impl Op {
    #[classattr]
    const SUM: Self = Self(phalanx::ReduceOp::Sum);
    #[classattr]
    const AVG: Self = Self(phalanx::ReduceOp::Avg);
    #[classattr]
    const PROD: Self = Self(phalanx::ReduceOp::Prod);
    #[classattr]
    const MIN: Self = Self(phalanx::ReduceOp::Min);
    #[classattr]
    const MAX: Self = Self(phalanx::ReduceOp::Max);
    #[classattr]
    const BIT_AND: Self = Self(phalanx::ReduceOp::BitAnd);
    #[classattr]
    const BIT_OR: Self = Self(phalanx::ReduceOp::BitOr);
    #[classattr]
    const BIT_XOR: Self = Self(phalanx::ReduceOp::BitXor);

    /// The sum of the ranks' values, each multiplied by the factor that its own rank gives. Floats only.
    #[staticmethod]
    fn pre_mul_sum(factor: f64) -> Self {
        Self(phalanx::ReduceOp::PreMulSum(factor))
    }

    fn __repr__(&self) -> String {
        format!("ReduceOp({})", self.0)
    }
}

/// The operator that a caller means; a sum, if nothing is said.
pub(crate) fn meant(op: Option<&Bound<'_, PyAny>>) -> PyResult<phalanx::ReduceOp> {
    let Some(op) = op else { return Ok(phalanx::ReduceOp::Sum) };
    if let Ok(op) = op.cast::<Op>() {
        return Ok(op.get().0);
    }
    let Ok(name) = op.extract::<&str>() else {
        let kind = op.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a {kind} is no operator: pass a phalanx.ReduceOp, or its name"
        )));
    };
    let known = phalanx::ReduceOp::ALL.into_iter().find(|known| known.to_string() == name);
    known.ok_or_else(|| {
        let names = phalanx::ReduceOp::ALL.map(|op| op.to_string()).join(", ");
        PyValueError::new_err(format!(
            "there is no operator {name:?}: there are {names}, and ReduceOp.pre_mul_sum(factor)"
        ))
    })
}
