//! Messages to the user on stderr.

use std::io::{IsTerminal, Write, stderr};

/// Tells the user on stderr. When even that is closed, nobody is listening.
pub(crate) fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(stderr(), "phalanx: {what}");
}

/// The same text, whose first line stands out on a terminal.
pub(crate) fn with_headline(text: &str) -> String {
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    if shows_colours() { format!("\x1b[1;31m{first}\x1b[0m{rest}") } else { text.to_owned() }
}

/// Whether stderr is a terminal that has colours, and nobody objects: see no-color.org.
pub(crate) fn shows_colours() -> bool {
    let objects = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|it| it == "dumb");
    stderr().is_terminal() && !objects && !is_dumb
}
