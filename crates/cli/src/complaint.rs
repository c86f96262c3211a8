//! Messages to the user on stderr.

use std::io::Write;

/// Tells the user on stderr. When even that is closed, nobody is listening.
pub(crate) fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "phalanx: {what}");
}
