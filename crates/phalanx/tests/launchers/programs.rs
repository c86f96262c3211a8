//! Programs of others that may be installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a program is, if it is installed.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = dirs.map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        println!("skipped: {name} is not installed (scripts/install-launchers installs it)");
    }
    found
}

/// A command without any variable of a job.
pub(crate) fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_a_job = ["PHALANX_", "MASTER_", "PMI", "OMPI_", "SLURM_", "TORCHELASTIC_"];
        if of_a_job.iter().any(|start| text.starts_with(start)) || text == "RANK" || text == "WORLD_SIZE" {
            command.env_remove(&name);
        }
    }
    command.args(args).env("PHALANX_INIT_TIMEOUT_S", "60");
    command
}
