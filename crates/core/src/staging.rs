//! Where two ranks that share memory stage.

use crate::Error;
use std::fmt;
use std::str::FromStr;

/// Where two ranks stage that share memory and have a core each.
///
/// # Examples
/// ```
/// use phalanx_core::Staging;
///
/// assert_eq!("swapped".parse::<Staging>()?, Staging::Swapped);
/// assert_eq!(Staging::Own.to_string(), "own");
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// Each in memory of its own.
    Own,
    /// In memory that changes hands.
    Swapped,
    /// In memory that changes hands, and that who reads it claims for writing.
    Claimed,
}

impl Staging {
    /// All of them, the simplest first.
    pub const ALL: [Self; 3] = [Self::Own, Self::Swapped, Self::Claimed];
}

impl FromStr for Staging {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "own" => Ok(Self::Own),
            "swapped" => Ok(Self::Swapped),
            "claimed" => Ok(Self::Claimed),
            _ => Err(Error::config(format!("{text:?} is none of own, swapped and claimed"))),
        }
    }
}

impl fmt::Display for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Swapped => "swapped",
            Self::Claimed => "claimed",
        })
    }
}
