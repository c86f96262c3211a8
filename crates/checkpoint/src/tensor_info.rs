//! The element type and shape of a tensor.

use phalanx::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Type of the elements.
    pub dtype: DType,
    /// Lengths of the dimensions, slowest first; none for a scalar.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// How many elements it has; `None` if that many bytes can't be addressed.
    ///
    /// # Examples
    /// ```
    /// use phalanx::DType;
    /// use phalanx_checkpoint::TensorInfo;
    ///
    /// assert_eq!(TensorInfo { dtype: DType::F32, shape: vec![2, 3] }.elements(), Some(6));
    /// assert_eq!(TensorInfo { dtype: DType::F32, shape: vec![] }.elements(), Some(1)); // a scalar
    /// assert_eq!(TensorInfo { dtype: DType::F32, shape: vec![usize::MAX, 2] }.elements(), None);
    /// ```
    pub fn elements(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n))?;
        elements.checked_mul(self.dtype.size()).map(|_| elements)
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}
