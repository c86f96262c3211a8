//! The groups that work on tensors together, and where those may lie.

use candle_core::Device;
use phalanx::error::OpKind;
use phalanx::{Error, ProcessGroup};
#[cfg(feature = "cuda")]
use phalanx_nccl::HybridGroup;
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// The ranks that work on tensors together: a [`ProcessGroup`], for tensors on the CPU.
///
/// With the feature `cuda` a `HybridGroup` is one, too, for tensors on the CPU and on the GPU that it has given this rank; see `docs/reference/cuda.md`.
pub trait Group: sealed::Half {
    /// The group itself, which reaches memory of the host.
    fn host(&self) -> &ProcessGroup;
    /// Describes the group in one line for people.
    fn describe(&self) -> String;
}

mod sealed {
    /// The half of a group that reaches memory of devices. Nobody outside can name it.
    pub trait Half {
        #[cfg(feature = "cuda")]
        fn devices(&self) -> Option<&phalanx_nccl::HybridGroup>;
        /// As [`devices`](Self::devices), as a handle to keep.
        #[cfg(feature = "cuda")]
        fn kept(&self) -> Option<std::sync::Arc<phalanx_nccl::HybridGroup>> {
            self.devices().cloned().map(Into::into)
        }
    }
}

impl Group for ProcessGroup {
    fn host(&self) -> &ProcessGroup {
        self
    }

    fn describe(&self) -> String {
        Self::describe(self)
    }
}

impl sealed::Half for ProcessGroup {
    #[cfg(feature = "cuda")]
    fn devices(&self) -> Option<&HybridGroup> {
        None
    }
}

#[cfg(feature = "cuda")]
impl Group for HybridGroup {
    fn host(&self) -> &ProcessGroup {
        Self::host(self)
    }

    fn describe(&self) -> String {
        Self::describe(self)
    }
}

#[cfg(feature = "cuda")]
impl sealed::Half for HybridGroup {
    fn devices(&self) -> Option<&HybridGroup> {
        Some(self)
    }
}

/// The half of a group that reaches a tensor.
pub(crate) enum Reach<'g> {
    Host(&'g ProcessGroup),
    #[cfg(feature = "cuda")]
    Device(&'g HybridGroup),
}

impl<'g> Reach<'g> {
    /// Refuses tensors that no half reaches.
    pub(crate) fn of(group: &'g impl Group, op: OpKind, device: &Device) -> phalanx::Result<Self> {
        #[cfg(feature = "cuda")]
        if let (Device::Cuda(gpu), Some(hybrid)) = (device, group.devices()) {
            if hybrid.device().is_of(gpu.cuda_stream().context()) {
                return Ok(Self::Device(hybrid));
            }
            let what = format!(
                "the tensor is on {:?}, but this rank works on {}",
                device.location(),
                hybrid.device()
            );
            return Err(Error::misuse(op, what));
        }
        let way = match device {
            Device::Cpu => return Ok(Self::Host(group.host())),
            Device::Cuda(_) => "make a `HybridGroup` of the group for it, or move it",
            Device::Metal(_) => "move it",
        };
        let hint = format!("the tensor is on {:?}; {way} with `to_device(&Device::Cpu)`", device.location());
        Err(Error::Unsupported { op, backend: group.host().backend_name(), hint })
    }
}

/// The ranks, for who remembers them.
#[derive(Debug, Clone)]
pub(crate) struct Ranks {
    host: ProcessGroup,
    #[cfg(feature = "cuda")]
    hybrid: Option<Arc<HybridGroup>>,
}

impl Ranks {
    pub(crate) fn of(group: &impl Group) -> Self {
        Self {
            host: group.host().clone(),
            #[cfg(feature = "cuda")]
            hybrid: group.kept(),
        }
    }
}

impl Group for Ranks {
    fn host(&self) -> &ProcessGroup {
        &self.host
    }

    fn describe(&self) -> String {
        self.host.describe()
    }
}

impl sealed::Half for Ranks {
    #[cfg(feature = "cuda")]
    fn devices(&self) -> Option<&HybridGroup> {
        self.hybrid.as_deref()
    }

    #[cfg(feature = "cuda")]
    fn kept(&self) -> Option<Arc<HybridGroup>> {
        self.hybrid.clone()
    }
}

/// The device of a tensor, and the group that reduces it there.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    device: Device,
    /// The group that reaches it; `None` where the host sees it, and for work on one rank alone.
    #[cfg(feature = "cuda")]
    hybrid: Option<Arc<HybridGroup>>,
}

impl Place {
    /// Refuses tensors that the group does not reach.
    pub(crate) fn of(group: &impl Group, op: OpKind, device: &Device) -> phalanx::Result<Self> {
        let reach = Reach::of(group, op, device)?;
        #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "there is the host alone"))]
        let mut place = Self::alone(device);
        match reach {
            Reach::Host(_) => {}
            #[cfg(feature = "cuda")]
            Reach::Device(_) => place.hybrid = group.kept(),
        }
        Ok(place)
    }

    pub(crate) fn alone(device: &Device) -> Self {
        Self {
            device: device.clone(),
            #[cfg(feature = "cuda")]
            hybrid: None,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn hybrid(&self) -> Option<&HybridGroup> {
        self.hybrid.as_deref()
    }
}
