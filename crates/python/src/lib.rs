//! The native part of the Python package `phalanx`: groups and their operations on memory of Python's objects. The package itself is in `python/phalanx`.

mod background;
mod call;
mod collectives;
mod dlpack;
mod elements;
mod errors;
mod group;
mod interrupt;
mod join;
mod meeting;
mod memory;
mod messages;
mod owner;
mod reduce_op;
mod site;
mod train;
mod work;

use pyo3::prelude::*;

/// What the package imports.
#[pymodule]
mod _phalanx {
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::join::{init, join};
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::reduce_op::Op;
    #[pymodule_export]
    use crate::site::Site;
    #[pymodule_export]
    use crate::train::{Reducer, sync_model};
    #[pymodule_export]
    use crate::work::Work;

    use pyo3::prelude::*;

    /// For the package: the files of this folder, whose name ends in a separator, are no program's.
    #[pyfunction]
    fn _library_is_in(folder: String) {
        crate::site::library_is_in(folder);
    }

    /// For the package: the program's line that calls it now.
    #[pyfunction]
    fn _caller(py: Python<'_>) -> String {
        crate::site::caller(py).to_string()
    }

    /// For the package: the interpreter ends, and nothing is called from here on.
    #[pyfunction]
    fn _close(py: Python<'_>) {
        crate::background::close(py);
    }

    #[pymodule_init]
    fn init_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
