//! `phalanx completions` and `phalanx man`: this command for shells and for `man`.

use crate::cli::Cli;
use clap::CommandFactory;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use phalanx_core::{Error, Result};

/// What a shell reads to complete commands and flags.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "phalanx", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The man page of one of the commands, or of all.
pub(crate) fn man(name: Option<&str>) -> Result<String> {
    let mut all = Cli::command();
    all.build();
    let command = match name {
        None => &all,
        Some(name) => all.find_subcommand(name).ok_or_else(|| {
            let names = all.get_subcommands().filter(|it| !it.is_hide_set()).map(clap::Command::get_name);
            Error::config(format!(
                "phalanx has no command {name}: there are {}",
                names.collect::<Vec<_>>().join(", ")
            ))
        })?,
    };
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).map_err(|error| Error::io("writing the man page", error))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
