//! Objects: any serde type, encoded with postcard. For configuration and small results, not for tensors.

use crate::ProcessGroup;
use phalanx_core::{Error, OpKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes one encoded object may have.
pub const OBJECT_LEN_MAX: usize = 64 << 20;

/// In place of a length: the object can't be sent, and all ranks are told so.
const UNSENDABLE: u64 = u64::MAX;

impl ProcessGroup {
    /// Copies the root's object to every rank.
    ///
    /// # Shape
    /// `object`: `Some` on `root`; ignored elsewhere.
    /// # Cost
    /// Two broadcasts: the length, then the bytes.
    /// # Errors
    /// [`Object`](Error::Object) on every rank if the root's can't be encoded or is over [`OBJECT_LEN_MAX`], and where it
    /// can't be decoded; the group is fine then. Others: see the [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let settings = (group.rank() == 0).then(|| ("adam".to_owned(), 1e-3));
    /// let settings = group.broadcast_object(settings, 0)?;
    /// assert_eq!(settings, ("adam".to_owned(), 1e-3));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn broadcast_object<O: Serialize + DeserializeOwned>(
        &self,
        object: Option<O>,
        root: usize,
    ) -> Result<O> {
        let op = OpKind::Broadcast;
        let is_root = self.rank() == root;
        if is_root && object.is_none() {
            return Err(Error::misuse(op, format!("the root's object is missing, at {}", self.site())));
        }
        let encoded = if is_root { encode(op, &object) } else { Ok(Vec::new()) };
        let mut len = [encoded.as_ref().map_or(UNSENDABLE, |bytes| bytes.len() as u64)];
        self.broadcast(&mut len, root)?;
        let mut bytes = encoded?;
        let len = checked(op, len[0], root)?;
        bytes.resize(len, 0);
        self.broadcast(&mut bytes, root)?;
        decode::<Option<O>>(op, &bytes, root)?
            .ok_or_else(|| Error::Object { op, what: format!("rank {root} sent no object") })
    }

    /// Collects one object from each rank, in rank order, on every rank.
    ///
    /// # Cost
    /// Two all_gathers: the lengths, then the bytes.
    /// # Errors
    /// [`Object`](Error::Object) on every rank if one rank's can't be encoded or is over [`OBJECT_LEN_MAX`], and where one
    /// can't be decoded; the group is fine then. Others: see the [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let names = group.all_gather_object(&format!("worker {}", group.rank()))?;
    /// assert_eq!(names, ["worker 0", "worker 1"]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_object<O: Serialize + DeserializeOwned>(&self, object: &O) -> Result<Vec<O>> {
        let op = OpKind::AllGather;
        let (bytes, counts) = self.lengths_of_all(op, encode(op, object))?;
        let mut all = vec![0u8; counts.iter().sum()];
        self.all_gather_v(&bytes, &mut all, &counts)?;
        decode_each(op, &all, &counts)
    }

    /// Collects one object from each rank, in rank order, on `root`.
    ///
    /// # Shape
    /// `object`: of every rank. The result: P objects on `root`, `None` elsewhere.
    /// # Cost
    /// An all_gather of the lengths, then a gather of the bytes.
    /// # Errors
    /// [`Object`](Error::Object) on every rank if one rank's can't be encoded or is over [`OBJECT_LEN_MAX`], and on `root` if one
    /// can't be decoded; the group is fine then. Others: see the [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let names = group.gather_object(&format!("worker {}", group.rank()), 0)?;
    /// assert_eq!(names.is_some(), group.rank() == 0);
    /// assert!(names.is_none_or(|names| names == ["worker 0", "worker 1"]));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather_object<O: Serialize + DeserializeOwned>(
        &self,
        object: &O,
        root: usize,
    ) -> Result<Option<Vec<O>>> {
        let op = OpKind::Gather;
        self.check_root(op, root)?;
        let (bytes, counts) = self.lengths_of_all(op, encode(op, object))?;
        let mut all = vec![0u8; if self.rank() == root { counts.iter().sum() } else { 0 }];
        let output = (self.rank() == root).then_some(&mut all[..]);
        self.gather_v(&bytes, output, &counts, root)?;
        if self.rank() == root { decode_each(op, &all, &counts).map(Some) } else { Ok(None) }
    }

    /// Deals the root's objects out to the ranks, in rank order.
    ///
    /// # Shape
    /// `objects`: P of them on `root`; ignored elsewhere. The result: this rank's.
    /// # Cost
    /// A broadcast of the lengths, then a scatter of the bytes. No rank but `root` sees the objects of others.
    /// # Errors
    /// [`Object`](Error::Object) on every rank if one can't be encoded or is over [`OBJECT_LEN_MAX`], and where one can't be
    /// decoded; the group is fine then. [`Misuse`](Error::Misuse) on `root` for another number of objects. Others: see the
    /// [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let files = ["a.txt".to_owned(), "b.txt".to_owned()];
    /// let own: String = group.scatter_object((group.rank() == 0).then_some(&files[..]), 0)?;
    /// assert_eq!(own, ["a.txt", "b.txt"][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_object<O: Serialize + DeserializeOwned>(
        &self,
        objects: Option<&[O]>,
        root: usize,
    ) -> Result<O> {
        let (op, world_size) = (OpKind::Scatter, self.world_size());
        self.check_root(op, root)?;
        let mine = if self.rank() == root { objects.unwrap_or_default() } else { &[] };
        if self.rank() == root && mine.len() != world_size {
            let what = format!("{} objects, expected {world_size} (one for each rank)", mine.len());
            return Err(Error::misuse(op, format!("{what}, at {}", self.site())));
        }
        let encoded: Result<Vec<Vec<u8>>> = mine.iter().map(|object| encode(op, object)).collect();
        let mut lens = match &encoded {
            Ok(all) if self.rank() == root => all.iter().map(|bytes| bytes.len() as u64).collect(),
            _ => vec![UNSENDABLE; world_size],
        };
        self.broadcast(&mut lens, root)?;
        let all = encoded?.concat();
        let counts = lens.iter().map(|&len| checked(op, len, root)).collect::<Result<Vec<_>>>()?;
        let mut own = vec![0u8; counts[self.rank()]];
        self.scatter_v((self.rank() == root).then_some(&all[..]), &mut own, &counts, root)?;
        decode(op, &own, root)
    }

    /// Sends an object to `dst`, which receives it by [`recv_object`](Self::recv_object) with the same tag. As for [`send`](Self::send), a
    /// long one may wait for the receiver.
    ///
    /// # Cost
    /// Two messages: the length, then the bytes. A tag that is used for objects is not to be used for other messages at the same time.
    /// # Errors
    /// [`Object`](Error::Object) if it can't be encoded or is over [`OBJECT_LEN_MAX`]; nothing was sent then. Others: as for [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// const BEST: u64 = 1; // a tag
    /// if group.rank() == 0 {
    ///     group.send_object(&("epoch", 3u32), 1, BEST)?;
    /// } else {
    ///     let best: (String, u32) = group.recv_object(0, BEST)?;
    ///     assert_eq!(best, ("epoch".to_owned(), 3));
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn send_object<O: Serialize>(&self, object: &O, dst: usize, tag: u64) -> Result<()> {
        let bytes = encode(OpKind::Send, object)?;
        self.send(&[bytes.len() as u64], dst, tag)?;
        self.send(&bytes, dst, tag)
    }

    /// Receives the object with `tag` that `src` sent by [`send_object`](Self::send_object).
    ///
    /// # Cost
    /// Memory for the bytes is taken when their number is known; never more than [`OBJECT_LEN_MAX`].
    /// # Errors
    /// [`Object`](Error::Object) if it can't be decoded as an `O`; the group is fine then, and the message is gone.
    /// [`Mismatch`](Error::Mismatch) if a message came that is no object. Others: as for [`recv`](Self::recv).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// if group.rank() == 1 {
    ///     group.send_object(&vec![0.5, 0.25], 0, 7)?;
    /// } else {
    ///     assert_eq!(group.recv_object::<Vec<f64>>(1, 7)?, [0.5, 0.25]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_object<O: DeserializeOwned>(&self, src: usize, tag: u64) -> Result<O> {
        let mut len = [0u64];
        self.recv(&mut len, src, tag)?;
        self.recv_object_of(OpKind::Recv, len[0], src, tag)
    }

    /// Receives an object with `tag` from whichever other rank has sent one by [`send_object`](Self::send_object), and returns it with that rank. The rest
    /// is as for [`recv_any`](Self::recv_any).
    ///
    /// # Cost
    /// As for [`recv_object`](Self::recv_object). One call at a time for a tag: its second message is received from the sender of the first.
    /// # Errors
    /// As for [`recv_object`](Self::recv_object) and [`recv_any`](Self::recv_any).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// const RESULT: u64 = 7; // a tag
    /// if group.rank() == 0 {
    ///     for _ in 1..group.world_size() {
    ///         let (name, from) = group.recv_object_any::<String>(RESULT)?;
    ///         assert_eq!(name, format!("shard {from}"));
    ///     }
    /// } else {
    ///     group.send_object(&format!("shard {}", group.rank()), 0, RESULT)?;
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_object_any<O: DeserializeOwned>(&self, tag: u64) -> Result<(O, usize)> {
        let mut len = [0u64];
        let src = self.recv_any(&mut len, tag)?;
        Ok((self.recv_object_of(OpKind::RecvAny, len[0], src, tag)?, src))
    }

    /// The second message of an object, whose first has said how many bytes it has.
    #[track_caller]
    fn recv_object_of<O: DeserializeOwned>(&self, op: OpKind, len: u64, src: usize, tag: u64) -> Result<O> {
        let mut bytes = vec![0u8; checked(op, len, src)?];
        self.recv(&mut bytes, src, tag)?;
        decode(op, &bytes, src)
    }

    #[track_caller]
    fn check_root(&self, op: OpKind, root: usize) -> Result<()> {
        let world_size = self.world_size();
        if root < world_size {
            return Ok(());
        }
        Err(Error::misuse(op, format!("root {root} in a group of {world_size} ranks, at {}", self.site())))
    }

    /// Tells all ranks how long each one's object is, or that one can't be sent.
    #[track_caller]
    fn lengths_of_all(&self, op: OpKind, encoded: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<usize>)> {
        let mut lens = vec![0; self.world_size()];
        self.all_gather(&[encoded.as_ref().map_or(UNSENDABLE, |bytes| bytes.len() as u64)], &mut lens)?;
        let bytes = encoded?;
        let counts =
            lens.iter().enumerate().map(|(rank, &len)| checked(op, len, rank)).collect::<Result<_>>()?;
        Ok((bytes, counts))
    }
}

fn encode(op: OpKind, object: &impl Serialize) -> Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(object)
        .map_err(|e| Error::Object { op, what: format!("the object can't be encoded: {e}") })?;
    if bytes.len() > OBJECT_LEN_MAX {
        let what = format!("an object of {} bytes is over the limit of {OBJECT_LEN_MAX}", bytes.len());
        return Err(Error::Object { op, what });
    }
    Ok(bytes)
}

fn checked(op: OpKind, len: u64, rank: usize) -> Result<usize> {
    usize::try_from(len).ok().filter(|&len| len <= OBJECT_LEN_MAX).ok_or_else(|| Error::Object {
        op,
        what: format!("rank {rank}'s object can't be encoded or is over the limit of {OBJECT_LEN_MAX} bytes"),
    })
}

fn decode<O: DeserializeOwned>(op: OpKind, bytes: &[u8], rank: usize) -> Result<O> {
    let wrong = |why: String| {
        let what = format!("the object of rank {rank} can't be decoded as what this rank expects: {why}");
        Error::Object { op, what }
    };
    match postcard::take_from_bytes(bytes) {
        Ok((object, [])) => Ok(object),
        Ok((_, rest)) => Err(wrong(format!("it is {} bytes longer", rest.len()))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// The objects of all ranks, which have so many bytes.
fn decode_each<O: DeserializeOwned>(op: OpKind, mut all: &[u8], counts: &[usize]) -> Result<Vec<O>> {
    let decode_next = |(rank, &len): (usize, &usize)| {
        let (own, others) = all.split_at(len);
        all = others;
        decode(op, own, rank)
    };
    counts.iter().enumerate().map(decode_next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_another_type_is_refused() {
        let bytes = postcard::to_stdvec(&(7u32, "rest")).unwrap();
        assert_eq!(decode::<(u32, String)>(OpKind::Recv, &bytes, 2).unwrap(), (7, "rest".to_owned()));
        let longer = decode::<u32>(OpKind::Recv, &bytes, 2).unwrap_err().to_string();
        assert!(longer.contains("the object of rank 2") && longer.contains("5 bytes longer"), "{longer}");
        let shorter = decode::<(u32, String, u8)>(OpKind::Recv, &bytes, 2).unwrap_err();
        assert!(matches!(shorter, Error::Object { .. }), "{shorter}");
    }
}
