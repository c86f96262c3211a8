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
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// devices.all_reduce(&mut buffer, ReduceOp::Sum)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// devices.reduce(&mut buffer, ReduceOp::Sum, 0)?.wait()?;
    /// if rank == 0 {
    ///     assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// }
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// devices.broadcast(&mut buffer, 1)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0; 3]); // what rank 1 has
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// devices.all_gather(&input, &mut output)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// devices.reduce_scatter(&input, &mut output, ReduceOp::Sum)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[2.0], [4.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[[1.0f32, 2.0], [3.0, 4.0]][rank])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// devices.all_to_all(&input, &mut output)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0, 3.0], [2.0, 4.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = (rank == 0).then(|| DeviceBuffer::zeros(stream, 2)).transpose()?;
    /// devices.gather(&input, output.as_mut(), 0)?.wait()?;
    /// if let Some(output) = output {
    ///     assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// }
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = (rank == 0).then(|| DeviceBuffer::from_host(stream, &[1.0f32, 2.0])).transpose()?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// devices.scatter(input.as_ref(), &mut output, 0)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0], [2.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// match rank {
    ///     0 => devices.send(&buffer, 1)?.wait()?,
    ///     _ => devices.recv(&mut buffer, 0)?.wait()?,
    /// }
    /// assert_eq!(buffer.to_host(stream, limit)?, [0.0; 3]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// match rank {
    ///     0 => devices.send(&buffer, 1)?.wait()?,
    ///     _ => devices.recv(&mut buffer, 0)?.wait()?,
    /// }
    /// assert_eq!(buffer.to_host(stream, limit)?, [0.0; 3]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// devices.barrier()?; // both devices are done
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let mut one = DeviceBuffer::<u8>::zeros(self.stream(), 1)?;
        let mut batch = self.batch();
        batch.barrier(&mut one)?;
        self.launch(&batch)?.wait()
    }
}
