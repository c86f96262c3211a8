//! One call of a collective on one rank: what all ranks agree on, beside what is performed.

use crate::group::memory::{Changed, Extent, OwnedBuffer};
use crate::group::pending::Bytes;
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{DType, Error, Layout, Result, Signature};
use std::borrow::Borrow;
use std::fmt;

/// A call whose request makes sense for this rank: buffers have the lengths that they must have, a root is a rank of the group, and
/// only roots have what only roots have. No other can be made.
#[derive(Debug)]
pub struct Call<I, O, S = Signature> {
    signature: S,
    request: Request<I, O>,
    rank: usize,
    world_size: usize,
}

/// A request on borrowed memory of the host.
pub(crate) type HostRequest<'a> = Request<&'a [u8], &'a mut [u8]>;
/// A call that borrows memory of the host, as bytes that are aligned for their type. It borrows its signature too, which keeps it small.
pub type HostCall<'a> = Call<&'a [u8], &'a mut [u8], &'a Signature>;
/// A call that owns its buffers until it is done.
pub type OwnedCall = Call<OwnedBuffer, OwnedBuffer>;

impl<I: Extent, O: Extent, S: Borrow<Signature>> Call<I, O, S> {
    /// A call of rank `rank` in a group of `world_size`. The signature says what is called, and all ranks give the same; what is performed
    /// may be another operation. Elements have the type that the signature [carries](Signature::carries), or are bytes. A pre-multiplied sum is
    /// performed as a sum: its contributions are multiplied already.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse): the request makes no sense.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// let call = Call::new(signature, request, 1, 2)?; // on rank 1 of 2
    /// assert_eq!(call.signature().op, OpKind::Broadcast);
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    #[inline(always)]
    pub fn new(signature: S, request: Request<I, O>, rank: usize, world_size: usize) -> Result<Self> {
        let called = signature.borrow();
        check(called, called.carries(), &request, rank, world_size)?;
        if let Some(op) = request.reduce().filter(|op| op.factor().is_some()) {
            let what = format!("a call of {op} is performed as a sum, of products that were formed before");
            return Err(wrong(called, what));
        }
        Ok(Self { signature, request, rank, world_size })
    }

    /// A call that [`is_sensible`], of a request without a factor.
    #[inline(always)]
    pub(crate) fn checked(signature: S, request: Request<I, O>, rank: usize, world_size: usize) -> Self {
        debug_assert!(is_sensible(signature.borrow(), &request, rank, world_size));
        Self { signature, request, rank, world_size }
    }
}

/// Whether [`check`] lets a request of elements of the type that its signature carries pass.
#[inline(always)]
pub(crate) fn is_sensible<I: Extent, O: Extent>(
    signature: &Signature,
    request: &Request<I, O>,
    rank: usize,
    world_size: usize,
) -> bool {
    let dtype = signature.carries();
    let is_defined = match (request.reduce().copied(), dtype) {
        (Some(reduce), Some(dtype)) => reduce.supports(dtype),
        (reduce, _) => reduce.is_none(),
    };
    is_defined && request.is_sensible(element(dtype), rank, world_size)
}

/// Refuses a request of elements of this type that makes no sense.
#[inline(always)]
pub(crate) fn check<I: Extent, O: Extent>(
    signature: &Signature,
    dtype: Option<DType>,
    request: &Request<I, O>,
    rank: usize,
    world_size: usize,
) -> Result<()> {
    let defined = match (request.reduce(), dtype) {
        (Some(reduce), Some(dtype)) => reduce.check(dtype),
        (Some(reduce), None) => Err(format!("{reduce} of elements of no type")),
        (None, _) => Ok(()),
    };
    let sensible = defined.and_then(|()| request.check(element(dtype), rank, world_size));
    sensible.map_err(|what| wrong(signature, what))
}

#[cold]
fn wrong(signature: &Signature, what: String) -> Error {
    Error::misuse(signature.op, format!("{what}, at {}", signature.site))
}

impl<I, O, S: Borrow<Signature>> Call<I, O, S> {
    /// What all ranks must mean alike.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// assert_eq!(Call::new(signature, request, 1, 2)?.signature().count, 2);
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn signature(&self) -> &Signature {
        self.signature.borrow()
    }

    /// What is performed.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// assert_eq!(Call::new(signature, request, 1, 2)?.request().root(), Some(0));
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn request(&self) -> &Request<I, O> {
        &self.request
    }

    /// Both.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// let (signature, request) = Call::new(signature, request, 1, 2)?.into_parts();
    /// assert_eq!((signature.op, request.kind()), (OpKind::Broadcast, OpKind::Broadcast));
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn into_parts(self) -> (S, Request<I, O>) {
        (self.signature, self.request)
    }

    /// Both, where they are: to move a request takes longer than to read it.
    pub(crate) fn parts_mut(&mut self) -> (&S, &mut Request<I, O>) {
        (&self.signature, &mut self.request)
    }

    /// Takes the request; a barrier is left in its place.
    pub(crate) fn take_request(&mut self) -> Request<I, O> {
        std::mem::replace(&mut self.request, Request::Barrier)
    }

    /// The rank that it was made for, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.rank, self.world_size)
    }

    /// For a backend: refuses a call that was made for another rank, or another number of them.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// let call = Call::new(signature, request, 1, 2)?;
    /// assert!(call.check_place(1, 2).is_ok() && call.check_place(0, 2).is_err());
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn check_place(&self, rank: usize, world_size: usize) -> Result<()> {
        if (self.rank, self.world_size) == (rank, world_size) {
            return Ok(());
        }
        let Signature { op, site, .. } = self.signature();
        let (made, ranks) = (self.rank, self.world_size);
        let what = format!("a call of rank {made}/{ranks} on rank {rank}/{world_size}, at {site}");
        Err(Error::misuse(*op, what))
    }
}

impl OwnedCall {
    /// The same call, with buffers that stay here.
    ///
    /// # Errors
    /// [`Changed`]: a buffer has other bytes than when the call was made.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let buffer = OwnedBuffer::new(Box::new(vec![0.0f32; 2]));
    /// let mut call: OwnedCall = Call::new(signature, Request::Broadcast { buffer, root: 0 }, 1, 2)?;
    /// assert_eq!(call.lend().unwrap().signature().count, 2);
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn lend(&mut self) -> Result<HostCall<'_>, Changed> {
        let request = self.request.each();
        let request = request.try_map(
            |input| input.bytes().map(|bytes| &*bytes),
            OwnedBuffer::bytes,
            |reduce| reduce,
        )?;
        Ok(Call { signature: &self.signature, request, rank: self.rank, world_size: self.world_size })
    }

    /// The buffer with which the operation is completed; an empty one where it had none.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let buffer = OwnedBuffer::new(Box::new(vec![0.0f32; 2]));
    /// let call: OwnedCall = Call::new(signature, Request::Broadcast { buffer, root: 0 }, 1, 2)?;
    /// assert_eq!(call.into_buffer().bytes().len(), 8);
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn into_buffer(self) -> Box<dyn Bytes> {
        self.request.into_result().map_or_else(|| Box::new(Vec::<u8>::new()) as _, OwnedBuffer::into_inner)
    }
}

/// Bytes of an element.
pub(crate) fn element(dtype: Option<DType>) -> usize {
    dtype.map_or(1, DType::size)
}

/// So many whole elements are in `bytes`. Elements have a power of two of bytes: to divide by what is not known to be one would take longer than all
/// the rest of the check.
#[inline]
fn elements(bytes: usize, element: usize) -> usize {
    if element.is_power_of_two() { bytes >> element.trailing_zeros() } else { bytes / element }
}

/// Why a buffer must have the length it must have.
enum Why<'a> {
    Block,
    Because(&'static str),
    /// It holds all blocks.
    Blocks(&'a Layout),
    /// It is for this root alone.
    OnlyAt(usize),
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => Ok(()),
            Self::Because(why) => write!(f, " ({why})"),
            Self::OnlyAt(root) => write!(f, " (the root is rank {root})"),
            Self::Blocks(layout) => {
                let (ranks, own) = (layout.world_size(), layout.block(0).len());
                if (0..ranks).all(|rank| layout.block(rank).len() == own) {
                    write!(f, " ({own} × {ranks} ranks)")
                } else {
                    f.write_str(" (the sum of the counts)")
                }
            }
        }
    }
}

/// A buffer's name, its bytes and the elements it must have: `None` where there is, or must be, none.
type Length<'a> = (&'static str, Option<usize>, Option<usize>, Why<'a>);

#[inline]
fn fits(element: usize, (_, got, expected, _): &Length<'_>) -> bool {
    match (got, expected) {
        (Some(got), Some(expected)) => expected.checked_mul(element) == Some(*got),
        (None, None) => true,
        _ => false,
    }
}

/// What is wrong with a request.
trait Words {
    fn say(what: impl FnOnce() -> String) -> Self;
}

impl Words for String {
    fn say(what: impl FnOnce() -> Self) -> Self {
        what()
    }
}

/// No words, for a caller that asks only whether anything is wrong.
struct Unsaid;

impl Words for Unsaid {
    #[inline(always)]
    fn say(_: impl FnOnce() -> String) -> Self {
        Self
    }
}

/// Refuses buffers that have not the lengths they must have.
#[inline(always)]
fn check_lengths<W: Words, const N: usize>(element: usize, buffers: [Length<'_>; N]) -> Result<(), W> {
    if buffers.iter().all(|length| fits(element, length)) {
        return Ok(());
    }
    Err(W::say(|| wrong_lengths(element, &buffers)))
}

/// What is wrong with them, in words.
#[cold]
fn wrong_lengths(element: usize, buffers: &[Length<'_>]) -> String {
    let words = |(name, got, expected, why): &Length<'_>| {
        let got = match got {
            Some(bytes) if bytes % element > 0 => format!("has {bytes} bytes of elements of {element}"),
            Some(bytes) if *bytes == element => "has 1 element".to_owned(),
            Some(bytes) => format!("has {} elements", bytes / element),
            None => "is missing".to_owned(),
        };
        let expected = expected.map_or("none".to_owned(), |len| len.to_string());
        format!("{name} {got}, expected {expected}{why}")
    };
    let wrong: Vec<String> = buffers.iter().filter(|length| !fits(element, length)).map(words).collect();
    wrong.join("; ")
}

impl<I: Extent, O: Extent, R> Request<I, O, R> {
    /// Elements, of so many bytes each, on which all ranks agree; 0 where blocks are uneven, of which each is between two ranks.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// assert_eq!(request.count(4), 2); // elements of four bytes
    /// # drop(signature);
    /// ```
    #[inline(always)]
    pub fn count(&self, element: usize) -> usize {
        match self {
            Self::AllReduce { buffers: Buffers::InPlace(buffer) | Buffers::Separate(_, buffer), .. }
            | Self::Scan { buffers: Buffers::InPlace(buffer) | Buffers::Separate(_, buffer), .. }
            | Self::Reduce { buffer, .. }
            | Self::Broadcast { buffer, .. } => elements(buffer.len_bytes(), element),
            Self::AllGather { blocks, .. }
            | Self::ReduceScatter { blocks, .. }
            | Self::Gather { blocks, .. }
            | Self::Scatter { blocks, .. } => blocks.len(),
            Self::AllToAll { buffers, blocks: BlockExchange::Even { .. } } => {
                let bytes = match buffers {
                    Buffers::InPlace(buffer) => buffer.len_bytes(),
                    Buffers::Separate(input, _) => input.len_bytes(),
                };
                elements(bytes, element)
            }
            Self::AllToAll { blocks: BlockExchange::Uneven { .. }, .. } | Self::Barrier => 0,
        }
    }

    /// Whether all ranks know that there is nothing to move. They still wait for each other, and hear of it if one of them called something else.
    pub(crate) fn is_empty(&self, element: usize) -> bool {
        let is_known = !matches!(self, Self::AllToAll { blocks: BlockExchange::Uneven { .. }, .. });
        is_known && self.count(element) == 0
    }

    /// Refuses what makes no sense for rank `rank` of `world_size`, whose elements have so many bytes.
    ///
    /// # Errors
    /// What is wrong, in words.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, Signature};
    /// # use phalanx_group::{Bytes, Call, OwnedBuffer, OwnedCall, Request};
    /// # let f32 = Some(DType::F32);
    /// # let signature = Signature { dtype: f32, count: 2, root: Some(0), ..Signature::bare(OpKind::Broadcast, CallSite::caller()) };
    /// let mut values = [0u8; 8]; // two f32
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut values[..], root: 0 };
    /// assert!(request.check(4, 1, 2).is_ok());
    /// assert!(request.check(4, 0, 0).is_err()); // there is no rank in such a group
    /// # drop(signature);
    /// ```
    pub fn check(&self, element: usize, rank: usize, world_size: usize) -> Result<(), String> {
        self.check_in::<String>(element, rank, world_size)
    }

    /// As [`check`](Self::check), where nobody asks what is wrong. Where the operation is known, one arm is left of the match.
    #[inline(always)]
    pub(crate) fn is_sensible(&self, element: usize, rank: usize, world_size: usize) -> bool {
        self.check_in::<Unsaid>(element, rank, world_size).is_ok()
    }

    #[inline(always)]
    fn check_in<W: Words>(&self, element: usize, rank: usize, world_size: usize) -> Result<(), W> {
        let out_of_range = |what: &str, rank: usize| {
            W::say(|| format!("{what} {rank} is out of range: the ranks of this group are 0..{world_size}"))
        };
        if rank >= world_size {
            return Err(out_of_range("rank", rank));
        }
        if let Some(root) = self.root().filter(|&root| root >= world_size) {
            return Err(out_of_range("root", root));
        }
        let for_all = |blocks: &Layout| match blocks.world_size() {
            ranks if ranks == world_size => Ok(()),
            ranks => Err(W::say(|| format!("{ranks} blocks for {world_size} ranks"))),
        };
        match self {
            Self::AllReduce { buffers: Buffers::InPlace(buffer), .. }
            | Self::Scan { buffers: Buffers::InPlace(buffer), .. }
            | Self::Reduce { buffer, .. }
            | Self::Broadcast { buffer, .. } => {
                let bytes = buffer.len_bytes();
                check_lengths(element, [("buffer", Some(bytes), Some(elements(bytes, element)), Why::Block)])
            }
            Self::AllReduce { buffers: Buffers::Separate(input, output), .. }
            | Self::Scan { buffers: Buffers::Separate(input, output), .. } => {
                let (bytes, count) = (input.len_bytes(), elements(input.len_bytes(), element));
                let why = Why::Because("as many as input has");
                let output = ("output", Some(output.len_bytes()), Some(count), why);
                check_lengths(element, [("input", Some(bytes), Some(count), Why::Block), output])
            }
            Self::AllGather { buffers, blocks } => {
                for_all(blocks)?;
                match buffers {
                    Buffers::InPlace(buffer) => check_lengths(element, [all("buffer", buffer, blocks)]),
                    Buffers::Separate(input, output) => {
                        let own = own("input", input, blocks, rank);
                        check_lengths(element, [own, all("output", output, blocks)])
                    }
                }
            }
            Self::ReduceScatter { buffers, blocks, .. } => {
                for_all(blocks)?;
                match buffers {
                    Buffers::InPlace(buffer) => check_lengths(element, [all("buffer", buffer, blocks)]),
                    Buffers::Separate(input, output) => {
                        let own = own("output", output, blocks, rank);
                        check_lengths(element, [all("input", input, blocks), own])
                    }
                }
            }
            Self::Gather { input, output, blocks, root } => {
                for_all(blocks)?;
                let whole = at_root("output", output.as_ref(), blocks, *root, rank);
                check_lengths(element, [at_place("input", input.as_ref(), blocks, *root, rank), whole])
            }
            Self::Scatter { input, output, blocks, root } => {
                for_all(blocks)?;
                let whole = at_root("input", input.as_ref(), blocks, *root, rank);
                check_lengths(element, [whole, at_place("output", output.as_ref(), blocks, *root, rank)])
            }
            Self::AllToAll { buffers, blocks: BlockExchange::Even { count } } => {
                let expected = count.checked_mul(world_size);
                let expected =
                    expected.ok_or_else(|| W::say(|| "counts whose sum does not fit".to_owned()))?;
                let for_each = Why::Because("as many for each rank");
                match buffers {
                    Buffers::InPlace(buffer) => {
                        let bytes = Some(buffer.len_bytes());
                        check_lengths(element, [("buffer", bytes, Some(expected), for_each)])
                    }
                    Buffers::Separate(input, output) => {
                        let [input, output] = [input.len_bytes(), output.len_bytes()].map(Some);
                        let why = Why::Because("as many as input has");
                        let input = ("input", input, Some(expected), for_each);
                        check_lengths(element, [input, ("output", output, Some(expected), why)])
                    }
                }
            }
            Self::AllToAll { buffers: Buffers::InPlace(_), blocks: BlockExchange::Uneven { .. } } => {
                Err(W::say(|| {
                    "an all_to_all in place has as many elements for each rank; with counts it has two buffers".to_owned()
                }))
            }
            Self::AllToAll {
                buffers: Buffers::Separate(input, output),
                blocks: BlockExchange::Uneven { send, recv },
            } => {
                for_all(send)?;
                for_all(recv)?;
                let [input, output] = [input.len_bytes(), output.len_bytes()].map(Some);
                let input = ("input", input, Some(send.len()), Why::Because("the sum of send_counts"));
                let output = ("output", output, Some(recv.len()), Why::Because("the sum of recv_counts"));
                check_lengths(element, [input, output])?;
                match (send.block(rank).len(), recv.block(rank).len()) {
                    (to, from) if to != from => Err(W::say(|| {
                        format!("this rank sends {to} elements to itself, and expects {from} from itself")
                    })),
                    _ => Ok(()),
                }
            }
            Self::Barrier => Ok(()),
        }
    }
}

/// A buffer of all blocks.
fn all<'a>(name: &'static str, buffer: &impl Extent, blocks: &'a Layout) -> Length<'a> {
    (name, Some(buffer.len_bytes()), Some(blocks.len()), Why::Blocks(blocks))
}

/// A buffer of this rank's block.
fn own<'a>(name: &'static str, buffer: &impl Extent, blocks: &Layout, rank: usize) -> Length<'a> {
    (name, Some(buffer.len_bytes()), Some(blocks.block(rank).len()), Why::Block)
}

/// A buffer of this rank's block that the root need not have.
fn at_place<'a>(
    name: &'static str,
    buffer: Option<&impl Extent>,
    blocks: &Layout,
    root: usize,
    rank: usize,
) -> Length<'a> {
    let got = buffer.map(Extent::len_bytes);
    let expected = (got.is_some() || rank != root).then(|| blocks.block(rank).len());
    (name, got, expected, Why::Block)
}

/// A buffer of all blocks that the root has, and nobody else.
fn at_root<'a>(
    name: &'static str,
    buffer: Option<&impl Extent>,
    blocks: &'a Layout,
    root: usize,
    rank: usize,
) -> Length<'a> {
    let got = buffer.map(Extent::len_bytes);
    if rank == root {
        (name, got, Some(blocks.len()), Why::Blocks(blocks))
    } else {
        (name, got, None, Why::OnlyAt(root))
    }
}
