//! The prices of moving bytes on this machine: built in, or measured once by [`tune`](crate::bootstrap::tune) and kept in a file.
//!
//! The choice among algorithms must be the same on all ranks, so the prices of rank 0 count: it tells them at init.

use crate::atomic_write::atomic_write;
use phalanx_algo::Link;
use phalanx_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::SystemTime;

/// The prices of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// On which machine, and when; `None`: the built-in ones.
    pub measured: Option<Measured>,
    /// Between ranks of this host.
    pub loopback: Link,
    /// Between hosts. Never measured here: whoever knows better can write it into the file.
    pub network: Link,
}

/// The origin of measured prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Processor, cores that may be used, and kernel: on another machine the prices don't count.
    pub machine: String,
    /// In UTC.
    pub date: String,
}

impl Measured {
    /// This machine, today.
    pub(crate) fn here() -> Self {
        Self { machine: machine(), date: today() }
    }
}

impl Prices {
    /// The prices for a machine that was not measured.
    pub const BUILT_IN: Self = Self { measured: None, loopback: Link::LOOPBACK, network: Link::TCP };

    /// The file of measured prices: `phalanx/machine.json` in `XDG_CACHE_HOME` or `~/.cache`. `None` without a home.
    pub fn file() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(cache.join("phalanx").join("machine.json"))
    }

    /// The prices measured on this machine; else the built-in ones, with a warning if the file is there but no good.
    pub fn of_this_machine() -> Self {
        let Some(file) = Self::file() else { return Self::BUILT_IN };
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::BUILT_IN,
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "prices of this machine can't be read");
                return Self::BUILT_IN;
            }
        };
        Self::parse(&text).unwrap_or_else(|why| {
            tracing::warn!(file = %file.display(), why, "no prices of this machine; run `phalanx tune`");
            Self::BUILT_IN
        })
    }

    pub(crate) fn parse(text: &[u8]) -> std::result::Result<Self, String> {
        let prices: Self = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        match &prices.measured {
            Some(measured) if measured.machine != machine() => {
                Err(format!("measured on another machine: {}", measured.machine))
            }
            _ if !(is_sane(&prices.loopback) && is_sane(&prices.network)) => {
                Err("a price that is no positive number".into())
            }
            _ => Ok(prices),
        }
    }

    /// Keeps them for the jobs to come; returns the file.
    ///
    /// # Errors
    /// [`Error::Config`] where there is no home for it, [`Error::Io`] where it can't be written.
    pub fn save(&self) -> Result<PathBuf> {
        let file = Self::file().ok_or_else(|| {
            Error::config("no place for the prices: neither XDG_CACHE_HOME nor HOME is set")
        })?;
        // Jobs that begin meanwhile read the old ones or the new ones.
        atomic_write(&file, &serde_json::to_vec_pretty(self).expect("prices are plain data"))?;
        Ok(file)
    }

    /// The prices for `world_size` ranks, `local_world_size` of them on a host with `cores`.
    pub fn link(&self, world_size: usize, local_world_size: usize, cores: usize) -> Link {
        let link = if local_world_size == world_size { self.loopback } else { self.network };
        Link { ranks_per_core: local_world_size as f64 / cores as f64, ..link }
    }

    /// The origin of these prices, in words.
    pub fn origin(&self) -> String {
        self.measured.as_ref().map_or_else(
            || "built in (`phalanx tune` measures this machine)".into(),
            |Measured { machine, date }| format!("measured on {date}, {machine}"),
        )
    }
}

/// Encodes prices as rank 0 tells them to the others.
pub(crate) fn encode(link: &Link) -> Vec<u8> {
    serde_json::to_vec(link).expect("prices are plain data")
}

/// Decodes the prices that rank 0 told.
pub(crate) fn decode(text: &[u8]) -> Result<Link> {
    let link = serde_json::from_slice(text).ok().filter(is_sane);
    link.ok_or_else(|| Error::config("the prices that rank 0 put into the store make no sense"))
}

fn is_sane(link: &Link) -> bool {
    let Link { latency_s, bandwidth_bytes_per_s, combine_bytes_per_s, turn_s, ranks_per_core } = *link;
    let positive = [latency_s, bandwidth_bytes_per_s, combine_bytes_per_s, ranks_per_core];
    positive.iter().all(|price| price.is_finite() && *price > 0.0) && turn_s.is_finite() && turn_s >= 0.0
}

fn machine() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let cpu = model.unwrap_or_else(|| std::env::consts::ARCH.into());
    format!("{cpu}, {} cores, {}", cores(), kernel())
}

/// `2026-11-23`, in UTC.
fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now[..10].to_owned()
}

/// The cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(unix)]
fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

#[cfg(not(unix))]
fn kernel() -> String {
    std::env::consts::OS.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(prices: &Prices) -> std::result::Result<Prices, String> {
        Prices::parse(&serde_json::to_vec(prices).unwrap())
    }

    #[test]
    fn a_file_counts_only_on_the_machine_that_wrote_it() {
        let here = Prices { measured: Some(Measured::here()), ..Prices::BUILT_IN };
        assert_eq!(parsed(&here).unwrap(), here);
        let moved = Measured { machine: "another".into(), ..Measured::here() };
        let why = parsed(&Prices { measured: Some(moved), ..here }).unwrap_err();
        assert!(why.contains("another"), "{why}");
    }

    #[test]
    fn a_file_says_on_which_day_it_was_measured() {
        let parts: Vec<u32> = today().split('-').map(|part| part.parse().unwrap()).collect();
        assert!(matches!(parts[..], [year, 1..=12, 1..=31] if year > 2025), "{parts:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Prices::parse(b"{").is_err());
        for latency_s in [0.0, -1.0] {
            let link = Link { latency_s, ..Link::TCP };
            assert!(parsed(&Prices { network: link, ..Prices::BUILT_IN }).is_err());
            assert!(decode(&encode(&link)).is_err());
        }
        assert_eq!(decode(&encode(&Link::LOOPBACK)).unwrap(), Link::LOOPBACK);
    }

    #[test]
    fn ranks_of_one_host_pay_no_network_and_crowds_are_seen() {
        let prices = Prices::BUILT_IN;
        assert_eq!(prices.link(2, 2, 2), Link { ranks_per_core: 1.0, ..Link::LOOPBACK });
        assert_eq!(prices.link(8, 4, 2), Link { ranks_per_core: 2.0, ..Link::TCP });
    }
}
