//! What goes wrong on command: `PHALANX_DOUBLE`, a list of these words with commas.
//!
//! | word | what happens in the process that has it |
//! |---|---|
//! | `version=22703` | it is that version of NCCL, as far as `version.rs` knows one from another |
//! | `capability=80` | its devices have the compute capability 8.0, instead of 9.0 |
//! | `devices=2` | as many devices, instead of 8 |
//! | `no-device` | `cuInit` finds none |
//! | `memory=4096` | no more than so many bytes of device memory |
//! | `pinned=4096` | no piece of pinned memory has more bytes |
//! | `slow=300` | before each thing that a stream does it waits up to so many microseconds, now more, now less: whoever forgets an event reads too early |
//! | `blocking-file` | a file `nccl.conf` says that communicators block |
//! | `init-slow=300` | a communicator takes so many milliseconds more to come about |
//! | `init-hangs` | a communicator never comes about |
//! | `error@3` | the communicator has an asynchronous error from its third launch on, which never ends |
//! | `gone@3` | with its third launch, or, at 0, when it joins, the process is gone, of which the others' NCCL hears at once: they have an asynchronous error. It is the test that ends the process |
//! | `stall@3` | the third launch of each communicator never ends, and nothing says so |
//! | `block@3` | as a `stall`, but the launch does not come out of NCCL: where that launches on the calling thread, the caller is in there until an abort of another thread |
//! | `sticky@3` | with the third launch a kernel goes wrong: from then on every call that reaches the device has its error |
//! | `no-context` | no thread can take the device's context any more |
//! | `stale` | NCCL's last error is a text about something long ago |
//! | `wrong-sums` | all results are a little wrong |
//! | `refuse@3` | the third launch is refused |
//! | `abort-hangs`, `finalize-hangs` | these never come back, or never end |

//!
//! Tests may give a process another list while it runs, see `probe.rs`.

use crate::lock;
use std::sync::Mutex;

/// Instead of that of the environment.
pub(crate) static GIVEN: Mutex<Option<String>> = Mutex::new(None);

/// The number behind `word` and one of `=` and `@`, if that is in the list.
pub(crate) fn number(word: &str) -> Option<u64> {
    value(word)?.parse().ok()
}

/// Whether the list has `word`.
pub(crate) fn has(word: &str) -> bool {
    value(word).is_some()
}

fn value(word: &str) -> Option<String> {
    let given = lock(&GIVEN).clone();
    let list = given.or_else(|| std::env::var("PHALANX_DOUBLE").ok())?;
    let of = |entry: &str| Some(entry.trim().strip_prefix(word)?.to_owned());
    let rest = list.split(',').filter_map(of).find(|rest| rest.is_empty() || rest.starts_with(['=', '@']))?;
    Some(rest.get(1..).unwrap_or_default().to_owned())
}
