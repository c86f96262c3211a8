//! Why a channel did not serve.

use std::fmt;

/// Why a channel did not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The deadline passed while this was awaited.
    Late(String),
    /// The channel can't be used, for this reason.
    Unusable(String),
}

impl Fault {
    pub(crate) fn unusable(why: impl Into<String>) -> Self {
        Self::Unusable(why.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late(what) => write!(f, "{what} did not come in time"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Fault {}
