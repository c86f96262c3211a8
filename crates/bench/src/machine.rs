//! The machine on which something was measured, and the program.

use serde::Serialize;
use std::time::SystemTime;

/// The facts about a machine that belong beside every figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    pub(crate) cpu: String,
    /// The cores that this process may use.
    pub(crate) cores: usize,
    /// The load when the measurement began: tasks that ran or wanted to, as a mean of one minute.
    pub(crate) load: Option<f64>,
    pub(crate) kernel: String,
    pub(crate) compiler: String,
    pub(crate) commit: String,
    /// The date, in UTC.
    pub(crate) date: String,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, load, kernel, .. } = self;
        write!(f, "{cpu}, {cores} cores, {kernel}")?;
        load.map_or(Ok(()), |load| write!(f, ", load {load:.2} before"))
    }
}

impl Machine {
    /// This one, now.
    pub(crate) fn here() -> Self {
        Self {
            cpu: cpu().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load: load(),
            kernel: kernel(),
            compiler: env!("BENCH_COMPILER").to_owned(),
            commit: env!("BENCH_COMMIT").to_owned(),
            date: today(),
        }
    }
}

/// `2026-11-23`, in UTC.
fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now[..10].to_owned()
}

/// What Linux says of it.
fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// What Linux says of it.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(unix)]
fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

#[cfg(not(unix))]
fn kernel() -> String {
    std::env::consts::OS.to_owned()
}
