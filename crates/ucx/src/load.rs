//! Finding UCX. Once found it stays: it has threads of its own.

use crate::sys::UcpTable;
use libloading::Library;
use phalanx_core::{Error, Result};
use std::ffi::OsString;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The variable that names the file of libucp.
pub const UCX_LIBRARY: &str = "PHALANX_UCX_LIBRARY";

/// The first version with which this crate was tested.
const OLDEST: (u32, u32) = (1, 13);
const WHAT_TO_INSTALL: &str = "install libucx0 (Debian, Ubuntu) or ucx (Fedora)";

/// UCX as it was found on this machine.
///
/// # Examples
/// ```
/// match phalanx_ucx::Ucp::load() {
///     Ok(ucp) => println!("{ucp}"), // UCX 1.13.1
///     Err(error) => assert!(error.to_string().contains("install libucx0"), "{error}"),
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Ucp(&'static Loaded);

struct Loaded {
    table: UcpTable,
    version: (u32, u32, u32),
}

impl fmt::Display for Ucp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.0.version;
        write!(f, "UCX {major}.{minor}.{patch}")
    }
}

impl fmt::Debug for Ucp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Ucp {
    /// The UCX of this machine: the file that `PHALANX_UCX_LIBRARY` names, else `libucp.so.0` where the system looks for libraries. It is looked for once in a
    /// process, and again after it was not found.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): it is not there, lacks functions, or is older than 1.13. The error says what was tried, and what to install.
    ///
    /// # Examples
    /// ```
    /// use phalanx_ucx::Ucp;
    ///
    /// if let Err(error) = Ucp::load() {
    ///     eprintln!("no UCX here: {error}");
    /// }
    /// ```
    pub fn load() -> Result<Self> {
        static FOUND: Mutex<Option<Ucp>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ucp) = *found {
            return Ok(ucp);
        }
        let named = std::env::var_os(UCX_LIBRARY).filter(|file| !file.is_empty());
        let ucp = Self::find(named.unwrap_or_else(|| OsString::from("libucp.so.0")))?;
        tracing::info!(version = %ucp, "loaded UCX");
        *found = Some(ucp);
        Ok(ucp)
    }

    /// The version of it: 1, 13 and 1 in 1.13.1.
    ///
    /// # Examples
    /// ```
    /// assert!(phalanx_ucx::Ucp::load().map_or(true, |ucp| ucp.version() >= (1, 13, 0)));
    /// ```
    pub fn version(&self) -> (u32, u32, u32) {
        self.0.version
    }

    fn find(file: OsString) -> Result<Self> {
        // SAFETY: UCX may be loaded from any thread; what else stands under such a name is the user's affair.
        let library = unsafe { Library::new(&file) };
        let library = library.map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            unavailable(&file, source.unwrap_or_else(|| error.to_string()))
        })?;
        // SAFETY: the table's types are those of `ucp.h` and `status.h`.
        let table = unsafe { UcpTable::read(&library) };
        let table =
            table.map_err(|missing| unavailable(&file, format!("it lacks {}", missing.join(", "))))?;
        // The table points into it.
        std::mem::forget(library);
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: each is good for one number.
        unsafe { (table.get_version)(&raw mut major, &raw mut minor, &raw mut patch) };
        if (major, minor) < OLDEST {
            let why = format!(
                "it is UCX {major}.{minor}.{patch}, and {}.{} is the oldest that is known to work",
                OLDEST.0, OLDEST.1
            );
            return Err(unavailable(&file, why));
        }
        Ok(Self(Box::leak(Box::new(Loaded { table, version: (major, minor, patch) }))))
    }

    pub(crate) fn table(self) -> &'static UcpTable {
        &self.0.table
    }
}

fn unavailable(file: &OsString, why: String) -> Error {
    let what = "UCX, which PHALANX_BACKEND=ucx takes,".into();
    Error::Unavailable {
        what,
        tried: format!("{}: {why}; {WHAT_TO_INSTALL}, or name the file in {UCX_LIBRARY}", file.display()),
    }
}
