//! How many ranks `-n` asks for.

use phalanx_core::{Error, Result};
use std::path::Path;
use std::str::FromStr;
use std::thread::available_parallelism;

/// A number, or what of this host is to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankCount {
    Number(usize),
    /// One for each GPU, where any is visible, else for each core.
    Auto,
    Gpu,
    Cpu,
}

impl FromStr for RankCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            number => number
                .parse()
                .map(Self::Number)
                .map_err(|_| "it is a number of ranks, or auto, gpu or cpu".to_owned()),
        }
    }
}

impl RankCount {
    /// The number, if it says one that holds for any host.
    pub(crate) fn number(self) -> Option<usize> {
        if let Self::Number(ranks) = self { Some(ranks) } else { None }
    }

    /// The number for this host.
    pub(crate) fn here(self) -> Result<usize> {
        let gpus = || visible_gpus(std::env::var(VISIBLE).ok().as_deref(), Path::new(DRIVER));
        let cores = || available_parallelism().map_or(1, usize::from);
        match (self, gpus) {
            (Self::Number(ranks), _) => Ok(ranks),
            (Self::Cpu, _) => Ok(cores()),
            (Self::Auto, gpus) => Ok(Some(gpus()).filter(|&gpus| gpus > 0).unwrap_or_else(cores)),
            (Self::Gpu, gpus) => match gpus() {
                0 => Err(Error::config(format!(
                    "-n gpu: there is no GPU of NVIDIA's here ({DRIVER} lists none), or {VISIBLE} hides them"
                ))),
                gpus => Ok(gpus),
            },
        }
    }
}

/// The GPUs that a program may use; CUDA counts them up to the first number that is none.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The driver has a folder here for each GPU.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

fn visible_gpus(visible: Option<&str>, driver: &Path) -> usize {
    match visible {
        Some(list) => list
            .split(',')
            .map(str::trim)
            .take_while(|gpu| !gpu.is_empty() && !gpu.starts_with('-') && *gpu != "NoDevFiles")
            .count(),
        None => std::fs::read_dir(driver).map_or(0, |gpus| gpus.flatten().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_those_that_the_variable_names_else_those_of_the_driver() {
        let driver = tempfile::tempdir().unwrap();
        for gpu in ["0000:01:00.0", "0000:02:00.0"] {
            std::fs::create_dir(driver.path().join(gpu)).unwrap();
        }
        for (visible, gpus) in [
            (None, 2),
            (Some("0,1,3"), 3),
            (Some("GPU-8f3a,MIG-11aa"), 2),
            (Some("0,-1,1"), 1),
            (Some(""), 0),
            (Some("NoDevFiles"), 0),
        ] {
            assert_eq!(visible_gpus(visible, driver.path()), gpus, "{visible:?}");
        }
        assert_eq!(visible_gpus(None, &driver.path().join("none")), 0);
    }
}
