//! Where the double is. Cargo builds it for these tests, beside them.

use std::path::PathBuf;

/// The file of the double of NCCL and of the CUDA driver.
pub(crate) fn double() -> PathBuf {
    let test = std::env::current_exe().expect("this program is a file");
    let file = test.parent().expect("it lies in a folder").join("libphalanx_nccl_double.so");
    assert!(file.exists(), "cargo builds {} as a dev-dependency", file.display());
    file
}
