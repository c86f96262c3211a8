//! The trait of things that save themselves into a checkpoint and load themselves from it.

use crate::{Checkpoint, Result, State};

/// Something whose state belongs into a checkpoint: a model, an optimizer.
///
/// # Examples
/// ```
/// use phalanx_checkpoint::{Checkpoint, Result, State, Stateful};
///
/// struct Average {
///     weights: Vec<f32>,
///     steps: u64,
/// }
///
/// impl Stateful for Average {
///     fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
///         state.slice(format!("{prefix}.weights"), &[self.weights.len()], &self.weights);
///         state.value(format!("{prefix}.steps"), &self.steps)
///     }
///
///     fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
///         self.weights = from.read(&format!("{prefix}.weights"))?;
///         self.steps = from.value(&format!("{prefix}.steps"))?;
///         Ok(())
///     }
/// }
/// ```
pub trait Stateful {
    /// Adds this to `state`, under names that begin with `prefix`.
    ///
    /// # Errors
    /// What [`State`] returns, and its own as [`Error::Tensors`](crate::Error::Tensors).
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()>;

    /// Becomes what [`save`](Self::save) has added under `prefix`.
    ///
    /// # Errors
    /// What [`Checkpoint`] returns, and its own as [`Error::Tensors`](crate::Error::Tensors). Part of it may have changed then.
    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()>;
}

impl<'a> State<'a> {
    /// Adds all of `part`, under names that begin with `prefix` and a dot.
    ///
    /// # Errors
    /// Those of `part`.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// # use phalanx_checkpoint::{Checkpoint, Result, Stateful};
    /// # struct Steps(u64);
    /// # impl Stateful for Steps {
    /// #     fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
    /// #         state.value(format!("{prefix}.steps"), &self.0)
    /// #     }
    /// #     fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
    /// #         Ok(self.0 = from.value(&format!("{prefix}.steps"))?)
    /// #     }
    /// # }
    /// let optimizer = Steps(1200); // implements Stateful
    /// let mut state = State::new();
    /// state.add("optimizer", &optimizer)?;
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.value::<u64>("optimizer.steps")?, 1200);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn add(&mut self, prefix: &str, part: &'a impl Stateful) -> Result<()> {
        part.save(prefix, self)
    }
}

impl Checkpoint {
    /// Makes `part` what it was when it was [added](crate::State::add) under this prefix.
    ///
    /// # Errors
    /// Those of `part`, as of [`Stateful::load`].
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// # use phalanx_checkpoint::{Checkpoint, Result, Stateful};
    /// # struct Steps(u64);
    /// # impl Stateful for Steps {
    /// #     fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
    /// #         state.value(format!("{prefix}.steps"), &self.0)
    /// #     }
    /// #     fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
    /// #         Ok(self.0 = from.value(&format!("{prefix}.steps"))?)
    /// #     }
    /// # }
    /// # let saved = Steps(1200);
    /// # let mut state = State::new();
    /// # state.add("optimizer", &saved)?;
    /// # checkpoints.save(7, state)?;
    /// let mut optimizer = Steps(0); // implements Stateful
    /// checkpoints.load(7)?.restore("optimizer", &mut optimizer)?;
    /// assert_eq!(optimizer.0, 1200);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn restore(&self, prefix: &str, part: &mut impl Stateful) -> Result<()> {
        part.load(prefix, self)
    }
}
