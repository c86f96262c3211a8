//! SIGINT, SIGTERM and SIGHUP: passed on to the jobs that run, and otherwise what they always were.

use crate::supervise::Event;
use phalanx_core::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The jobs that want to hear of signals. Signals belong to the process, so there is one table.
static TABLE: Mutex<Table> = Mutex::new(Table { listening: false, next: 0, jobs: Vec::new() });

struct Table {
    listening: bool,
    next: u64,
    jobs: Vec<(u64, Sender<Event>)>,
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, signals are passed on to one job.
#[derive(Debug)]
pub(crate) struct Forwarding(u64);

/// Begins to pass signals on to `events`.
pub(crate) fn forward_to(events: Sender<Event>) -> Result<Forwarding> {
    let mut table = table();
    if !table.listening {
        listen().map_err(|error| Error::io("listening for signals", error))?;
        table.listening = true;
    }
    let id = table.next;
    table.next += 1;
    table.jobs.push((id, events));
    Ok(Forwarding(id))
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        table().jobs.retain(|(id, _)| *id != self.0);
    }
}

fn listen() -> std::io::Result<()> {
    let ignored = ignored();
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0))?;
    let pass_on = move || {
        for signal in signals.forever() {
            let table = table();
            for (_, job) in &table.jobs {
                // A job that is just over needs no signal.
                let _ = job.send(Event::Signal(signal));
            }
            if table.jobs.is_empty() {
                drop(table);
                // Ends this process, as it would have ended without us.
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("phalanx-signals".to_owned()).spawn(pass_on).map(drop)
}

/// The signals that this process was started to ignore, as a mask: `nohup` does that with SIGHUP, and a shell with
/// SIGINT for a command in the background. They stay ignored, here and in the ranks. Empty where it cannot be known.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
