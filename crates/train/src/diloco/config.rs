//! When what is averaged, and what becomes of it.

use crate::{MissingGradients, Result};
use phalanx::error::OpKind;
use phalanx::{Error, ProcessGroup};
use serde::{Deserialize, Serialize};

/// When what is averaged, and what becomes of it. All ranks pass the same.
///
/// The three constructors are the published methods; what lies between them is as good a choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DiLoCoConfig {
    /// Steps from one average of a weight to the next: H in the papers.
    pub sync_every: u64,
    /// Learning rate of the outer step.
    pub outer_learning_rate: f64,
    /// Nesterov momentum of the outer step.
    pub outer_momentum: f64,
    /// Parts of the model that are averaged one after the other, evenly over `sync_every` steps; 1 averages all of it at once.
    pub fragments: usize,
    /// Steps that a rank makes while an average is under way: τ in the paper. 0 waits for it. At most `sync_every / fragments`, so one is
    /// under way at a time.
    pub delay: u64,
    /// How much of its own weights a rank keeps when an average arrives, from 0 to 1: α in the paper. With 0 it takes the outer weights
    /// as they are, and loses what it did during the delay.
    pub mix: f64,
    /// What the first step does about weights for which no rank has a gradient: it alone looks, for the others send nothing. Default:
    /// [`MissingGradients::Warn`].
    #[serde(default)]
    pub missing_gradients: MissingGradients,
}

impl DiLoCoConfig {
    /// Local SGD (Stich 2018): the ranks' weights are replaced by their mean every `sync_every` steps.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DiLoCoConfig;
    ///
    /// let config = DiLoCoConfig::local_sgd(20);
    /// assert_eq!((config.sync_every, config.outer_learning_rate, config.outer_momentum), (20, 1.0, 0.0));
    /// ```
    pub fn local_sgd(sync_every: u64) -> Self {
        Self {
            sync_every,
            outer_learning_rate: 1.0,
            outer_momentum: 0.0,
            fragments: 1,
            delay: 0,
            mix: 0.0,
            missing_gradients: MissingGradients::Warn,
        }
    }

    /// DiLoCo (Douillard et al. 2023): what the ranks did in `sync_every` steps is the gradient of a step with Nesterov momentum,
    /// here with the paper's learning rate 0.7 and momentum 0.9.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DiLoCoConfig;
    ///
    /// let config = DiLoCoConfig::diloco(500);
    /// assert_eq!((config.sync_every, config.outer_learning_rate, config.outer_momentum), (500, 0.7, 0.9));
    /// ```
    pub fn diloco(sync_every: u64) -> Self {
        Self { outer_learning_rate: 0.7, outer_momentum: 0.9, ..Self::local_sgd(sync_every) }
    }

    /// Streaming DiLoCo (Douillard et al. 2025): each of `fragments` parts at its own time, sent during the `delay` steps that
    /// follow; then half of the outer weights and half of the rank's own.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DiLoCoConfig;
    ///
    /// let config = DiLoCoConfig::streaming(100, 4, 5);
    /// assert_eq!((config.sync_every, config.fragments, config.delay, config.mix), (100, 4, 5, 0.5));
    /// ```
    pub fn streaming(sync_every: u64, fragments: usize, delay: u64) -> Self {
        Self { fragments, delay, mix: 0.5, ..Self::diloco(sync_every) }
    }

    /// Sets the learning rate and momentum of the outer step.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DiLoCoConfig;
    ///
    /// let config = DiLoCoConfig::diloco(500).outer(0.5, 0.8);
    /// assert_eq!((config.outer_learning_rate, config.outer_momentum), (0.5, 0.8));
    /// ```
    #[must_use]
    pub fn outer(self, learning_rate: f64, momentum: f64) -> Self {
        Self { outer_learning_rate: learning_rate, outer_momentum: momentum, ..self }
    }

    /// Sets the part of its own weights that a rank keeps.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DiLoCoConfig;
    ///
    /// assert_eq!(DiLoCoConfig::streaming(100, 4, 5).mix(0.25).mix, 0.25);
    /// ```
    #[must_use]
    pub fn mix(self, mix: f64) -> Self {
        Self { mix, ..self }
    }

    /// Warns of weights for which no rank has a gradient, refuses them, or allows them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{DiLoCoConfig, MissingGradients};
    ///
    /// let config = DiLoCoConfig::diloco(500).missing_gradients(MissingGradients::Error);
    /// assert_eq!(config.missing_gradients, MissingGradients::Error);
    /// ```
    #[must_use]
    pub fn missing_gradients(self, choice: MissingGradients) -> Self {
        Self { missing_gradients: choice, ..self }
    }

    /// The fragment whose turn comes after step number `step`, which counts from 1.
    pub(super) fn turn(&self, step: u64) -> Option<usize> {
        let place = (step - 1) % self.sync_every + 1;
        let fragments = self.fragments as u64;
        (0..self.fragments).find(|&at| (at as u64 + 1) * self.sync_every / fragments == place)
    }

    /// Refuses what makes no sense, and ranks that differ. Collective.
    ///
    /// # Errors
    /// [`phalanx::Error::Misuse`] on all ranks; the group is fine.
    #[doc(hidden)]
    #[track_caller]
    pub fn check(&self, group: &ProcessGroup) -> Result<()> {
        let all = group.all_gather_object(self)?;
        let differs = || {
            let (rank, theirs) = all.iter().enumerate().find(|(_, theirs)| **theirs != all[0])?;
            Some(format!("the configurations differ: rank 0 has {:?}, rank {rank} has {theirs:?}", all[0]))
        };
        match self.nonsense().or_else(differs) {
            Some(what) => Err(Error::misuse(OpKind::AllReduce, what).into()),
            None => Ok(()),
        }
    }

    /// Says what makes no sense in this configuration.
    fn nonsense(&self) -> Option<String> {
        let Self { sync_every, outer_learning_rate, outer_momentum, fragments, delay, mix, .. } = *self;
        let interval = sync_every.checked_div(fragments as u64).unwrap_or(0);
        if interval == 0 {
            Some(format!(
                "fragments is {fragments}, expected 1 to sync_every, which is {sync_every}: each fragment is sent in a step of its own"
            ))
        } else if delay > interval {
            Some(format!(
                "delay is {delay}, expected at most {interval}: the next fragment is sent after as many steps"
            ))
        } else if !(outer_learning_rate.is_finite() && (0.0..1.0).contains(&outer_momentum)) {
            Some(format!(
                "outer_learning_rate is {outer_learning_rate} and outer_momentum {outer_momentum}, expected a finite number and one in 0..1"
            ))
        } else if !(0.0..=1.0).contains(&mix) {
            Some(format!("mix is {mix}, expected 0 to 1"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_has_its_turn_once_in_as_many_steps_as_were_said() {
        for sync_every in 1..=12 {
            for fragments in 1..=sync_every as usize {
                let config = DiLoCoConfig::streaming(sync_every, fragments, 0);
                let turns: Vec<_> = (1..=3 * sync_every).filter_map(|step| config.turn(step)).collect();
                let once: Vec<_> = (0..fragments).collect();
                assert_eq!(turns, [&once[..], &once, &once].concat());
                assert_eq!(config.turn(sync_every), Some(fragments - 1), "the last one closes the round");
                let moments: Vec<_> = (1..=3 * sync_every).filter(|&s| config.turn(s).is_some()).collect();
                let closest = moments.windows(2).map(|pair| pair[1] - pair[0]).min();
                assert!(closest.is_none_or(|steps| steps >= sync_every / fragments as u64));
            }
        }
    }
}
