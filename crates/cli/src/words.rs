//! The words of `phalanx run` before clap reads them: the spellings of other launchers' flags that clap has no form for.
//!
//! Only the launcher's own words, those before the program, are looked at.

use crate::advice::instead_of;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use std::collections::VecDeque;
use std::ffi::OsString;

/// The same words, with the launcher's own flags as clap knows them: `-np 4` is `--np 4`, `--max_restarts` is `--max-restarts`. `Err` says what
/// to write instead of a flag that only other launchers have.
pub(crate) fn spelled(
    command: &Command,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, String> {
    let mut words: VecDeque<OsString> = words.into_iter().collect();
    let mut done: Vec<OsString> = words.drain(..words.len().min(2)).collect();
    let run = done.get(1).filter(|word| *word == "run").and_then(|_| command.find_subcommand("run"));
    while let Some(run) = run
        && let Some(word) = words.pop_front()
    {
        let Some(flag) = word.to_str().filter(|text| is_flag(text)) else {
            // The program, and what is its own.
            done.push(word);
            break;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let (arg, word) = match long(run, name) {
            Some((arg, name)) => {
                let value = value.map(|value| format!("={value}")).unwrap_or_default();
                (Some(arg), format!("--{name}{value}").into())
            }
            None => (short(run, flag), word.clone()),
        };
        if arg.is_none()
            && let Some(advice) = instead_of(name)
        {
            return Err(format!("{name} is a flag of other launchers: {advice}"));
        }
        let takes_next = value.is_none() && arg.is_some_and(|arg| arg.get_action().takes_values());
        done.push(word);
        if takes_next {
            done.extend(words.pop_front());
        }
    }
    done.extend(words);
    Ok(done)
}

/// Adds to a complaint about a command which one may be meant that has the same letters: clap takes `rnu` for something else altogether.
pub(crate) fn suggesting(command: &Command, mut error: clap::Error) -> clap::Error {
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && let Some(meant) = command.get_subcommands().find(|it| sorted(it.get_name()) == sorted(word))
    {
        let meant = ContextValue::Strings(vec![meant.get_name().to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word != "--"
}

/// The long flag that is meant, with one dash or two, and dashes or underscores within.
fn long<'c>(run: &'c Command, word: &str) -> Option<(&'c Arg, String)> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-').filter(|name| name.len() > 1))?;
    let name = name.replace('_', "-");
    let has = |arg: &&Arg| {
        arg.get_long() == Some(&name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name.as_str()))
    };
    run.get_arguments().find(has).map(|arg| (arg, name))
}

/// A short flag whose value is the next word: with one of its own (`-n4`) there is no other.
fn short<'c>(run: &'c Command, word: &str) -> Option<&'c Arg> {
    let mut letters = word.strip_prefix('-')?.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    run.get_arguments().find(|arg| arg.get_short() == Some(letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn done(words: &str) -> String {
        let words = words.split(' ').map(OsString::from);
        let done = spelled(&Cli::command(), words).unwrap();
        done.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn only_the_launchers_own_words_are_spelled_anew() {
        for (words, expected) in [
            ("phalanx run -np 4 train -np 5 --max_restarts", "phalanx run --np 4 train -np 5 --max_restarts"),
            ("phalanx run -n4 -np 4 train", "phalanx run -n4 --np 4 train"),
            ("phalanx run -n -np train -np 4", "phalanx run -n -np train -np 4"),
            ("phalanx run --nproc_per_node=3 train", "phalanx run --nproc-per-node=3 train"),
            ("phalanx run --env A_B=-np -np 1 train", "phalanx run --env A_B=-np --np 1 train"),
            ("phalanx run --no_prefix -np 1 -- -np", "phalanx run --no-prefix --np 1 -- -np"),
            ("phalanx run --bogus_flag train", "phalanx run --bogus_flag train"),
            ("phalanx bench -np 4", "phalanx bench -np 4"),
            ("phalanx", "phalanx"),
        ] {
            assert_eq!(done(words), expected);
        }
    }

    #[test]
    fn flags_of_other_launchers_are_answered_unless_they_are_the_programs() {
        for (words, advice) in [
            ("phalanx run --standalone --nproc-per-node 2 train", "leave it out"),
            ("phalanx run --rdzv_endpoint=node-0:29400 train", "--rendezvous HOST:PORT"),
            ("phalanx run -np 2 -machinefile hosts train", "--hostfile FILE"),
            ("phalanx run --ntasks 2 train", "-n N"),
            ("phalanx run -ppn 2 train", "-n N"),
            ("phalanx run -genv A 1 train", "-x NAME=VALUE"),
        ] {
            let words = words.split(' ').map(OsString::from);
            let error = spelled(&Cli::command(), words).unwrap_err();
            assert!(error.contains(advice), "{error}");
        }
        assert_eq!(
            done("phalanx run -n 1 train --standalone -m x"),
            "phalanx run -n 1 train --standalone -m x"
        );
    }

    /// A flag that we come to have ourselves is not to be called one of others.
    #[test]
    fn advice_is_given_for_flags_that_we_have_not() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for arg in run.get_arguments() {
            let names = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
            for name in names {
                assert_eq!(instead_of(name), None, "--{name}");
            }
        }
    }
}
