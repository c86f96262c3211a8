//! Operations on elements whose type is known only when the program runs: for interpreters and other languages.

use crate::group::backend::{Address, OnTimeout};
use crate::group::memory::OwnedBuffer;
use crate::group::pending::Bytes;
use crate::group::perform::wrong;
use crate::group::recv_any::Received;
use crate::group::request::Request;
use crate::{ProcessGroup, Work};
use phalanx_core::{CallSite, DType, OpKind, ReduceOp, Result};
use std::any::Any;
use std::time::Duration;

/// The operations of a [`ProcessGroup`] on elements of one type, as bytes. [`ProcessGroup::untyped`] makes it.
///
/// Calls are those of the group's methods: a rank that calls [`all_reduce`](ProcessGroup::all_reduce) of `f32` and one that asks here for an
/// all_reduce of [`F32`](DType::F32) work together.
#[derive(Debug, Clone)]
pub struct Untyped<'g> {
    group: &'g ProcessGroup,
    dtype: DType,
    /// Where calls are made, if not where they are.
    site: Option<CallSite>,
}

impl ProcessGroup {
    /// The operations of this group on elements of a type that is known when the program runs.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, ReduceOp, Request};
    /// # phalanx_group::on_threads(2, |group| {
    /// # use phalanx_core::DType;
    /// let mut values = [1.5f32]; // … memory of another language …
    /// let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
    /// let request = Request::AllReduce { buffers: Buffers::InPlace(bytes), reduce: ReduceOp::Sum };
    /// group.untyped(DType::F32).request(request)?;
    /// assert_eq!(values, [3.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn untyped(&self, dtype: DType) -> Untyped<'_> {
        Untyped { group: self, dtype, site: None }
    }
}

/// Refuses memory that holds no whole elements of this type where they may lie.
fn check_elements(dtype: DType, op: OpKind, bytes: &[u8], site: &CallSite) -> Result<()> {
    let (len, size) = (bytes.len(), dtype.size());
    if !len.is_multiple_of(size) {
        return Err(wrong(
            op,
            site,
            format!("a buffer has {len} bytes, expected a multiple of {size} ({dtype})"),
        ));
    }
    if !bytes.as_ptr().addr().is_multiple_of(size) && len > 0 {
        return Err(wrong(
            op,
            site,
            format!(
                "a buffer begins at an address that is no multiple of {size}, as {dtype} needs: copy it to one that does"
            ),
        ));
    }
    Ok(())
}

/// A buffer of any element type that an operation can own.
fn owned(mut buffer: impl Bytes, dtype: DType, op: OpKind, site: &CallSite) -> Result<OwnedBuffer> {
    check_elements(dtype, op, buffer.bytes(), site)?;
    Ok(OwnedBuffer::new(Box::new(buffer)))
}

impl Untyped<'_> {
    /// The same operations, whose calls count as made at `site`: where the program in the other language makes them. As
    /// [`ProcessGroup::with_call_site`], without a clone of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType};
    /// # phalanx_group::on_threads(1, |group| {
    /// let site = CallSite { file: "train.py".into(), line: 41 };
    /// let error = group.untyped(DType::U8).called_at(site).send(&[1], 7, 0).unwrap_err();
    /// assert!(error.to_string().ends_with("at train.py:41"), "{error}");
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn called_at(self, site: CallSite) -> Self {
        Self { site: Some(site), ..self }
    }

    #[track_caller]
    fn site(&self) -> CallSite {
        match &self.site {
            Some(site) => site.clone(),
            None => self.group.site(),
        }
    }

    /// As [`ProcessGroup::request`]: performs `request`, whose buffers hold elements of this type.
    ///
    /// # Shape
    /// Blocks and roots are those of the request, in elements; buffers are their bytes.
    /// # Errors
    /// As for [`ProcessGroup::request`]; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # use phalanx_group::Request;
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut weights = if group.rank() == 0 { [7u8, 8] } else { [0; 2] };
    /// group.untyped(DType::U8).request(Request::Broadcast { buffer: &mut weights[..], root: 0 })?;
    /// assert_eq!(weights, [7, 8]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn request(&self, request: Request<&[u8], &mut [u8]>) -> Result<()> {
        let (group, dtype) = (self.group, self.dtype);
        let (op, site) = (request.kind(), self.site());
        let request = request.try_map(
            |input: &[u8]| check_elements(dtype, op, input, &site).map(|()| input),
            |output: &mut [u8]| check_elements(dtype, op, output, &site).map(|()| output),
            |reduce| reduce,
        )?;
        let detail = group.detail_of(&request);
        group.perform_of(op, dtype, request, detail, site)
    }

    /// Begins `request`, which owns its buffers until it is over. They are dropped then, on whichever thread has ended it.
    ///
    /// # Errors
    /// As for [`ProcessGroup::all_reduce_async`]; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{DType, Layout};
    /// # use phalanx_group::{Buffers, Request};
    /// # phalanx_group::on_threads(2, |group| {
    /// let buffers = Buffers::Separate(vec![7u8], vec![0u8; 2]);
    /// let request = Request::AllGather { buffers, blocks: Layout::even(2, 2) };
    /// let work = group.untyped(DType::U8).begin(request)?;
    /// // … compute …
    /// work.wait()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn begin<B: Bytes>(&self, request: Request<B, B>) -> Result<Work<()>> {
        let (group, dtype) = (self.group, self.dtype);
        let (op, site) = (request.kind(), self.site());
        let detail = group.detail_of(&request);
        let own = |buffer: B| owned(buffer, dtype, op, &site);
        let request = request.try_map(own, own, |reduce: ReduceOp| reduce)?;
        let carried = (op != OpKind::Barrier).then_some(dtype);
        let signature = group.signature_of(op, carried, &request, detail, site)?;
        let pending = group.submit_as(signature, request)?;
        Ok(Work::of_several(vec![pending], |_| Ok(())).of(group.in_flight(op)))
    }

    /// As [`ProcessGroup::send`].
    ///
    /// # Errors
    /// As for [`ProcessGroup::send`]; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # phalanx_group::on_threads(2, |group| {
    /// let bytes = group.untyped(DType::U8);
    /// let mut received = [0u8; 2];
    /// match group.rank() {
    ///     0 => bytes.send(&[1, 2], 1, 0)?,
    ///     _ => bytes.recv(&mut received, 0, 0, None)?,
    /// }
    /// assert!(group.rank() == 0 || received == [1, 2]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn send(&self, buffer: &[u8], dst: usize, tag: u64) -> Result<()> {
        let to = self.address(OpKind::Send, buffer, dst, tag)?;
        self.group.backend.send(to, buffer, self.group.timeout())
    }

    /// As [`ProcessGroup::recv`]; with a timeout as [`ProcessGroup::recv_timeout`].
    ///
    /// # Errors
    /// As for these; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// As of [`send`](Self::send); with a timeout:
    /// ```
    /// # use phalanx_core::{DType, Error};
    /// # use std::time::Duration;
    /// # phalanx_group::on_threads(2, |group| {
    /// let soon = Some(Duration::from_millis(1));
    /// let error = group.untyped(DType::U8).recv(&mut [0], 1 - group.rank(), 0, soon).unwrap_err();
    /// assert!(matches!(error, Error::NoMessage { .. }));
    /// group.barrier()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv(&self, buffer: &mut [u8], src: usize, tag: u64, timeout: Option<Duration>) -> Result<()> {
        let from = self.address(OpKind::Recv, buffer, src, tag)?;
        let (limit, on_timeout) = self.limit(timeout);
        self.group.backend.recv(from, buffer, limit, on_timeout)
    }

    /// As [`ProcessGroup::recv_any`]; with a timeout as [`ProcessGroup::recv_any_timeout`]. Returns the rank that has sent the message.
    ///
    /// # Errors
    /// As for these; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # phalanx_group::on_threads(2, |group| {
    /// let bytes = group.untyped(DType::U8);
    /// match group.rank() {
    ///     0 => bytes.send(&[1, 2], 1, 0)?,
    ///     _ => assert_eq!(bytes.recv_any(&mut [0; 2], 0, None)?, 0),
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_any(&self, buffer: &mut [u8], tag: u64, timeout: Option<Duration>) -> Result<usize> {
        let (group, dtype) = (self.group, self.dtype);
        let call = group.any_source(dtype, buffer.len() / dtype.size(), self.site())?;
        check_elements(dtype, OpKind::RecvAny, buffer, &call.site)?;
        let (limit, on_timeout) = self.limit(timeout);
        group.backend.recv_any(call, tag, buffer, limit, on_timeout)
    }

    /// Begins a [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`ProcessGroup::send_async`]; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # phalanx_group::on_threads(2, |group| {
    /// let (bytes, other) = (group.untyped(DType::U8), 1 - group.rank());
    /// let sent = bytes.begin_send(vec![1u8, 2], other, 0)?;
    /// let coming = bytes.begin_recv(vec![0u8; 2], other, 0)?;
    /// sent.wait()?;
    /// assert_eq!(coming.wait()?, ());
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn begin_send(&self, buffer: impl Bytes, dst: usize, tag: u64) -> Result<Work<()>> {
        self.begin_message(OpKind::Send, buffer, dst, tag)
    }

    /// Begins a [`recv`](Self::recv).
    ///
    /// # Errors
    /// As for [`begin_send`](Self::begin_send).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # phalanx_group::on_threads(2, |group| {
    /// let (bytes, other) = (group.untyped(DType::U8), 1 - group.rank());
    /// let coming = bytes.begin_recv(vec![0u8; 2], other, 0)?; // both receive first, and neither waits for the other
    /// bytes.send(&[1, 2], other, 0)?;
    /// coming.wait()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn begin_recv(&self, buffer: impl Bytes, src: usize, tag: u64) -> Result<Work<()>> {
        self.begin_message(OpKind::Recv, buffer, src, tag)
    }

    /// Begins a [`recv_any`](Self::recv_any).
    ///
    /// # Errors
    /// As for [`ProcessGroup::recv_any_async`]; [`Misuse`](phalanx_core::Error::Misuse) for memory that is not aligned for its type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::DType;
    /// # phalanx_group::on_threads(2, |group| {
    /// let bytes = group.untyped(DType::U8);
    /// match group.rank() {
    ///     0 => bytes.send(&[1, 2], 1, 0)?,
    ///     _ => assert_eq!(bytes.begin_recv_any(vec![0u8; 2], 0)?.wait()?, 0),
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn begin_recv_any(&self, mut buffer: impl Bytes, tag: u64) -> Result<Work<usize>> {
        let (group, dtype) = (self.group, self.dtype);
        let call = group.any_source(dtype, buffer.bytes().len() / dtype.size(), self.site())?;
        check_elements(dtype, OpKind::RecvAny, buffer.bytes(), &call.site)?;
        let pending = group.backend.submit_recv_any(call, tag, Box::new(buffer), group.timeout())?;
        let finish = |received: Received| Ok(received.from());
        Ok(Work::try_new(pending, finish).of(group.in_flight(OpKind::RecvAny)))
    }

    #[track_caller]
    fn begin_message(&self, op: OpKind, mut buffer: impl Bytes, peer: usize, tag: u64) -> Result<Work<()>> {
        let address = self.address(op, buffer.bytes(), peer, tag)?;
        let pending = self.group.backend.submit_message(address, Box::new(buffer), self.group.timeout())?;
        let finish = |_: Vec<Box<dyn Any + Send>>| Ok(());
        Ok(Work::of_several(vec![pending], finish).of(self.group.in_flight(op)))
    }

    #[track_caller]
    fn address(&self, op: OpKind, buffer: &[u8], peer: usize, tag: u64) -> Result<Address> {
        let (group, dtype) = (self.group, self.dtype);
        let site = self.site();
        check_elements(dtype, op, buffer, &site)?;
        group.address_at(op, dtype, buffer.len() / dtype.size(), peer, tag, || site)
    }

    fn limit(&self, timeout: Option<Duration>) -> (Duration, OnTimeout) {
        match timeout {
            Some(timeout) => (timeout, OnTimeout::ReturnNoMessage),
            None => (self.group.timeout(), OnTimeout::FailGroup),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::request::Buffers;
    use crate::on_threads;

    #[test]
    fn typed_and_untyped_calls_work_together() {
        let sums = on_threads(2, |group| {
            let mut values = [group.rank() as f64, 1.0];
            if group.rank() == 0 {
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                group.send(&values, 1, 3)?;
            } else {
                let buffers = Buffers::InPlace(bytemuck::cast_slice_mut(&mut values));
                let untyped = group.untyped(DType::F64);
                untyped.request(Request::AllReduce { buffers, reduce: ReduceOp::Sum })?;
                untyped.recv(bytemuck::cast_slice_mut(&mut values), 0, 3, None)?;
            }
            Ok(values)
        });
        assert_eq!(sums.unwrap(), [[1.0, 2.0]; 2]);
    }

    #[test]
    fn memory_that_no_element_fits_is_refused_and_the_group_goes_on() {
        on_threads(1, |group| {
            let mut words = [0u64; 3];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            fn sum(buffer: &mut [u8]) -> Request<&[u8], &mut [u8]> {
                Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: ReduceOp::Sum }
            }
            let untyped = group.untyped(DType::F32);
            let odd = untyped.request(sum(&mut bytes[..7])).unwrap_err();
            assert!(odd.to_string().contains("7 bytes, expected a multiple of 4 (f32)"), "{odd}");
            let askew = untyped.request(sum(&mut bytes[1..9])).unwrap_err();
            assert!(askew.to_string().contains("no multiple of 4"), "{askew}");
            let buffers = Buffers::<Vec<u8>, _>::InPlace(vec![0u8; 6]);
            let sum_of_owned = Request::AllReduce { buffers, reduce: ReduceOp::Sum };
            let owned = untyped.begin(sum_of_owned).unwrap_err();
            assert!(owned.to_string().contains("6 bytes"), "{owned}");
            untyped.request(sum(&mut bytes[4..12]))
        })
        .unwrap();
    }

    #[test]
    fn an_operation_that_owns_its_buffers_says_when_it_is_over() {
        on_threads(2, |group| {
            let (told, is_over) = std::sync::mpsc::channel();
            let barrier = Request::<Vec<u8>, Vec<u8>>::Barrier;
            let work = group.untyped(DType::U8).begin(barrier)?.on_done(move || told.send(()).unwrap());
            is_over.recv().unwrap();
            assert!(work.wait_timeout(Duration::from_secs(60)));
            let again = work.on_done(|| ());
            again.wait()
        })
        .unwrap();
    }
}
