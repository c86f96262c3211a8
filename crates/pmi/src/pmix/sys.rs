//! The few functions of PMIx that are called, as its standard (versions 2 to 5) declares them. All `unsafe` code about PMIx is here.
#![allow(unsafe_code, reason = "the functions of a C library")]

use super::launcher;
use crate::fault::Fault;
use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

const LIBRARY: &str = "libpmix.so.2";
/// The variable that names its file.
const LIBRARY_FILE: &str = "PHALANX_PMIX_LIBRARY";
const SUCCESS: c_int = 0;
const GLOBAL: u8 = 3;
const STRING: u16 = 3;
/// `PMIX_MAX_NSLEN` and the 0.
const NAMESPACE_LEN: usize = 256;

/// `pmix_proc_t`: the job's name, with a 0 at the end, and a process of it.
#[repr(C)]
#[derive(Clone)]
struct Process {
    namespace: [c_char; NAMESPACE_LEN],
    rank: u32,
}

/// `pmix_value_t`. Of its union only the string is used; three words are what its largest members have.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    string: *mut c_char,
    words: [u64; 3],
}

type Init = unsafe extern "C" fn(*mut Process, *const c_void, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// PMIx's functions.
pub(super) struct Table {
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_string: ErrorString,
}

impl Table {
    /// Loads the library: the named one, else the launcher's own, else the system's.
    pub(super) fn load() -> Result<Self, Fault> {
        let named = std::env::var_os(LIBRARY_FILE).filter(|file| !file.is_empty());
        match named {
            Some(file) => Self::of_first([file]),
            None => Self::of_first(
                launcher::library().map(PathBuf::into_os_string).into_iter().chain([LIBRARY.into()]),
            ),
        }
    }

    /// Loads the first of these files that is the library.
    fn of_first(files: impl IntoIterator<Item = OsString>) -> Result<Self, Fault> {
        let mut faults = Vec::new();
        for file in files {
            match Self::of(&file) {
                Ok(table) => {
                    tracing::debug!(file = %file.display(), "PMIx's library is loaded");
                    return Ok(table);
                }
                Err(fault) => faults.push(format!("{}: {fault}", file.display())),
            }
        }
        let faults = faults.join("; ");
        Err(Fault::unusable(format!(
            "PMIx's library can't be loaded: {faults} ({LIBRARY_FILE} names its file)"
        )))
    }

    /// Loads this file. It is never unloaded: it has threads of its own.
    fn of(file: &OsStr) -> Result<Self, Fault> {
        // SAFETY: The library's initialisers do nothing but set up its own state.
        let library = unsafe { Library::new(file) }.map_err(|error| Fault::unusable(words(&error)))?;
        let library = ManuallyDrop::new(library);
        Ok(Self {
            // SAFETY: The type is that of the function in pmix.h, here and below, and the library stays loaded for as long as the process lives.
            init: *unsafe { find::<Init>(&library, "PMIx_Init") }?,
            // SAFETY: as above.
            finalize: *unsafe { find::<Finalize>(&library, "PMIx_Finalize") }?,
            // SAFETY: as above.
            put: *unsafe { find::<Put>(&library, "PMIx_Put") }?,
            // SAFETY: as above.
            commit: *unsafe { find::<Commit>(&library, "PMIx_Commit") }?,
            // SAFETY: as above.
            fence: *unsafe { find::<Fence>(&library, "PMIx_Fence") }?,
            // SAFETY: as above.
            get: *unsafe { find::<Get>(&library, "PMIx_Get") }?,
            // SAFETY: as above.
            error_string: *unsafe { find::<ErrorString>(&library, "PMIx_Error_string") }?,
        })
    }

    /// One process's part, from joining to leaving. Blocks without limit.
    pub(super) fn share(&self, rank: u32, key: &str, value: Option<&str>) -> Result<String, Fault> {
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| Fault::unusable(format!("{text:?} has a 0 in it, which ends a text in PMIx")))
        };
        let (key, value) = (text(key)?, value.map(text).transpose()?);
        let mut me = Process { namespace: [0; NAMESPACE_LEN], rank: 0 };
        // SAFETY: `me` is a `pmix_proc_t`, which the library may write; there are no attributes.
        self.check("PMIx_Init", unsafe { (self.init)(&raw mut me, std::ptr::null(), 0) })?;
        let heard = match me.rank == rank {
            true => self.exchange(&me, &key, value),
            false => Err(Fault::unusable(format!("PMIx says that this is process {}, not {rank}", me.rank))),
        };
        // SAFETY: It was initialised, and takes no attributes.
        let left = self.check("PMIx_Finalize", unsafe { (self.finalize)(std::ptr::null(), 0) });
        let heard = heard?;
        // What was to be heard was heard.
        if let Err(fault) = left {
            tracing::debug!(%fault, "PMIx was left");
        }
        Ok(heard)
    }

    fn exchange(&self, me: &Process, key: &CStr, value: Option<CString>) -> Result<String, Fault> {
        if let Some(text) = value {
            let mut value = Value { kind: STRING, data: Data { words: [0; 3] } };
            value.data.string = text.as_ptr().cast_mut();
            // SAFETY: Key and value are texts with a 0 at their ends, and live until the call returns; the library copies them.
            self.check("PMIx_Put", unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw mut value) })?;
            // SAFETY: It takes nothing.
            self.check("PMIx_Commit", unsafe { (self.commit)() })?;
        }
        // SAFETY: No list of processes means all of the job; there are no attributes.
        self.check("PMIx_Fence", unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) })?;
        let zero = Process { rank: 0, ..me.clone() };
        let mut got = std::ptr::null_mut();
        // SAFETY: Process and key live until the call returns; on success the library writes a pointer to a value of its own making.
        let outcome = unsafe { (self.get)(&raw const zero, key.as_ptr(), std::ptr::null(), 0, &raw mut got) };
        self.check("PMIx_Get", outcome)?;
        // SAFETY: It succeeded, so this is null or a value that stays: it is ours to free, which is left undone, once in the life of a process,
        // since the library has no function for it in all its versions.
        let value = unsafe { got.as_ref() }.filter(|value| value.kind == STRING);
        // SAFETY: The kind says that the member of the union is the string.
        let text = value.map(|value| unsafe { value.data.string }).filter(|text| !text.is_null());
        let text = text.ok_or_else(|| Fault::unusable("PMIx_Get gave what is no text"))?;
        // SAFETY: It is not null, ends with a 0, and is never freed.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().map(str::to_owned).map_err(|_| Fault::unusable("PMIx_Get gave what is no text"))
    }

    fn check(&self, function: &str, status: c_int) -> Result<(), Fault> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: It takes any number, and returns a text that is never freed.
        let said = unsafe { (self.error_string)(status) };
        if said.is_null() {
            return Err(Fault::unusable(format!("{function} failed ({status})")));
        }
        // SAFETY: It is not null, ends with a 0, and is never freed.
        let said = unsafe { CStr::from_ptr(said) }.to_string_lossy();
        Err(Fault::unusable(format!("{function} failed: {said} ({status})")))
    }
}

/// # Safety
/// `T` must be the type of that function.
unsafe fn find<'a, T>(library: &'a Library, name: &str) -> Result<Symbol<'a, T>, Fault> {
    // SAFETY: The caller says that the type is right.
    let found = unsafe { library.get::<T>(name) };
    found.map_err(|error| Fault::unusable(format!("{name} is not in it: {}", words(&error))))
}

/// What went wrong, with the system's own words, which are the error's source.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(of_system) => format!("{error}: {of_system}"),
        None => error.to_string(),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_the_library_are_passed_over_and_named() {
        let files = ["/no/such/libpmix.so.2", "libc.so.6", "/no/such/either"].map(OsString::from);
        let fault = Table::of_first(files).err().expect("none is the library").to_string();
        for words in [
            "/no/such/libpmix.so.2: ",
            "No such file",
            "libc.so.6: PMIx_Init",
            "/no/such/either",
            LIBRARY_FILE,
        ] {
            assert!(fault.contains(words), "{words}: {fault}");
        }
    }
}
