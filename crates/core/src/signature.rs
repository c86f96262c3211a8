//! The signature of a call: the part on which all ranks must agree.

use crate::{DType, Method, ReduceOp};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Which operation a call performs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the names of the methods of a process group")]
pub enum OpKind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
    Send,
    Recv,
    Split,
    Alloc,
    Init,
    Finalize,
    Shrink,
    Rejoin,
    Scan,
    NewGroup,
    RecvAny,
}

impl OpKind {
    /// The name of the method: `all_reduce`, `recv`, …
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::OpKind::AllReduce.name(), "all_reduce");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Split => "split",
            Self::Alloc => "alloc",
            Self::Init => "init",
            Self::Finalize => "finalize",
            Self::Shrink => "shrink",
            Self::Rejoin => "rejoin",
            Self::Scan => "scan",
            Self::NewGroup => "new_group",
            Self::RecvAny => "recv_any",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The line of the user's program that called an operation.
#[derive(Debug, Clone, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "the comparison is that of the fields, only sooner")]
pub struct CallSite {
    /// Source file, as the compiler saw it. Borrowed for calls made here, owned for those of other ranks.
    #[serde(deserialize_with = "file")]
    pub file: Cow<'static, str>,
    /// Line in that file.
    pub line: u32,
}

impl CallSite {
    /// Longest file name that travels to other ranks; of a longer one only the end does.
    pub const FILE_LEN_MAX: usize = 200;

    /// The site of the caller of the `#[track_caller]` function that calls this.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::CallSite;
    ///
    /// #[track_caller]
    /// fn operation() -> CallSite {
    ///     CallSite::caller()
    /// }
    /// assert_eq!(operation().line, line!());
    /// ```
    #[inline]
    #[track_caller]
    pub fn caller() -> Self {
        Self::from(std::panic::Location::caller())
    }
}

impl PartialEq for CallSite {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // A loop compares the site of each message with itself: the same string at the same address needs no look at its bytes.
        self.line == other.line && (std::ptr::eq(&*self.file, &*other.file) || self.file == other.file)
    }
}

/// Whoever wrote it kept to the limit.
fn file<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'static, str>, D::Error> {
    let file = String::deserialize(from)?;
    if file.len() > CallSite::FILE_LEN_MAX {
        return Err(D::Error::invalid_length(file.len(), &"at most 200 bytes"));
    }
    Ok(file.into())
}

impl From<&std::panic::Location<'static>> for CallSite {
    #[inline]
    fn from(at: &std::panic::Location<'static>) -> Self {
        let file = at.file();
        let file = if file.len() > Self::FILE_LEN_MAX { end_of(file) } else { file };
        Self { file: Cow::Borrowed(file), line: at.line() }
    }
}

/// As much of the end of a file's name as travels.
#[cold]
fn end_of(file: &str) -> &str {
    let cut = file.len().saturating_sub(CallSite::FILE_LEN_MAX);
    &file[(cut..=file.len()).find(|&i| file.is_char_boundary(i)).unwrap_or(0)..]
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One call as the other ranks must see it: everything on which they must agree, and where it was made.
///
/// Two calls [match](Self::matches) when all but the call site is equal. The
/// [fingerprint](Self::fingerprint) says so in 64 bits. What the program calls is all but the way; that is added by whoever chooses it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The operation.
    pub op: OpKind,
    /// Element type; `None` where nothing is carried (barrier).
    pub dtype: Option<DType>,
    /// Elements: the length that must be equal on all ranks, or the sum of the counts that must.
    pub count: u64,
    /// How values are combined, in reductions. Its factor, if it has one, is not compared.
    pub reduce: Option<ReduceOp>,
    /// The special rank, where there is one.
    pub root: Option<u32>,
    /// Hash of what else must agree (per-rank counts); zero when there is nothing.
    pub detail: u64,
    /// How it is performed. [`Method::UNSAID`] in what a program calls.
    #[serde(default, alias = "way")]
    pub method: Method,
    /// The line of the program that made the call. Not compared.
    pub site: CallSite,
}

impl Clone for Signature {
    fn clone(&self) -> Self {
        let Self { op, dtype, count, reduce, root, detail, ref method, ref site } = *self;
        Self { op, dtype, count, reduce, root, detail, method: method.clone(), site: site.clone() }
    }

    /// The recorder of calls writes one over another in every call, mostly one from the same place: then the words are there already.
    #[inline]
    fn clone_from(&mut self, other: &Self) {
        let Self { op, dtype, count, reduce, root, detail, ref method, ref site } = *other;
        (self.op, self.dtype, self.count, self.reduce) = (op, dtype, count, reduce);
        (self.root, self.detail, self.site.line) = (root, detail, site.line);
        if !std::ptr::eq(self.method.as_str(), method.as_str()) {
            self.method = method.clone();
        }
        if !std::ptr::eq(&*self.site.file, &*site.file) {
            self.site.file = site.file.clone();
        }
    }
}

impl Signature {
    /// A call that carries nothing: that of a barrier, say, or of coming together.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, OpKind, Signature};
    ///
    /// let call = Signature::bare(OpKind::Barrier, CallSite { file: "train.rs".into(), line: 41 });
    /// assert_eq!(call.to_string(), "barrier() at train.rs:41");
    /// ```
    pub const fn bare(op: OpKind, site: CallSite) -> Self {
        Self { op, dtype: None, count: 0, reduce: None, root: None, detail: 0, method: Method::UNSAID, site }
    }

    /// The type of the elements that travel: `dtype`, but `f32` for a pre-multiplied sum of half types, of which the products are as yet unrounded.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, DType, OpKind, ReduceOp, Signature};
    ///
    /// let call = Signature::bare(OpKind::AllReduce, CallSite::caller());
    /// let call = Signature { dtype: Some(DType::BF16), reduce: Some(ReduceOp::PreMulSum(0.5)), ..call };
    /// assert_eq!(call.carries(), Some(DType::F32));
    /// ```
    pub fn carries(&self) -> Option<DType> {
        match (self.reduce, self.dtype) {
            (Some(ReduceOp::PreMulSum(_)), Some(DType::F16 | DType::BF16)) => Some(DType::F32),
            (_, dtype) => dtype,
        }
    }

    /// Whether two ranks mean the same operation, and perform it in the same way.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, OpKind, Signature};
    ///
    /// let at = |line| CallSite { file: "train.rs".into(), line };
    /// let call = Signature::bare(OpKind::Barrier, at(41));
    /// assert!(call.matches(&Signature::bare(OpKind::Barrier, at(57)))); // the call site is not compared
    /// assert!(!call.matches(&Signature { method: "dissemination".into(), ..call.clone() }));
    /// ```
    pub fn matches(&self, other: &Self) -> bool {
        self.calls_as(other) && self.method == other.method
    }

    /// Whether two ranks called the same, in whichever way they perform it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, OpKind, Signature};
    ///
    /// let call = Signature::bare(OpKind::Barrier, CallSite { file: "train.rs".into(), line: 41 });
    /// assert!(call.calls_as(&Signature { method: "dissemination".into(), ..call.clone() }));
    /// assert!(!call.calls_as(&Signature { op: OpKind::Split, ..call.clone() }));
    /// ```
    pub fn calls_as(&self, other: &Self) -> bool {
        let all = |call: &Self| {
            let reduce = call.reduce.map(ReduceOp::number);
            (call.op, call.dtype, call.count, reduce, call.root, call.detail)
        };
        all(self) == all(other)
    }

    /// 64 bits over everything that must agree. Not a defence against forgery: links are authenticated.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, OpKind, Signature};
    ///
    /// let call = Signature::bare(OpKind::Barrier, CallSite { file: "train.rs".into(), line: 41 });
    /// assert_ne!(call.fingerprint(), Signature { op: OpKind::Split, ..call.clone() }.fingerprint());
    /// ```
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint_as(self.op)
    }

    /// The fingerprint of the same call of another operation: a `recv` and the `send` that it is for must agree.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, OpKind, Signature};
    ///
    /// let [send, recv] = [OpKind::Send, OpKind::Recv].map(|op| Signature::bare(op, CallSite::caller()));
    /// assert_eq!(recv.fingerprint_as(OpKind::Send), send.fingerprint());
    /// ```
    #[inline]
    pub fn fingerprint_as(&self, op: OpKind) -> u64 {
        // Asked in every call. What is small shares a word, and the two products do not wait for each other.
        let dtype = self.dtype.map_or(0xff, |dtype| dtype as u64);
        let reduce = self.reduce.map_or(0xff, ReduceOp::number);
        let root = self.root.map_or(0, |root| 1 << 24 | u64::from(root) << 32);
        let small = op as u64 | dtype << 8 | reduce << 16 | root;
        let mut hash = Mix(fold(small ^ 0xcbf2_9ce4_8422_2325, self.count ^ 0xd6e8_feb8_6659_fd93)
            ^ fold(self.detail ^ 0xa076_1d64_78bd_642f, ODD));
        if !self.method.is_unsaid() {
            hash.text(self.method.as_str());
        }
        hash.0
    }

    /// Hash of per-rank counts for [`detail`](Self::detail).
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Signature;
    ///
    /// assert_ne!(Signature::detail_of(&[4, 6]), Signature::detail_of(&[6, 4]));
    /// ```
    pub fn detail_of(counts: &[usize]) -> u64 {
        let mut hash = Mix::default();
        hash.word(counts.len() as u64);
        for &n in counts {
            hash.word(n as u64);
        }
        hash.0
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.op == OpKind::Split {
            // What travels are the arguments of all ranks, which may differ.
            return write!(f, "split(color, key) at {}", self.site);
        }
        write!(f, "{}(", self.op)?;
        let mut comma = "";
        if let Some(dtype) = self.dtype {
            write!(f, "{dtype} x {}", self.count)?;
            comma = ", ";
        }
        if let Some(reduce) = self.reduce {
            write!(f, "{comma}{reduce}")?;
            comma = ", ";
        }
        if let Some(root) = self.root {
            write!(f, "{comma}root {root}")?;
        }
        write!(f, ") at {}", self.site)
    }
}

/// A multiplicative hash, word by word: a few cycles a call, fixed for ever, good enough to tell calls apart.
struct Mix(u64);

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of the product in one word, so that every bit of either factor reaches every bit of it.
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ (product >> 64) as u64
}

impl Default for Mix {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Mix {
    fn word(&mut self, word: u64) {
        self.0 ^= fold(self.0.rotate_left(23) ^ word, ODD);
    }

    /// Eight bytes at a time.
    fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        for bytes in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(u64::from_le_bytes(word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Signature {
        Signature {
            op: OpKind::AllReduce,
            dtype: Some(DType::F32),
            count: 10,
            reduce: Some(ReduceOp::Sum),
            root: None,
            detail: 0,
            method: Method::UNSAID,
            site: CallSite { file: "a.rs".into(), line: 1 },
        }
    }

    #[test]
    fn a_signature_that_is_written_over_another_is_the_same_in_every_field() {
        let made = Method::from("sliced").then(&"ring".into());
        let whole = Signature {
            op: OpKind::Reduce,
            dtype: None,
            count: 3,
            reduce: Some(ReduceOp::PreMulSum(0.5)),
            root: Some(2),
            detail: 7,
            method: made,
            site: CallSite { file: String::from("b.rs").into(), line: 9 },
        };
        let near = Signature { site: CallSite { file: whole.site.file.clone(), line: 10 }, ..whole.clone() };
        let all = [base(), whole, near, Signature { method: "tree".into(), ..base() }];
        for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
            let mut place = to.clone();
            place.clone_from(from);
            assert_eq!(&place, from);
            assert_eq!((place.method.as_str(), place.site.line), (from.method.as_str(), from.site.line));
        }
    }

    #[test]
    fn every_field_but_the_site_counts() {
        let a = base();
        assert!(a.matches(&Signature { site: CallSite { file: "b.rs".into(), line: 9 }, ..base() }));
        let [one, other] =
            [0.5, 2.0].map(|factor| Signature { reduce: Some(ReduceOp::PreMulSum(factor)), ..base() });
        assert!(one.matches(&other) && one.fingerprint() == other.fingerprint());
        for other in [
            Signature { op: OpKind::Broadcast, ..base() },
            Signature { dtype: Some(DType::F64), ..base() },
            Signature { dtype: None, ..base() },
            Signature { count: 11, ..base() },
            Signature { reduce: Some(ReduceOp::Avg), ..base() },
            Signature { reduce: Some(ReduceOp::PreMulSum(1.0)), ..base() },
            Signature { root: Some(0), ..base() },
            Signature { detail: Signature::detail_of(&[4, 6]), ..base() },
            Signature { method: "ring in 2 blocks of 5".into(), ..base() },
            Signature { method: "ring in 2 blocks of 4".into(), ..base() },
        ] {
            assert!(!a.matches(&other), "{other}");
            assert_ne!(a.fingerprint(), other.fingerprint(), "{other}");
        }
    }

    #[test]
    fn reads_well() {
        assert_eq!(base().to_string(), "all_reduce(f32 x 10, sum) at a.rs:1");
        let barrier = Signature { op: OpKind::Barrier, dtype: None, reduce: None, ..base() };
        assert_eq!(barrier.to_string(), "barrier() at a.rs:1");
        let split =
            Signature { op: OpKind::Split, dtype: Some(DType::I64), count: 6, reduce: None, ..base() };
        assert_eq!(split.to_string(), "split(color, key) at a.rs:1");
    }
}
