//! The program of a job's ranks, and what this host gives each of them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
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
}

impl Program {
    /// What starts one process, with the variables that the launcher sets for it alone.
    pub(crate) fn command<'e>(
        &self,
        secret: &OsStr,
        env: impl IntoIterator<Item = (&'e str, &'e str)>,
    ) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        const STAY: [&str; 6] = [
            "PHALANX_SECRET",
            "PHALANX_HOST",
            "PHALANX_HOST_ID",
            "PHALANX_BIND",
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
