//! How many processes an elastic job has.

use phalanx_core::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The fewest processes with which a job goes on, and the most that it has: `2:4`.
///
/// ```
/// use phalanx_rendezvous::Elastic;
///
/// let elastic: Elastic = "2:4".parse()?;
/// assert_eq!((elastic.min(), elastic.max()), (2, 4));
/// let error = "4:2".parse::<Elastic>().unwrap_err();
/// assert_eq!(error.to_string(), r#"configuration: "4:2" is no MIN:MAX: MIN is at least 1, and MAX at least MIN"#);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Elastic {
    /// At least 1, at most `max`.
    min: usize,
    max: usize,
}

impl Elastic {
    /// A range from `min` to `max` processes.
    ///
    /// # Errors
    /// [`Error::Config`] unless `min` is at least 1 and `max` at least `min`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::Elastic;
    ///
    /// assert_eq!(Elastic::new(2, 4)?, "2:4".parse()?);
    /// assert!(Elastic::new(4, 2).is_err());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(min: usize, max: usize) -> Result<Self> {
        format!("{min}:{max}").parse()
    }

    /// The fewest with which the job goes on.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_rendezvous::Elastic::new(2, 4)?.min(), 2);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn min(self) -> usize {
        self.min
    }

    /// The most that it has, which is how many it begins with.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_rendezvous::Elastic::new(2, 4)?.max(), 4);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn max(self) -> usize {
        self.max
    }
}

impl fmt::Display for Elastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

impl FromStr for Elastic {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        let both = text.split_once(':').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        both.filter(|&(min, max)| 1 <= min && min <= max).map(|(min, max)| Self { min, max }).ok_or_else(
            || Error::config(format!("{text:?} is no MIN:MAX: MIN is at least 1, and MAX at least MIN")),
        )
    }
}
