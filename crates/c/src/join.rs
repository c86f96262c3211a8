//! How a C process becomes a rank.

use crate::failure::{Failure, Result, entry};
use crate::group::{Group, Out};
use crate::status::Status;
use phalanx::Config;
use phalanx::store::OwnChannel;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lets the process survive a write to a connection whose other end is gone: of the system it hears by `SIGPIPE`, which ends a C program, and which Rust
/// programs ignore. A handler of the program's own is called as before.
fn ignore_broken_connections() {
    #[cfg(unix)]
    {
        use signal_hook::{consts::SIGPIPE, flag};
        static ONCE: std::sync::Once = std::sync::Once::new();
        // A handler that does nothing: other than "ignore" it is not inherited by programs that this one starts. Where it can't be had, all is as it was.
        ONCE.call_once(|| drop(flag::register(SIGPIPE, std::sync::Arc::default())));
    }
}

/// Joins the job that the environment describes, and makes the group of all its ranks: a job of `phalanx run`, `mpirun` or `srun`, or of torchrun with
/// `PHALANX_SECRET`; else a group of one. Collective among the processes of the job.
///
/// From here on `SIGPIPE` no longer ends the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_init(group: *mut *mut Group) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let out = unsafe { Out::of(group) }.map_err(|what| Failure::misuse(format!("init: {what}")))?;
        ignore_broken_connections();
        out.put(phalanx::init()?);
        Ok(())
    })
}

/// How the ranks of a job meet through something that the program has already, such as a store or MPI. It is called once in `phalanx_join`: on rank 0 with
/// the words that all others need, elsewhere with null. It returns these words, in memory that stays until it is called again, or null if they could not
/// be passed on or had within so many seconds. They hold the job's secret: nobody else may read them. It must not throw.
pub type Share =
    Option<unsafe extern "C" fn(context: *mut c_void, words: *const c_char, seconds: f64) -> *const c_char>;

/// The program's function, which is called as long as `phalanx_join` has not returned.
struct Shared {
    share: unsafe extern "C" fn(*mut c_void, *const c_char, f64) -> *const c_char,
    context: *mut c_void,
}

// SAFETY: the header says that the function may be called on any thread, one call at a time; the mutex around it sees to that.
unsafe impl Send for Shared {}

impl Shared {
    fn call(&self, words: Option<&str>, limit: Duration) -> std::result::Result<String, String> {
        let words = words.map(CString::new).transpose().map_err(|_| "the words have a null byte in them")?;
        let words = words.as_ref().map_or(std::ptr::null(), |words| words.as_ptr());
        // SAFETY: it is the function that the program has given, with its context; `phalanx_join` has not returned.
        let said = unsafe { (self.share)(self.context, words, limit.as_secs_f64()) };
        if said.is_null() {
            return Err("the program's function returned null".into());
        }
        // SAFETY: it is not null, so it is text that a null byte ends, which stays until the function is called again.
        let said = unsafe { CStr::from_ptr(said) };
        Ok(said.to_string_lossy().into_owned())
    }
}

/// The variables of an array that a null pointer ends.
///
/// # Safety
/// `variables` is null or such an array, of strings that null bytes end.
unsafe fn named(mut variables: *const *const c_char) -> Result<HashMap<String, String>> {
    let mut named = HashMap::new();
    if variables.is_null() {
        return Ok(named);
    }
    loop {
        // SAFETY: the array goes on until a null pointer, which has not come yet.
        let variable = unsafe { variables.read() };
        if variable.is_null() {
            return Ok(named);
        }
        // SAFETY: it is not null, so it is text that a null byte ends.
        let variable = unsafe { CStr::from_ptr(variable) }.to_string_lossy();
        let Some((name, value)) = variable.split_once('=') else {
            return Err(Failure::misuse(format!("join: `{variable}` is no variable: write NAME=value")));
        };
        named.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        // SAFETY: this was not the last, so there is one more.
        variables = unsafe { variables.add(1) };
    }
}

/// Joins a job of which the program knows the ranks, and makes the group of all of them.
///
/// `variables` are strings `NAME=value`, the last of which a null pointer follows, as in `environ`: `PHALANX_RANK=1`, `PHALANX_WORLD_SIZE=4`, …. Those
/// of the environment do not count. With `share` the ranks meet through it, and no secret is needed; if it is null, through `PHALANX_STORE`. `context` is
/// what `share` is called with, one call at a time, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_join(
    variables: *const *const c_char,
    share: Share,
    context: *mut c_void,
    group: *mut *mut Group,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let out = unsafe { Out::of(group) }.map_err(|what| Failure::misuse(format!("join: {what}")))?;
        // SAFETY: the caller's part.
        let variables = unsafe { named(variables) }?;
        let lookup = |name: &str| variables.get(name).cloned();
        ignore_broken_connections();
        let Some(share) = share else {
            out.put(phalanx::join(&Config::from_lookup(lookup)?)?);
            return Ok(());
        };
        let shared = Arc::new(Mutex::new(Some(Shared { share, context })));
        let during = Arc::clone(&shared);
        let channel = OwnChannel::new("a function of the program", move |words, limit| {
            let shared = during.lock().unwrap_or_else(PoisonError::into_inner);
            shared.as_ref().ok_or("phalanx_join has returned")?.call(words, limit)
        });
        let joined = Config::from_lookup_through(channel, lookup).and_then(|config| phalanx::join(&config));
        // What may still have the channel calls nothing of the program's any more.
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = None;
        out.put(joined?);
        Ok(())
    })
}
