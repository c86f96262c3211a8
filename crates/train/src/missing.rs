//! Parameters for which no rank has a gradient.

use crate::error::no_gradient;
use crate::{Error, Result};
use phalanx::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{Write, stderr};

/// What a step does about parameters for which no rank has a gradient.
///
/// No optimizer changes them. That is meant so where they are frozen. It is not where an operation cuts the library's graph without a word:
/// the model trains then, but only the part behind that operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MissingGradients {
    /// The first step in which any rank has samples names them in a warning, once, on rank 0 of the group. It is an event of `tracing`; where the
    /// program has never had a subscriber for these, it goes to stderr.
    #[default]
    Warn,
    /// Each step that lacks some is an [error](Error::NoGradient) on all ranks.
    Error,
    /// Nothing: for models of which a part is frozen, or comes into use later.
    Allow,
}

/// Looks after what [`MissingGradients`] asks for, from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MissingCheck {
    choice: MissingGradients,
    has_warned: bool,
}

impl MissingCheck {
    /// For a training that has not made a step.
    pub fn new(choice: MissingGradients) -> Self {
        Self { choice, has_warned: false }
    }

    /// Whether the next step has to say which parameters lack a gradient. The same on all ranks.
    pub fn is_on(&self) -> bool {
        match self.choice {
            MissingGradients::Warn => !self.has_warned,
            MissingGradients::Error => true,
            MissingGradients::Allow => false,
        }
    }

    /// A step in which some rank had samples has found gradients for all parameters but these: the same on all ranks. `hint` says what may be the
    /// cause, and what to do.
    ///
    /// # Errors
    /// [`Error::NoGradient`] if there are some, and that was asked for.
    pub fn judge<'n>(
        &mut self,
        missing: impl IntoIterator<Item = &'n str>,
        hint: &'static str,
        group: &ProcessGroup,
    ) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        self.has_warned = true;
        let names: Vec<String> = missing.into_iter().map(str::to_owned).collect();
        if names.is_empty() {
            return Ok(());
        }
        if self.choice == MissingGradients::Error {
            return Err(Error::NoGradient { names, hint });
        }
        if group.rank() == 0 {
            warn(format_args!("{}", no_gradient(&names, hint)));
        }
        Ok(())
    }
}

/// A warning that must be seen. Where nobody has ever listened to events it is no use as one.
fn warn(words: fmt::Arguments<'_>) {
    tracing::warn!("{words}");
    if !tracing::dispatcher::has_been_set() {
        let _ = writeln!(stderr(), "phalanx: warning: {words}");
    }
}
