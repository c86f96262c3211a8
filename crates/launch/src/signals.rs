//! SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2: passed on to the jobs that run, and otherwise what they always were.

use crate::event::Event;
use phalanx_core::{Error, Result};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    let mut signals = Signals::new(
        [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0),
    )?;
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

/// A process that was started to ignore SIGCHLD is never told how its children end: they vanish. Gives the signal a handler that does nothing, which the children
/// do not inherit. Without `/proc` it can't be known whether it is ignored, and a handler does no harm.
pub(crate) fn see_how_children_end() -> Result<()> {
    let is_known = cfg!(target_os = "linux");
    if is_known && ignored() & (1 << (SIGCHLD - 1)) == 0 {
        return Ok(());
    }
    let flag = Arc::default();
    signal_hook::flag::register(SIGCHLD, flag)
        .map(drop)
        .map_err(|error| Error::io("making children say how they end (SIGCHLD)", error))
}

/// The signals that this process was started to ignore, as a mask: `nohup` does that with SIGHUP, and a shell with
/// SIGINT for a command in the background. They stay ignored, here and in the ranks. Empty where it cannot be known.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
