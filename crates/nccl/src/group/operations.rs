//! The group's operations one at a time: batches of one.

use super::{NcclGroup, Work};
use crate::buffer::DeviceBuffer;
use crate::element::DeviceElement;
use phalanx_core::{ReduceOp, Result};

/// Each begins an operation and returns, but for [first calls](Self#first-calls); shapes and misuse are those of [`Batch`](crate::Batch), other errors those of the [contract](Self#contract).
impl NcclGroup {
    /// Every rank ends with the combination of all.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn all_reduce<T: DeviceElement>(&self, buffer: &mut DeviceBuffer<T>, op: ReduceOp) -> Result<Work> {
        let mut batch = self.batch();
        batch.all_reduce(buffer, op)?;
        self.launch(&batch)
    }

    /// `root` ends with the combination of all; elsewhere the buffer stays as it is.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn reduce<T: DeviceElement>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.reduce(buffer, op, root)?;
        self.launch(&batch)
    }

    /// Every rank ends with what `root` has.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn broadcast<T: DeviceElement>(&self, buffer: &mut DeviceBuffer<T>, root: usize) -> Result<Work> {
        let mut batch = self.batch();
        batch.broadcast(buffer, root)?;
        self.launch(&batch)
    }

    /// Every rank ends with the inputs of all.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn all_gather<T: DeviceElement>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.all_gather(input, output)?;
        self.launch(&batch)
    }

    /// Every rank ends with its part of the combination of all.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn reduce_scatter<T: DeviceElement>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.reduce_scatter(input, output, op)?;
        self.launch(&batch)
    }

    /// Every rank ends with its part of the input of each.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn all_to_all<T: DeviceElement>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.all_to_all(input, output)?;
        self.launch(&batch)
    }

    /// `root` ends with the inputs of all in its output, which the others lack.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn gather<T: DeviceElement>(
        &self,
        input: &DeviceBuffer<T>,
        output: Option<&mut DeviceBuffer<T>>,
        root: usize,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.gather(input, output, root)?;
        self.launch(&batch)
    }

    /// Every rank ends with its part of the input of `root`, which the others lack.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn scatter<T: DeviceElement>(
        &self,
        input: Option<&DeviceBuffer<T>>,
        output: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work> {
        let mut batch = self.batch();
        batch.scatter(input, output, root)?;
        self.launch(&batch)
    }

    /// Sends to `dst`, which receives.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn send<T: DeviceElement>(&self, buffer: &DeviceBuffer<T>, dst: usize) -> Result<Work> {
        let mut batch = self.batch();
        batch.send(buffer, dst)?;
        self.launch(&batch)
    }

    /// Receives what `src` sends next to this rank.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn recv<T: DeviceElement>(&self, buffer: &mut DeviceBuffer<T>, src: usize) -> Result<Work> {
        let mut batch = self.batch();
        batch.recv(buffer, src)?;
        self.launch(&batch)
    }

    /// Waits on the host until all ranks have come, and their devices have done what they were given on the backends' streams before.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let mut one = DeviceBuffer::<u8>::zeros(self.stream(), 1)?;
        let mut batch = self.batch();
        batch.barrier(&mut one)?;
        self.launch(&batch)?.wait()
    }
}
