//! The reductions that NCCL can do: they depend on its version, and on all devices of a communicator.

use crate::element::{DataType, number};
use crate::load::Version;
use phalanx_core::ReduceOp;

/// The abilities of a communicator, the same on all its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) version: Version,
    /// The least compute capability of its devices.
    pub(crate) capability: (u32, u32),
    /// Whether the communicator has one rank.
    pub(crate) is_alone: bool,
}

impl Abilities {
    /// Why elements of this type, called `name`, are not reduced so. NCCL would say so too, but its communicator is of no use afterwards.
    pub(crate) fn lack(
        self,
        data_type: Option<DataType>,
        name: impl std::fmt::Display,
        op: ReduceOp,
    ) -> Option<String> {
        let Self { version, capability: (major, minor), is_alone } = self;
        let Some(data_type) = data_type.filter(|data_type| version >= data_type.since()) else {
            return Some(format!("NCCL {version} does not reduce {name}"));
        };
        match op {
            _ if op.factor().is_none() && number(op).is_none() => {
                return Some(format!("NCCL has no {op}; reduce on the host, or another way"));
            }
            _ if !matches!(data_type, DataType::F8E4M3 | DataType::F8E5M2) => return None,
            _ if major < 9 => {}
            // What does that for a rank alone was compiled without these types (2.24 to 2.30).
            ReduceOp::PreMulSum(_) | ReduceOp::Avg if is_alone => {
                return Some(format!("NCCL {version} does not multiply {name} for a rank that is alone"));
            }
            _ => return None,
        }
        Some(format!(
            "NCCL reduces {name} from compute capability 9.0 on, and a device here has {major}.{minor}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits_want_a_new_library_new_devices_and_company() {
        let abilities = |minor, major, is_alone| {
            let version = Version { major: 2, minor, patch: 3 };
            Abilities { version, capability: (major, 0), is_alone }
        };
        let lack = |abilities: Abilities, op| abilities.lack(Some(DataType::F8E4M3), "them", op);
        let (sum, avg) = (ReduceOp::Sum, ReduceOp::Avg);
        assert_eq!(lack(abilities(24, 9, false), avg), None);
        assert_eq!(lack(abilities(24, 10, true), sum), None);
        assert_eq!(lack(abilities(23, 9, false), sum).unwrap(), "NCCL 2.23.3 does not reduce them");
        assert_eq!(
            lack(abilities(30, 8, false), sum).unwrap(),
            "NCCL reduces them from compute capability 9.0 on, and a device here has 8.0"
        );
        for op in [avg, ReduceOp::PreMulSum(2.0)] {
            assert_eq!(
                lack(abilities(30, 9, true), op).unwrap(),
                "NCCL 2.30.3 does not multiply them for a rank that is alone"
            );
            assert_eq!(abilities(30, 8, true).lack(Some(DataType::F16), "", op), None);
        }
    }
}
