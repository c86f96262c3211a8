//! What the libraries have to say.

use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Writes the libraries' warnings to stderr, or what the environment variable `PHALANX_LOG` asks for: libraries print nothing themselves.
pub fn show_warnings() {
    let filter = EnvFilter::try_from_env("PHALANX_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr)
        // A stderr that nobody reads must not make who logs panic.
        .log_internal_errors(false)
        .init();
}
