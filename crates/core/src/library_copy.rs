//! Which copies between ranks that share memory are the C library's.

use crate::Error;
use std::fmt;
use std::str::FromStr;

/// Which copies to and from the memory that ranks share are the C library's. The others are made by vectors.
///
/// # Examples
/// ```
/// use phalanx_core::LibraryCopy;
///
/// assert_eq!("write".parse::<LibraryCopy>()?, LibraryCopy::Write);
/// assert_eq!(LibraryCopy::Always.to_string(), "always");
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryCopy {
    /// None.
    Never,
    /// Those that write what another rank has read last.
    Write,
    /// Those, and those that read what another rank has written.
    Always,
}

impl LibraryCopy {
    /// All of them, the simplest first.
    pub const ALL: [Self; 3] = [Self::Never, Self::Write, Self::Always];
}

impl FromStr for LibraryCopy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "never" => Ok(Self::Never),
            "write" => Ok(Self::Write),
            "always" => Ok(Self::Always),
            _ => Err(Error::config(format!("{text:?} is none of never, write and always"))),
        }
    }
}

impl fmt::Display for LibraryCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "never",
            Self::Write => "write",
            Self::Always => "always",
        })
    }
}
