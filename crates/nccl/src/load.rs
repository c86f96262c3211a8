//! Finding the two libraries. Once found they stay: their threads can't be called back.

use crate::error_text::{cuda_text, nccl_text};
use crate::sys::cuda::{self, CudaTable};
use crate::sys::nccl::{self, NcclTable};
use crate::{mapped_files, python_paths};
use libloading::Library;
use phalanx_core::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The variable that names the file of NCCL.
pub const NCCL_LIBRARY: &str = "PHALANX_NCCL_LIBRARY";
/// The variable that names the file of the CUDA driver.
pub const CUDA_LIBRARY: &str = "PHALANX_CUDA_LIBRARY";

/// NCCL as it was found on this machine.
///
/// # Examples
/// Most machines have none, and that is a value like any other:
/// ```
/// match phalanx_nccl::Nccl::load() {
///     Ok(nccl) => println!("{nccl}"), // NCCL 2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)
///     Err(error) => assert!(error.to_string().contains("libnccl.so.2: "), "{error}"),
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Nccl(&'static LoadedNccl);

struct LoadedNccl {
    table: NcclTable,
    path: PathBuf,
    version: Version,
}

/// The CUDA driver as it was found on this machine.
#[derive(Clone, Copy)]
pub struct Cuda(&'static LoadedCuda);

struct LoadedCuda {
    table: CudaTable,
    path: PathBuf,
    version: i32,
}

/// A version of NCCL; later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 2 in 2.28.9.
    pub major: u32,
    /// 28 in 2.28.9.
    pub minor: u32,
    /// 9 in 2.28.9.
    pub patch: u32,
}

impl Version {
    /// The first with which what is promised here can be kept: in older ones an abort does not wait for what another call has left to be done behind its back,
    /// and frees what that still uses (NVIDIA/nccl#992, mended in 2.19.1).
    pub const MINIMUM: Self = Self { major: 2, minor: 19, patch: 0 };

    /// Reads the number that `ncclGetVersion` gives, which was made otherwise up to 2.8.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Version;
    ///
    /// assert_eq!(Version::from_code(22809), Version { major: 2, minor: 28, patch: 9 });
    /// assert_eq!(Version::from_code(2708), Version { major: 2, minor: 7, patch: 8 });
    /// ```
    pub fn from_code(code: u32) -> Self {
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / major, minor: code % major / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Display for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.0.version, self.0.path.display())
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.0.version / 1000, self.0.version % 1000 / 10);
        write!(f, "CUDA driver {major}.{minor} ({})", self.0.path.display())
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Nccl {
    /// The NCCL of this machine: the file that `PHALANX_NCCL_LIBRARY` names, else `libnccl.so.2`, then `libnccl.so`, where the system looks
    /// for libraries, then that of the active environment of Python (`VIRTUAL_ENV`) and of conda (`CONDA_PREFIX`). It is looked for once in a process, and again after it was not found.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): none was found, it lacks functions, or it is [too old](Version::MINIMUM); the error says what was tried, and what came
    /// of it.
    /// [`Config`](Error::Config): another NCCL is in this process already, as that of a Python package may be; the error names both. Where
    /// `PHALANX_NCCL_LIBRARY` says which is meant, this is only logged.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Error;
    /// use phalanx_nccl::Nccl;
    ///
    /// match Nccl::load() {
    ///     Ok(nccl) => println!("{nccl}"), // NCCL 2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)
    ///     Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"), // and what was tried
    /// }
    /// ```
    pub fn load() -> Result<Self> {
        static FOUND: Mutex<Option<Nccl>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nccl) = *found {
            return Ok(nccl);
        }
        let named = file_from_environment(NCCL_LIBRARY);
        let mut files = candidates(named.as_deref(), &["libnccl.so.2", "libnccl.so"]);
        if named.is_none() {
            files.extend(python_paths::of_environments().into_iter().map(PathBuf::into_os_string));
        }
        let nccl = Self::find(&files).map_err(|error| says_how(error, named.is_some()))?;
        tracing::info!(path = %nccl.0.path.display(), version = %nccl.0.version, "loaded NCCL");
        match two_in_one_process() {
            Some(trouble) if named.is_some() => tracing::warn!("{trouble}"),
            Some(trouble) => return Err(Error::config(trouble)),
            None => {}
        }
        *found = Some(nccl);
        Ok(nccl)
    }

    /// The NCCL in the file `path`.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): it is not there, is not NCCL, or is [too old](Version::MINIMUM).
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Nccl;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let nccl = Nccl::open(Nccl::load()?.path())?;
    /// # assert!(nccl.path().exists());
    /// let error = Nccl::open("/no/such/libnccl.so.2").unwrap_err().to_string();
    /// assert!(error.contains("/no/such/libnccl.so.2"), "{error}");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::find(&[path.as_ref().into()])
    }

    fn find(names: &[OsString]) -> Result<Self> {
        // SAFETY: the tables' types are those of `nccl.h`.
        let read = |library: &Library| unsafe { NcclTable::read(library) };
        let table = find("NCCL", names, read)?;
        let path = path_of(table.get_version as usize);
        let mut code = 0;
        // SAFETY: `code` is good for one int.
        let outcome = unsafe { (table.get_version)(&raw mut code) };
        if outcome != nccl::SUCCESS {
            let tried = format!("{}: ncclGetVersion: {}", path.display(), nccl_text(&table, outcome));
            return Err(Error::Unavailable { what: "NCCL".into(), tried });
        }
        let version = Version::from_code(code.max(0).unsigned_abs());
        if version < Version::MINIMUM {
            let tried = format!(
                "NCCL {version} ({}): at least {}.{} is needed, for what is older may crash when a communicator is aborted while it is at work \
                 (NVIDIA/nccl#992)",
                path.display(),
                Version::MINIMUM.major,
                Version::MINIMUM.minor
            );
            return Err(Error::Unavailable { what: "NCCL".into(), tried });
        }
        Ok(Self(Box::leak(Box::new(LoadedNccl { table, path, version }))))
    }

    /// Whether this process can have it: whether [`load`](Self::load) succeeds.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Nccl;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert!(Nccl::is_available());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn is_available() -> bool {
        Self::load().is_ok()
    }

    /// Which version it is.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Nccl, Version};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert!(Nccl::load()?.version() >= Version::MINIMUM);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// From which file it came.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Nccl;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert!(Nccl::load()?.path().exists());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn table(&self) -> &'static NcclTable {
        &self.0.table
    }
}

impl Cuda {
    /// The CUDA driver of this machine: the file that `PHALANX_CUDA_LIBRARY` names, else `libcuda.so.1`, then `libcuda.so`.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): none was found, it lacks functions, or it finds no device.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Error;
    /// use phalanx_nccl::Cuda;
    ///
    /// match Cuda::load() {
    ///     Ok(cuda) => println!("{cuda}"), // CUDA driver 13.0 (/usr/lib/x86_64-linux-gnu/libcuda.so.1)
    ///     Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"), // and what was tried
    /// }
    /// ```
    pub fn load() -> Result<Self> {
        static FOUND: Mutex<Option<Cuda>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cuda) = *found {
            return Ok(cuda);
        }
        let named = file_from_environment(CUDA_LIBRARY);
        let cuda = Self::find(&candidates(named.as_deref(), &["libcuda.so.1", "libcuda.so"]))?;
        tracing::info!(path = %cuda.0.path.display(), version = cuda.0.version, "loaded the CUDA driver");
        *found = Some(cuda);
        Ok(cuda)
    }

    /// The CUDA driver in the file `path`.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Cuda;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let cuda = Cuda::open(Cuda::load()?.path())?;
    /// # assert!(cuda.path().exists());
    /// assert!(Cuda::open("/no/such/libcuda.so.1").is_err());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::find(&[path.as_ref().into()])
    }

    fn find(names: &[OsString]) -> Result<Self> {
        // SAFETY: the tables' types are those of `cuda.h`.
        let read = |library: &Library| unsafe { CudaTable::read(library) };
        let table = find("the CUDA driver", names, read)?;
        let path = path_of(table.init as usize);
        // SAFETY: any thread may call it, and as often as it likes.
        let outcome = unsafe { (table.init)(0) };
        if outcome != cuda::SUCCESS {
            let tried = format!("{}: cuInit: {}", path.display(), cuda_text(&table, outcome));
            return Err(Error::Unavailable { what: "a CUDA device".into(), tried });
        }
        let mut version = 0;
        // SAFETY: `version` is good for one int.
        unsafe { (table.driver_get_version)(&raw mut version) };
        Ok(Self(Box::leak(Box::new(LoadedCuda { table, path, version }))))
    }

    /// From which file it came.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Cuda;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert!(Cuda::load()?.path().exists());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn table(&self) -> &'static CudaTable {
        &self.0.table
    }
}

/// The error of who found none, with the variable by which one is found.
fn says_how(error: Error, is_named: bool) -> Error {
    let Error::Unavailable { what, tried } = error else { return error };
    let how = if is_named { "is set to that file, and no other is tried" } else { "can name its file" };
    Error::Unavailable { what, tried: format!("{tried}; {NCCL_LIBRARY} {how}") }
}

fn file_from_environment(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

/// A file that the user names is the only one tried.
fn candidates(named: Option<&OsStr>, usual: &[&str]) -> Vec<OsString> {
    named.map_or_else(|| usual.iter().map(OsString::from).collect(), |file| vec![file.to_owned()])
}

/// The table of the first of `names` that can be loaded and has all that is needed.
fn find<T>(
    what: &str,
    names: &[OsString],
    read: impl Fn(&Library) -> Result<T, Vec<&'static str>>,
) -> Result<T> {
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: the libraries named here may be loaded from any thread; what else stands under such a name is the user's affair.
        match unsafe { Library::new(name) } {
            Err(error) => tried.push(format!("{}: {}", name.display(), reason(&error))),
            Ok(library) => match read(&library) {
                Ok(table) => {
                    // The table points into it.
                    std::mem::forget(library);
                    return Ok(table);
                }
                Err(missing) => tried.push(format!("{} lacks {}", name.display(), missing.join(", "))),
            },
        }
    }
    Err(Error::Unavailable { what: what.into(), tried: tried.join("; ") })
}

/// The loader's words, which stand in the source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn path_of(function: usize) -> PathBuf {
    mapped_files::file_at(function).unwrap_or_else(|| "unknown file".into())
}

/// Two of them mix up their symbols or their versions: all seems well until the first collective.
fn two_in_one_process() -> Option<String> {
    let files = mapped_files::files(|name| name.starts_with("libnccl.so"));
    let [first, second, ..] = files.as_slice() else { return None };
    Some(format!(
        "this process has two NCCL libraries, {} and {}: load one of them only, or say with {NCCL_LIBRARY} which is meant",
        first.display(),
        second.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_writes_them() {
        for (code, shown) in [(2708, "2.7.8"), (21_401, "2.14.1"), (22_809, "2.28.9"), (23_007, "2.30.7")] {
            assert_eq!(Version::from_code(code).to_string(), shown);
        }
        assert!(Version::from_code(2708) < Version::from_code(21_401));
    }

    #[test]
    fn who_names_a_file_wants_no_other() {
        assert_eq!(candidates(Some(OsStr::new("/a")), &["b"]), ["/a"]);
        assert_eq!(candidates(None, &["b", "c"]), ["b", "c"]);
    }
}
