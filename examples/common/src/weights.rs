//! Whether two models are the same, told by a short word.

use sha2::{Digest, Sha256};

/// The first half of a SHA-256 over names and bits of weights, in the order in which they come. f64 holds every f32 exactly.
pub fn checksum_of<N: AsRef<str>>(weights: impl IntoIterator<Item = (N, Vec<f64>)>) -> String {
    let mut hash = Sha256::new();
    for (name, values) in weights {
        hash.update(name.as_ref().as_bytes());
        for value in values {
            hash.update(value.to_bits().to_le_bytes());
        }
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The [`checksum_of`] all variables, in name order.
///
/// # Errors
/// Those of candle.
#[cfg(feature = "candle")]
pub fn checksum(varmap: &candle_nn::VarMap) -> candle_core::Result<String> {
    use candle_core::DType;

    let variables = varmap.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut named: Vec<_> = variables.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    let values = named
        .into_iter()
        .map(|(name, var)| Ok((name, var.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?)));
    Ok(checksum_of(values.collect::<candle_core::Result<Vec<_>>>()?))
}
