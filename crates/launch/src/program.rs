//! The program of a job's ranks, and what this host gives each of them.

use crate::binding::{Binding, own_cpus};
use crate::plan::leaves_to_the_user;
use crate::process::Process;
use crate::start_error::why_not_started;
use phalanx_core::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program to start, and the environment that all its processes on this host have in common.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables that the user sets in all ranks.
    pub(crate) env: Vec<(String, OsString)>,
    /// Variables of this process that the ranks don't get.
    pub(crate) not_inherited: Vec<&'static str>,
    /// Where its processes start; `None`: in the folder of this process.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) binding: Binding,
}

impl Program {
    /// Starts one process, with the variables that the launcher sets for it, as far as the user leaves them to it.
    pub(crate) fn start<'e>(
        &self,
        secret: &OsStr,
        env: impl IntoIterator<Item = (&'e str, &'e str)>,
        input: Stdio,
    ) -> Result<Process> {
        self.check_folder()?;
        let env = env.into_iter().filter(|(name, _)| !(leaves_to_the_user(name) && self.sets(name)));
        let env: BTreeMap<&str, &str> = env.collect();
        let cpus = match self.binding {
            Binding::None => None,
            binding => {
                let number = |name: &str| env.get(name).and_then(|value| value.parse().ok());
                let place = number("PHALANX_LOCAL_RANK").zip(number("PHALANX_LOCAL_WORLD_SIZE"));
                let (local, ranks) =
                    place.ok_or_else(|| Error::Internal { what: "a rank without a place".into() })?;
                binding.cpus(own_cpus()?, local, ranks)
            }
        };
        let started = Process::start(self.command(secret, env, input), cpus.as_deref());
        started.map_err(|error| why_not_started(&self.program, self.folder.as_deref(), error))
    }

    /// Whether its processes can start where they are to.
    pub(crate) fn check_folder(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        // What can be looked up from there can be gone to.
        match std::fs::metadata(folder.join(".")) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(Error::config(format!("the working directory {} (--wdir): {error}", folder.display())))
            }
        }
    }

    fn command<'e>(
        &self,
        secret: &OsStr,
        env: impl IntoIterator<Item = (&'e str, &'e str)>,
        input: Stdio,
    ) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        for name in &self.not_inherited {
            command.env_remove(name);
        }
        command
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("PHALANX_SECRET", secret)
            .envs(env);
        command
    }

    /// Whether the user has given a variable a value, for this job or in this process's environment.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The variables that its ranks on other hosts are given: what the user sets, and ours that hold for the whole job.
    pub(crate) fn taken_along(&self) -> Vec<(String, OsString)> {
        // What is this host's, this process's, or nobody else's to know.
        const STAY: [&str; 7] = [
            "PHALANX_SECRET",
            "PHALANX_HOST",
            "PHALANX_HOST_ID",
            "PHALANX_BIND",
            "PHALANX_INTERFACE",
            "PHALANX_PORT",
            "PHALANX_LOG",
        ];
        let goes = |name: &str| {
            name.starts_with("PHALANX_") && !STAY.contains(&name) && !self.not_inherited.contains(&name)
        };
        let ours = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let ours = ours.filter(|(name, _)| goes(name) && !self.env.iter().any(|(set, _)| set == name));
        ours.chain(self.env.iter().cloned()).collect()
    }

    /// Whether its ranks encrypt: what they meet over must do as they do.
    pub(crate) fn encrypts(&self) -> bool {
        self.value("PHALANX_ENCRYPT").is_some_and(|on| on == "1" || on == "require")
    }

    /// The value that a rank finds in a variable of the user's.
    pub(crate) fn value(&self, name: &str) -> Option<OsString> {
        let set = self.env.iter().rev().find(|(set, _)| set == name).map(|(_, value)| value.clone());
        let inherited = || std::env::var_os(name).filter(|_| !self.not_inherited.contains(&name));
        set.or_else(inherited)
    }
}

/// The variables of a plan by name.
pub(crate) fn pairs<'e>(env: &'e BTreeMap<&'static str, String>) -> impl Iterator<Item = (&'e str, &'e str)> {
    env.iter().map(|(name, value)| (*name, value.as_str()))
}
