//! Whatever stands in the environment.

use crate::{Config, StoreLocation};
use phalanx_core::Error;
use std::collections::HashMap;

/// All variables that are read, but for the one that names a file.
const NAMES: &[&str] = &[
    "PHALANX_RANK",
    "PHALANX_WORLD_SIZE",
    "PHALANX_LOCAL_RANK",
    "PHALANX_LOCAL_WORLD_SIZE",
    "PHALANX_NODE_RANK",
    "PHALANX_STORE",
    "PHALANX_SECRET",
    "PHALANX_JOB_ID",
    "PHALANX_HOST",
    "PHALANX_TIMEOUT_S",
    "PHALANX_INIT_TIMEOUT_S",
    "PHALANX_BACKEND",
    "PHALANX_HOST_ID",
    "PHALANX_ALGO",
    "PHALANX_TRACE_DIR",
    "PHALANX_TRACE_BUFFER",
    "PHALANX_TRACE_SIGNAL",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_ID",
    "SLURM_JOB_ID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
    "HOME",
];

/// Lines, each of a byte that chooses a variable and its value. What is accepted makes sense, what is refused is refused
/// as configuration, and the secret is never repeated.
pub fn config(data: &[u8]) {
    let line = |line: &[u8]| {
        let (name, value) = line.split_first()?;
        let name = NAMES[usize::from(name.wrapping_sub(b'A')) % NAMES.len()];
        Some((name, String::from_utf8_lossy(value).into_owned()))
    };
    let variables: HashMap<&str, String> = data.split(|&b| b == b'\n').filter_map(line).collect();
    match Config::from_lookup(|name| variables.get(name).cloned()) {
        Ok(config) => {
            assert!(config.rank < config.world_size && config.local_rank < config.local_world_size);
            assert!(config.local_world_size <= config.world_size);
            let is_said = matches!(config.store, StoreLocation::Launcher(_));
            assert!(config.world_size == 1 || config.secret.is_some() || is_said, "a job without a secret");
            assert!(!config.timeout.is_zero() && !config.init_timeout.is_zero());
            if let StoreLocation::Tcp { host_it: false, .. } = &config.store {
                assert_eq!(config.store.to_string().parse::<StoreLocation>().unwrap(), config.store);
            }
        }
        Err(error) => {
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            let said = error.to_string();
            let secret = variables.get("PHALANX_SECRET").map(|secret| secret.trim()).unwrap_or_default();
            // Errors quote what they show: codes of odd characters may join what stands beside them.
            let elsewhere = |(name, value): (&&str, &String)| {
                *name != "PHALANX_SECRET" && (value.contains(secret) || format!("{value:?}").contains(secret))
            };
            let plain = secret.len() >= 16 && secret.chars().all(|c| c.is_ascii_alphanumeric());
            if plain && !variables.iter().any(elsewhere) {
                assert!(!said.contains(secret), "an error repeats the secret");
            }
        }
    }
}
