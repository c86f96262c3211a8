//! The versions of a parameter that ranks hold, where they do not hold the same.

use std::fmt;

/// One version of a parameter, which some ranks hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Type and shape, as text: `f32 [10, 128]`. `None`: these ranks have no parameter of the name.
    pub kind: Option<String>,
    /// The hash of its bytes, in row-major order; 0 where there is none.
    pub hash: u64,
    /// The ranks that hold it, in rising order.
    pub ranks: Vec<usize>,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "{kind} with hash {:016x}", self.hash)?,
            None => f.write_str("none")?,
        }
        match &self.ranks[..] {
            [rank] => write!(f, " on rank {rank}"),
            ranks => write!(f, " on ranks {ranks:?}"),
        }
    }
}

/// Lists the versions in one line.
pub(crate) fn listed(versions: &[Version]) -> String {
    versions.iter().map(Version::to_string).collect::<Vec<_>>().join(", ")
}
