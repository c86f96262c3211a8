//! How far the measurement has come: a line on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};

pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For so many cases.
    pub(crate) fn new(cases: usize) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(cases as u64), target);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left");
        Self { bar: bar.with_style(style.expect("the template is right")) }
    }

    /// Drawn now, not in the course of a measurement, where it would disturb.
    pub(crate) fn begin(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) fn advance(&self, cases: usize) {
        self.bar.inc(cases as u64);
    }

    /// Writes beside the bar. A reader that has left (`| head`) is no failure.
    pub(crate) fn say(&self, out: &mut dyn Write, text: &str) {
        self.bar.suspend(|| drop(out.write_all(text.as_bytes()).and_then(|()| out.flush())));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
