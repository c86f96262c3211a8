//! Every way to perform a collective, whatever moves the data: what `phalanx algo` lists and `PHALANX_ALGO` forces.

use crate::{Algorithm, LevelsWay, MemoryWay};
use phalanx_core::{Error, OpKind, Result};
use std::fmt;
use std::str::FromStr;

/// The collectives, in the order in which they are listed.
const OPS: [OpKind; 9] = [
    OpKind::AllReduce,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
    OpKind::Barrier,
];

/// A way to perform one operation.
///
/// Written `all_reduce/ring`, `all_reduce/shm/push`, `all_reduce/two_level/slices`, and parsed from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// By messages, over whatever carries them.
    Messages(Algorithm),
    /// Among ranks that share memory.
    Memory(OpKind, MemoryWay),
    /// Over several hosts, some of which have several ranks.
    Levels(OpKind, LevelsWay),
}

/// What the ways are made of that the ranks of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Messages alone.
    Messages,
    /// Memory that all share, and messages.
    Memory,
    /// Memory that those of a host share, messages between hosts, and among all.
    Levels,
}

impl Way {
    /// All there are, by operation.
    pub fn all() -> impl Iterator<Item = Self> {
        OPS.into_iter().flat_map(Self::of)
    }

    /// Those of an operation: by messages, in shared memory, over several hosts. None of what is no collective.
    pub fn of(op: OpKind) -> impl Iterator<Item = Self> {
        let memory = MemoryWay::of(op).iter().map(move |way| Self::Memory(op, *way));
        let levels = LevelsWay::of(op).iter().map(move |way| Self::Levels(op, *way));
        Algorithm::of(op).map(Self::Messages).chain(memory).chain(levels)
    }

    /// The operation that it performs.
    pub fn op(self) -> OpKind {
        match self {
            Self::Messages(algorithm) => algorithm.op(),
            Self::Memory(op, _) | Self::Levels(op, _) => op,
        }
    }

    /// Its name among the ways of its operation: `ring`, `shm/push`, `two_level/slices`.
    pub fn name(self) -> String {
        match self {
            Self::Messages(algorithm) => algorithm.name().to_owned(),
            Self::Memory(_, way) => format!("shm/{}", way.name()),
            Self::Levels(_, way) => format!("two_level/{}", way.name()),
        }
    }

    /// Whether its result, where it reduces, can be that of adding up in the order of the ranks.
    pub fn keeps_rank_order(self) -> bool {
        match self {
            Self::Messages(algorithm) => algorithm.keeps_rank_order(),
            Self::Memory(..) => true,
            Self::Levels(op, way) => {
                let reduces = matches!(op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce);
                !reduces || way == LevelsWay::Direct
            }
        }
    }

    /// Parses `operation=name`, as in `PHALANX_ALGO`.
    ///
    /// # Errors
    /// [`Error::Config`] with the valid names.
    pub(crate) fn forced(entry: &str) -> Result<Self> {
        let (op, name) =
            entry.split_once('=').map(|(op, name)| (op.trim(), name.trim())).ok_or_else(|| {
                Error::config(format!(
                    "{entry:?} is not of the form operation=algorithm, as in all_reduce=ring"
                ))
            })?;
        let Some(op) = OPS.into_iter().find(|candidate| candidate.name() == op) else {
            let ops: Vec<_> = OPS.iter().map(|op| op.name()).collect();
            return Err(Error::config(format!(
                "no collective is called {op:?}; there are {}",
                ops.join(", ")
            )));
        };
        Self::of(op).find(|way| way.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::of(op).map(Self::name).collect();
            Error::config(format!("{op} has no algorithm {name:?}; it has {}", names.join(", ")))
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.op(), self.name()))
    }
}

impl FromStr for Way {
    type Err = Error;

    /// Parses `operation/name`.
    ///
    /// # Errors
    /// [`Error::Config`] with all valid names.
    fn from_str(text: &str) -> Result<Self> {
        Self::all().find(|way| way.to_string() == text).ok_or_else(|| {
            let all: Vec<_> = Self::all().map(|way| way.to_string()).collect();
            Error::config(format!("no algorithm {text:?}; there are {}", all.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_parse_back() {
        let all: Vec<_> = Way::all().collect();
        let names: HashSet<_> = all.iter().map(Way::to_string).collect();
        assert_eq!(names.len(), all.len());
        for way in all {
            assert_eq!(way.to_string().parse::<Way>().unwrap(), way);
            assert_eq!(Way::forced(&format!("{}={}", way.op(), way.name())).unwrap(), way);
        }
    }

    #[test]
    fn every_algorithm_is_a_way() {
        let ways: HashSet<_> = Way::all().collect();
        assert!(Algorithm::ALL.iter().all(|algorithm| ways.contains(&Way::Messages(*algorithm))));
        assert_eq!(
            "all_reduce/shm/push".parse::<Way>().unwrap(),
            Way::Memory(OpKind::AllReduce, MemoryWay::Push)
        );
    }
}
