//! What slices an optimizer refuses.

use crate::{Error, Result};
use phalanx::DType;

/// Refuses slices, given by their bytes, of other lengths than expected.
pub(super) fn alike(name: &str, dtype: DType, expected: usize, found: &[usize]) -> Result<()> {
    match found.iter().find(|&&found| found != expected) {
        None => Ok(()),
        Some(found) => {
            let [expected, found] = [expected, *found].map(|bytes| bytes / dtype.size());
            let what = format!("{name} was given a slice of {found} numbers, expected {expected}");
            Err(phalanx::Error::config(what).into())
        }
    }
}

pub(super) fn no_floats(name: &str, dtype: DType) -> Error {
    phalanx::Error::config(format!("{name} can't optimise elements of {dtype}: they are no floats")).into()
}
