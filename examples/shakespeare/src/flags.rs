//! What can be asked for.

use crate::model::Size;
use candle_core::DType;
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};
use phalanx_candle::Overlap;
use phalanx_candle::compress::{Cast, CommHook, Int8, PowerSgd, TopK};
use std::path::PathBuf;

/// Trains a small transformer on the text of Shakespeare's plays, on several ranks that this program starts itself.
///
/// Started by a launcher (`phalanx run`, torchrun), it is one of the launcher's ranks instead.
#[derive(Debug, Clone, Parser)]
#[command(args_override_self = true)]
pub(crate) struct Flags {
    /// Processes to train with.
    #[arg(long, default_value_t = 2)]
    pub(crate) ranks: usize,

    /// Steps to train.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,

    /// Windows of text per step, all ranks together.
    #[arg(long, default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub(crate) batch_size: usize,

    /// Decides the initial weights, the order of the windows, and what is written in the end.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Learning rate of AdamW, at its highest.
    #[arg(long, default_value_t = 0.002)]
    pub(crate) lr: f64,

    /// Largest norm of a step's gradients; longer ones are shortened.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) clip: f64,

    #[command(flatten)]
    pub(crate) size: Size,

    /// What the ranks do for each other.
    #[arg(long, value_enum, default_value = "ddp")]
    pub(crate) method: Method,

    /// Steps from one average to the next, for local-sgd, diloco and streaming-diloco.
    #[arg(long, value_name = "STEPS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sync_every: u64,

    /// Whether gradients are sent while the backward pass still runs.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) overlap: OverlapFlag,

    /// How gradients are made smaller on their way.
    #[arg(long, value_enum, default_value = "none")]
    pub(crate) hook: Hook,

    /// What the model computes in; weights are kept in f32.
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) precision: Precision,

    /// Steps from one look at the held-out text to the next.
    #[arg(long, value_name = "STEPS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) evaluate_every: u64,

    /// Save checkpoints in this folder, and go on from the last one that is there, with any number of ranks.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,

    /// Steps from one checkpoint to the next; the last two are kept.
    #[arg(long, value_name = "STEPS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: u64,

    /// Characters for the trained model to write.
    #[arg(long, value_name = "CHARACTERS", default_value_t = 300)]
    pub(crate) write: usize,

    /// Where to draw the loss curves.
    #[arg(long, value_name = "FILE", default_value = "shakespeare-loss.svg")]
    pub(crate) plot: PathBuf,

    /// Where to write the results for other programs to read.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Flags {
    /// The way to train, in a few words.
    pub(crate) fn described(&self) -> String {
        let Self { method, hook, precision, .. } = self;
        let hook = if *hook == Hook::None { String::new() } else { format!(", sent through {}", name(hook)) };
        format!("by {} in {}{hook}", name(method), name(precision))
    }

    /// Refuses what does not go together.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Self { method, hook, precision, .. } = self;
        let without = |what: String| format!("--method {} has no {what}", name(method));
        let is_sharded = matches!(method, Method::Zero1 | Method::Zero2 | Method::Zero3);
        anyhow::ensure!(*hook == Hook::None || !is_sharded, without("--hook".into()));
        let precisions = match method {
            Method::Ddp => &[Precision::F32, Precision::Bf16, Precision::F16][..],
            Method::Zero1 | Method::Zero2 | Method::Zero3 => &[Precision::F32, Precision::Bf16],
            Method::LocalSgd | Method::DiLoCo | Method::StreamingDiLoCo => &[Precision::F32],
        };
        anyhow::ensure!(precisions.contains(precision), without(format!("--precision {}", name(precision))));
        // Hooks are for gradients of 32 bits, and leave others as they are.
        let is_hooked = *hook != Hook::None && *precision != Precision::F32;
        anyhow::ensure!(!is_hooked, "--precision {} has no --hook", name(precision));
        Ok(())
    }
}

/// As one would type it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What the ranks do for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// Average all gradients in each step.
    Ddp,
    /// Keep a part of the optimizer's state each.
    #[value(name = "zero-1")]
    Zero1,
    /// A part of the gradients, too.
    #[value(name = "zero-2")]
    Zero2,
    /// A part of the weights, too.
    #[value(name = "zero-3")]
    Zero3,
    /// Average the weights now and then.
    LocalSgd,
    /// Make a step of their own of what all did since the last time.
    #[value(name = "diloco")]
    DiLoCo,
    /// The same by halves of the model, while training goes on.
    #[value(name = "streaming-diloco")]
    StreamingDiLoCo,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OverlapFlag {
    Auto,
    On,
    Off,
}

impl From<OverlapFlag> for Overlap {
    fn from(flag: OverlapFlag) -> Self {
        match flag {
            OverlapFlag::Auto => Self::Auto,
            OverlapFlag::On => Self::On,
            OverlapFlag::Off => Self::Off,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hook {
    None,
    F16,
    Bf16,
    Int8,
    /// Of rank 4.
    PowerSgd,
    /// One gradient of a hundred.
    TopK,
}

impl Hook {
    pub(crate) fn make(self) -> phalanx::Result<Option<Box<dyn CommHook>>> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::F16 => Box::new(Cast::f16()),
            Self::Bf16 => Box::new(Cast::bf16()),
            Self::Int8 => Box::new(Int8::new()),
            Self::PowerSgd => Box::new(PowerSgd::new(4)?),
            Self::TopK => Box::new(TopK::new(0.01)?),
        }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    F32,
    Bf16,
    F16,
}

impl Precision {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// By what losses are multiplied first, so that small gradients are not lost.
    pub(crate) fn loss_scale(self) -> f64 {
        match self {
            Self::F16 => 65536.0,
            Self::F32 | Self::Bf16 => 1.0,
        }
    }
}
