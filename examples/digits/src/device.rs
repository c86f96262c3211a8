//! Where a rank trains, and the group that reaches its tensors there.

use crate::saving::Saving;
use crate::train;
use candle_core::Device;
use digits_common::cli::Options;
use std::str::FromStr;

/// As `--device` says it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Cpu,
    /// The GPU with this number; without one, of the rank's number on its host.
    Cuda(Option<usize>),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.strip_prefix(':').and_then(|number| number.parse().ok()).map(Some);
        match text.strip_prefix("cuda") {
            None if text == "cpu" => Ok(Self::Cpu),
            Some("") => Ok(Self::Cuda(None)),
            Some(rest) if number(rest).is_some() => Ok(Self::Cuda(number(rest).flatten())),
            _ => Err("neither cpu nor cuda nor cuda:N".into()),
        }
    }
}

impl Place {
    /// Trains there, as one of the ranks that the environment tells of.
    pub(crate) fn train(self, options: &Options, saving: &Saving) -> anyhow::Result<()> {
        let group = phalanx::init()?;
        match self {
            Self::Cpu => {
                train::train(&group, &Device::Cpu, options, saving)?;
                group.finalize()?;
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(number) => {
                let number = number.unwrap_or(group.local_rank());
                let all = phalanx_candle::HybridGroup::new(&group, number)?;
                train::train(&all, &Device::new_cuda(number)?, options, saving)?;
                all.finalize()?;
            }
            #[cfg(not(feature = "cuda"))]
            Self::Cuda(number) => {
                let number = number.unwrap_or(group.local_rank());
                anyhow::bail!(
                    "no GPU {number}: this program was built without `--features cuda`, see docs/reference/cuda.md"
                )
            }
        }
        Ok(())
    }
}
