//! The method by which ranks perform an operation: the part of an agreement that is not in the call.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The method by which an operation is performed, in words: the algorithm, and how the data are cut.
///
/// Ranks that go different ways take each other's bytes for what they are not. So it belongs to what all must agree on, and it is
/// words, so that whoever finds a difference can name it. Nothing at all stands for an operation for which it is not chosen.
///
/// ```
/// use phalanx_core::Method;
///
/// let across = Method::from("ring in 4 blocks of 250");
/// assert_eq!(Method::from("sliced").then(&across).to_string(), "sliced, ring in 4 blocks of 250");
/// assert_eq!(Method::UNSAID.then(&across), across);
/// ```
#[derive(Clone)]
pub struct Method(Words);

#[derive(Clone)]
enum Words {
    Known(&'static str),
    Made(Arc<str>),
}

impl Method {
    /// Not chosen, or not told.
    pub const UNSAID: Self = Self(Words::Known(""));
    /// Longest words that travel to other ranks; of longer ones only the beginning does.
    pub const LEN_MAX: usize = 120;

    /// What a program demands of a reduction that is to be reproducible: that it adds up in the order of the ranks.
    pub const IN_RANK_ORDER: Self = Self(Words::Known("in rank order"));

    /// Whether it adds up in the order of the ranks, whatever else it does.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Method;
    ///
    /// let demanded = Method::IN_RANK_ORDER.then(&"ring".into());
    /// assert!(demanded.is_in_rank_order());
    /// assert!(!Method::from("ring").is_in_rank_order());
    /// ```
    pub fn is_in_rank_order(&self) -> bool {
        self.as_str().starts_with(Self::IN_RANK_ORDER.as_str())
    }

    /// The words.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::Method::from("ring in 4 blocks of 250").as_str(), "ring in 4 blocks of 250");
    /// ```
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Words::Known(words) => words,
            Words::Made(words) => words,
        }
    }

    /// Whether nothing is said.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Method;
    ///
    /// assert!(Method::UNSAID.is_unsaid());
    /// assert!(!Method::from("ring").is_unsaid());
    /// ```
    pub fn is_unsaid(&self) -> bool {
        self.as_str().is_empty()
    }

    /// The method of a part of an operation that is performed by this one.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Method;
    ///
    /// let across = Method::from("ring in 4 blocks of 250");
    /// assert_eq!(Method::from("sliced").then(&across).as_str(), "sliced, ring in 4 blocks of 250");
    /// ```
    #[must_use]
    pub fn then(&self, part: &Self) -> Self {
        match (self.is_unsaid(), part.is_unsaid()) {
            (true, _) => part.clone(),
            (_, true) => self.clone(),
            _ => format!("{self}, {part}").into(),
        }
    }
}

impl Default for Method {
    fn default() -> Self {
        Self::UNSAID
    }
}

impl From<&'static str> for Method {
    fn from(words: &'static str) -> Self {
        Self(Words::Known(&words[..words.floor_char_boundary(Self::LEN_MAX)]))
    }
}

impl From<String> for Method {
    fn from(words: String) -> Self {
        Self(Words::Made(words[..words.floor_char_boundary(Self::LEN_MAX)].into()))
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.as_str(), other.as_str());
        // Asked in every call, and mostly of nothing: glibc takes 140 ns to compare no bytes where no memory is.
        ours.len() == theirs.len() && (ours.is_empty() || ours == theirs)
    }
}

impl Eq for Method {}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

/// Whoever wrote it kept to the limit.
impl<'de> Deserialize<'de> for Method {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let words = String::deserialize(from)?;
        if words.len() > Self::LEN_MAX {
            return Err(D::Error::invalid_length(words.len(), &"at most 120 bytes"));
        }
        Ok(words.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    #[test]
    fn words_are_equal_wherever_they_come_from() {
        assert_eq!(Method::from("ring"), Method::from("ring".to_owned()));
        assert_ne!(Method::from("ring"), Method::from("flat"));
        assert!(Method::default().is_unsaid() && Method::from(String::new()).is_unsaid());
    }

    #[test]
    fn a_demand_outlives_what_is_added() {
        let method = Method::IN_RANK_ORDER.then(&"pairwise in 2 blocks of 5".into());
        assert_eq!(method.as_str(), "in rank order, pairwise in 2 blocks of 5");
        assert!(method.is_in_rank_order() && !Method::from("pairwise").is_in_rank_order());
    }

    #[test]
    fn longer_words_than_travel_are_cut_here_and_refused_from_others() {
        let long = "ä".repeat(Method::LEN_MAX);
        assert_eq!(Method::from(long.clone()).as_str().len(), Method::LEN_MAX);
        let read = |words: &str| {
            let words: StrDeserializer<'_, Error> = words.into_deserializer();
            Method::deserialize(words)
        };
        assert!(read(&long).is_err());
        assert_eq!(read("flat in 2 blocks of 5"), Ok(Method::from("flat in 2 blocks of 5")));
    }
}
