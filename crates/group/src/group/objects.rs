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
        let encoded = encode(op, object);
        let mut lens = vec![0; self.world_size()];
        self.all_gather(&[encoded.as_ref().map_or(UNSENDABLE, |bytes| bytes.len() as u64)], &mut lens)?;
        let bytes = encoded?;
        let counts: Vec<usize> =
            lens.iter().enumerate().map(|(rank, &len)| checked(op, len, rank)).collect::<Result<_>>()?;
        let mut all = vec![0u8; counts.iter().sum()];
        self.all_gather_v(&bytes, &mut all, &counts)?;
        let mut rest = &all[..];
        let decode_next = |(rank, &len): (usize, &usize)| {
            let (own, others) = rest.split_at(len);
            rest = others;
            decode(op, own, rank)
        };
        counts.iter().enumerate().map(decode_next).collect()
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
    postcard::from_bytes(bytes)
        .map_err(|e| Error::Object { op, what: format!("the object of rank {rank} can't be decoded: {e}") })
}
