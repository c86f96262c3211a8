//! Whether the devices add up right, before anybody trusts them: libraries that don't fit each other have computed partial sums without a word.

use super::NcclGroup;
use crate::buffer::DeviceBuffer;
use phalanx_core::{Error, ReduceOp, Result};

/// Enough for several blocks of threads, and no multiple of anything: some versions forgot the last elements.
const LEN: usize = 4099;

impl NcclGroup {
    /// A sum and an average that are known. Collective.
    pub(crate) fn self_test(&self) -> Result<()> {
        let ranks = (self.world_size() * (self.world_size() + 1) / 2) as f32;
        let numbers = |of_rank: f32| (0..LEN).map(|i| (i % 7 + 1) as f32 * of_rank).collect::<Vec<_>>();
        for (op, of_all) in [(ReduceOp::Sum, ranks), (ReduceOp::Avg, ranks / self.world_size() as f32)] {
            let mut buffer = DeviceBuffer::from_host(self.stream(), &numbers((self.rank() + 1) as f32))?;
            let outcome = self.all_reduce(&mut buffer, op).and_then(super::Work::wait);
            if let Err(Error::Timeout { .. }) = outcome {
                tracing::error!(
                    "the devices' first sum does not come: where transfers between the GPUs of a machine hang (IOMMU, ACS), \
                     NCCL_P2P_DISABLE=1 helps"
                );
            }
            outcome?;
            let found = buffer.to_host(self.stream(), self.timeout)?;
            let wrong = found
                .iter()
                .zip(numbers(of_all))
                .position(|(found, right)| (found - right).abs() > 1e-3 * right);
            if let Some(i) = wrong {
                let what = format!(
                    "got {} instead of {} in the {op} of element {i} with {}",
                    found[i],
                    numbers(of_all)[i],
                    self.describe()
                );
                let error = Error::WrongSum { rank: self.rank(), world_size: self.world_size(), what };
                self.abort(&error.to_string());
                return Err(error);
            }
        }
        // Nobody begins with a group in which another rank got something wrong.
        self.barrier()
    }
}
