//! Whether two models are the same, told by a short word.

use candle_core::{DType, Result};
use candle_nn::VarMap;
use sha2::{Digest, Sha256};
use std::sync::PoisonError;

/// The first half of a SHA-256 over names and bits of all variables, in name order.
///
/// # Errors
/// Those of candle.
pub fn checksum(varmap: &VarMap) -> Result<String> {
    let variables = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut named: Vec<_> = variables.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    let mut hash = Sha256::new();
    for (name, var) in named {
        hash.update(name.as_bytes());
        // Exact: f64 holds every f32.
        for value in var.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()? {
            hash.update(value.to_bits().to_le_bytes());
        }
    }
    Ok(hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}
