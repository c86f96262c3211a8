//! Whether the program of this process can do anything before one of its operations ends.
//!
//! It can't if each of its threads waits in an operation, or for another thread without a limit in time. The kernel says what
//! each thread sleeps in; any doubt counts as a thread that works.

use std::sync::{Arc, Mutex, PoisonError};

/// Threads that wait in an operation of a rank and have done so for a while, as the system numbers them.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Vec<i32>>);

/// This thread waits in an operation, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Here {
    waiting: Arc<Waiting>,
    thread: i32,
}

impl Waiting {
    /// The calling thread waits.
    pub(crate) fn here(self: &Arc<Self>) -> Here {
        let thread = this_thread();
        self.lock().push(thread);
        Here { waiting: self.clone(), thread }
    }

    /// Whether no thread of this process can do anything before one of those that wait goes on.
    pub(crate) fn is_all(&self) -> bool {
        let waiting = self.lock().clone();
        // A thread that ran between the two looks is seen by one of them, or has another number of switches.
        let first = threads::asleep(&waiting);
        first.is_some() && first == threads::asleep(&waiting)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        if let Some(at) = waiting.iter().position(|&thread| thread == self.thread) {
            waiting.swap_remove(at);
        }
    }
}

#[cfg(target_os = "linux")]
fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(not(target_os = "linux"))]
fn this_thread() -> i32 {
    0
}

#[cfg(target_os = "linux")]
mod threads {
    use std::fs;

    /// Threads of phalanx that serve operations and never begin one; names as long as the kernel keeps them.
    const OURS: [&str; 13] = [
        "phalanx-progres",
        "phalanx-control",
        "phalanx-recall",
        "phalanx-probe",
        "phalanx-heartbe",
        "phalanx-trace",
        "phalanx-signals",
        "phalanx-lifelin",
        "phalanx-stderr",
        "phalanx-nccl-wa",
        "phalanx-endpoin",
        "phalanx-sender",
        "phalanx-links",
    ];

    #[cfg(target_arch = "x86_64")]
    const FUTEX: &str = "202";
    #[cfg(not(target_arch = "x86_64"))]
    const FUTEX: &str = "98";

    /// The other threads of the program with how often each has slept, if all of them sleep until another thread wakes them.
    pub(super) fn asleep(waiting: &[i32]) -> Option<Vec<(i32, String)>> {
        let main = i32::try_from(std::process::id()).ok()?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc/self/task").ok()? {
            let path = entry.ok()?.path();
            let thread: i32 = path.file_name()?.to_str()?.parse().ok()?;
            if waiting.contains(&thread) {
                continue;
            }
            let name = fs::read_to_string(path.join("comm")).ok()?;
            if thread != main && OURS.iter().any(|ours| name.trim_end().starts_with(ours)) {
                continue;
            }
            if !is_endless(&fs::read_to_string(path.join("syscall")).ok()?) {
                return None;
            }
            let status = fs::read_to_string(path.join("status")).ok()?;
            let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
            found.push((thread, switches.collect()));
        }
        found.sort();
        Some(found)
    }

    /// Whether a thread that is in this system call waits for another thread, without a limit in time.
    fn is_endless(syscall: &str) -> bool {
        let words: Vec<&str> = syscall.split_whitespace().collect();
        let [number, _word, operation, _value, limit, ..] = words[..] else { return false };
        let operation = u64::from_str_radix(operation.trim_start_matches("0x"), 16);
        // FUTEX_WAIT and FUTEX_WAIT_BITSET, whatever the flags.
        number == FUTEX && matches!(operation.map(|operation| operation & 0x7f), Ok(0 | 9)) && limit == "0x0"
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn no_name_is_longer_than_the_kernel_keeps() {
            assert_eq!(OURS.map(str::len).into_iter().max(), Some(15));
        }

        #[test]
        fn only_a_wait_without_limit_is_endless() {
            let call = |number: &str, operation: &str, limit: &str| {
                is_endless(&format!("{number} 0x7f1 {operation} 0x0 {limit} 0x0 0xffffffff 0x7ff 0x7f2\n"))
            };
            assert!(call(FUTEX, "0x80", "0x0") && call(FUTEX, "0x189", "0x0"));
            assert!(!call(FUTEX, "0x189", "0x7ffd"), "until then");
            assert!(!call(FUTEX, "0x81", "0x0"), "it wakes somebody");
            assert!(!call("0", "0x0", "0x0") && !is_endless("running\n") && !is_endless(""));
        }

        #[test]
        fn a_thread_that_works_or_will_is_seen() {
            // Whatever the other tests do: this thread works.
            assert_eq!(asleep(&[]), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod threads {
    pub(super) fn asleep(_waiting: &[i32]) -> Option<Vec<(i32, String)>> {
        None
    }
}
