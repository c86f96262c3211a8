//! The instruction sets that the loops are compiled for, and which of them this CPU can run.

use std::fmt;
use std::sync::LazyLock;

/// One compilation of the generic loops. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Instance {
    /// The plain loop, one element at a time, against which all others are tested. Never chosen by itself.
    Plain,
    /// The generic loops with what every CPU of the target has: SSE2 on x86-64.
    Baseline,
    /// 256-bit vectors and the `f16` conversions of F16C.
    Avx2,
    /// 512-bit vectors (AVX-512 F, BW, DQ, VL).
    Avx512,
    /// 128-bit vectors, on every aarch64. Tested in an emulator, never measured.
    Neon,
}

impl Instance {
    /// Every instance, from the plainest to the fastest of each architecture.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Baseline, Self::Avx2, Self::Avx512, Self::Neon];

    /// The fastest that this machine can run; found out once in the life of a process.
    pub fn best() -> Self {
        static BEST: LazyLock<Instance> = LazyLock::new(|| {
            let best = Instance::ALL.into_iter().rfind(|instance| instance.is_available());
            best.unwrap_or(Instance::Baseline)
        });
        *BEST
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Plain | Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "which instances are left depends on the architecture")]
            _ => false,
        }
    }

    /// A short name for logs and tables: `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
