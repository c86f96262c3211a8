//! Where a Python program calls: the file and the line that errors and traces name.

use phalanx::CallSite;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};

/// A line of a program, which errors and traces name as the place of a call.
#[pyclass(frozen, name = "CallSite", module = "phalanx")]
#[derive(Debug)]
pub(crate) struct Site(pub(crate) CallSite);

#[pymethods]
impl Site {
    #[new]
    fn new(file: &str, line: u32) -> Self {
        Self(site(file, line))
    }

    #[getter]
    fn file(&self) -> &str {
        &self.0.file
    }

    #[getter]
    fn line(&self) -> u32 {
        self.0.line
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

/// A place whose file is not copied with each call: programs have few files, which are kept.
fn site(file: &str, line: u32) -> CallSite {
    static FILES: Mutex<Option<HashMap<String, &'static str>>> = Mutex::new(None);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let files = files.get_or_insert_default();
    let kept = match files.get(file) {
        Some(kept) => kept,
        None => {
            let cut = file.len().saturating_sub(CallSite::FILE_LEN_MAX);
            let cut = (cut..=file.len()).find(|&i| file.is_char_boundary(i)).unwrap_or(0);
            let kept: &'static str = Box::leak(file[cut..].into());
            files.insert(file.into(), kept);
            kept
        }
    };
    CallSite { file: Cow::Borrowed(kept), line }
}

/// Where the program calls that runs now: the innermost frame that is of no library; the outermost, where all are.
pub(crate) fn caller(py: Python<'_>) -> CallSite {
    search(py).unwrap_or(CallSite { file: Cow::Borrowed("<python>"), line: 0 })
}

fn search(py: Python<'_>) -> PyResult<CallSite> {
    static GET_FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut frame = GET_FRAME.import(py, "sys", "_getframe")?.call0()?;
    loop {
        let file = frame.getattr(intern!(py, "f_code"))?.getattr(intern!(py, "co_filename"))?;
        let file = file.cast::<PyString>()?.to_cow()?;
        let outer = frame.getattr(intern!(py, "f_back"))?;
        if outer.is_none() || !is_library(&file) {
            // A frame between two lines has none.
            let line: Option<u32> = frame.getattr(intern!(py, "f_lineno"))?.extract()?;
            return Ok(site(&file, line.unwrap_or(0)));
        }
        frame = outer;
    }
}

/// The folders of libraries, with a separator at the end of each.
static FOLDERS: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Says that the files of a folder are a library's: calls that they make are those of the program that uses it.
pub(crate) fn library_is_in(folder: String) {
    FOLDERS.write().unwrap_or_else(PoisonError::into_inner).push(folder);
}

fn is_library(file: &str) -> bool {
    let folders = FOLDERS.read().unwrap_or_else(PoisonError::into_inner);
    folders.iter().any(|folder| file.starts_with(folder.as_str()))
}
