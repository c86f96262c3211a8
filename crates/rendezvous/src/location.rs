//! The location of a job's store.

use crate::channel::Channel;
use phalanx_core::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The location of a job's store: `tcp://host:port`, `file:///directory`, or none.
///
/// ```
/// use phalanx_rendezvous::StoreLocation;
///
/// let location: StoreLocation = "tcp://[::1]:29500".parse()?;
/// assert_eq!(location, StoreLocation::Tcp { host: "::1".into(), port: 29500, host_it: false });
/// assert_eq!(location.to_string(), "tcp://[::1]:29500");
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// A server.
    Tcp {
        /// Its host name or address; an IPv6 address without brackets.
        host: String,
        /// Its port.
        port: u16,
        /// Whether rank 0 has to run it; else the launcher does.
        host_it: bool,
    },
    /// A directory that all processes of the job see.
    File(PathBuf),
    /// Rank 0 runs it, and another launcher's channel says where: see [`Config::met`](crate::Config::met).
    Launcher(Channel),
    /// The process is alone.
    None,
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => write!(f, "tcp://{}", authority(host, *port)),
            Self::File(path) => write!(f, "file://{}", path.display()),
            Self::Launcher(channel) => write!(f, "said through {channel}"),
            Self::None => f.write_str("none"),
        }
    }
}

/// `host:port`, with an IPv6 address in brackets.
pub(crate) fn authority(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

impl FromStr for StoreLocation {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes of a server and of a directory.
    fn from_str(url: &str) -> Result<Self> {
        let bad = |why: &str| Error::config(format!("{url:?} is no place for a store: {why}"));
        if let Some(path) = url.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Self::File(path.into())),
                false => Err(bad("a directory is file:///with/its/full/path")),
            };
        }
        let rest = url.strip_prefix("tcp://").ok_or_else(|| bad("it must begin with tcp:// or file://"))?;
        let (host, port) =
            rest.trim_end_matches('/').rsplit_once(':').ok_or_else(|| bad("the port is missing"))?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| bad("the port is no number from 1 to 65535"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| bad("a bracket is missing"))?,
            None if host.contains(':') => return Err(bad("an IPv6 address is written in brackets")),
            None => host,
        };
        match host.is_empty() || host.contains(['/', '[', ']', '@', ' ']) {
            true => Err(bad("the host is missing or has characters that no host has")),
            false => Ok(Self::Tcp { host: host.into(), port, host_it: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_places_are_read_and_written() {
        for url in
            ["tcp://localhost:1", "tcp://10.0.0.7:65535", "tcp://[fe80::1%eth0]:29500", "file:///scratch/x y"]
        {
            assert_eq!(url.parse::<StoreLocation>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn bad_places_are_refused_with_the_reason() {
        for (url, why) in [
            ("", "must begin"),
            ("http://a:1", "must begin"),
            ("tcp://a", "port is missing"),
            ("tcp://a:", "no number"),
            ("tcp://a:0", "no number"),
            ("tcp://a:65536", "no number"),
            ("tcp://::1:29500", "brackets"),
            ("tcp://[::1:29500", "bracket is missing"),
            ("tcp://:29500", "host is missing"),
            ("tcp://user@a:1", "no host has"),
            ("file://relative/path", "its/full/path"),
        ] {
            let error = url.parse::<StoreLocation>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(url), "{error}");
        }
    }
}
