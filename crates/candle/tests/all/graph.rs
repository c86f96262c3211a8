//! Which operations of candle pass gradients on, and what is said where none comes.

use crate::common::{MODES, worlds};
use candle_core::backprop::GradStore;
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::attention::{self, AttnMask};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{self, softmax, softmax_last_dim};
use candle_nn::rotary_emb::{rope, rope_i, rope_i_slow, rope_slow, rope_thd};
use candle_nn::{BatchNorm, LayerNorm, Linear, ModuleT, RmsNorm, SGD, VarBuilder, VarMap};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_candle::{
    DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, Error, MissingGradients, ShardConfig, Sharded,
    Share, Stage,
};

/// What an operation does with the gradient of its argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Passes it on.
    Pass,
    /// Loses it without a word.
    Cut,
    /// Makes the backward pass an error.
    Refuse,
}
use Does::{Cut, Pass, Refuse};

type Operation = fn(&Tensor) -> Result<Tensor>;

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()
}

fn angles() -> (Tensor, Tensor) {
    (ones(&[3, 2]), ones(&[3, 2]))
}

/// All of candle that is made for speed, or for inference, and what to take instead. Those that pass gradients stand beside them.
///
/// Each is given a variable of 2 × 3 × 4 numbers. `docs/reference/ddp.md` has the same list.
const OPERATIONS: &[(&str, Does, Operation)] = &[
    // candle_nn, fused; what follows each is its slow twin.
    ("ops::layer_norm", Cut, |x| ops::layer_norm(x, &ones(&[4]), &ones(&[4]), 1e-5)),
    ("LayerNorm::forward", Cut, |x| LayerNorm::new(ones(&[4]), ones(&[4]), 1e-5).forward(x)),
    ("ops::layer_norm_slow", Pass, |x| ops::layer_norm_slow(x, &ones(&[4]), &ones(&[4]), 1e-5)),
    ("LayerNorm::forward, without bias", Pass, |x| LayerNorm::new_no_bias(ones(&[4]), 1e-5).forward(x)),
    ("ops::rms_norm", Cut, |x| ops::rms_norm(x, &ones(&[4]), 1e-5)),
    ("RmsNorm::forward", Cut, |x| RmsNorm::new(ones(&[4]), 1e-5).forward(x)),
    ("ops::rms_norm_slow", Pass, |x| ops::rms_norm_slow(x, &ones(&[4]), 1e-5)),
    ("RmsNorm::forward_diff", Pass, |x| RmsNorm::new(ones(&[4]), 1e-5).forward_diff(x)),
    ("ops::softmax_last_dim", Cut, softmax_last_dim),
    ("ops::softmax", Pass, |x| softmax(x, D::Minus1)),
    ("ops::log_softmax", Pass, |x| ops::log_softmax(x, D::Minus1)),
    ("rotary_emb::rope", Cut, |x| rope(&x.unsqueeze(0)?, &angles().0, &angles().1)),
    ("rotary_emb::rope_slow", Pass, |x| rope_slow(&x.unsqueeze(0)?, &angles().0, &angles().1)),
    ("rotary_emb::rope_i", Cut, |x| rope_i(&x.unsqueeze(0)?, &angles().0, &angles().1)),
    ("rotary_emb::rope_i_slow", Pass, |x| rope_i_slow(&x.unsqueeze(0)?, &angles().0, &angles().1)),
    ("rotary_emb::rope_thd", Cut, |x| rope_thd(&x.reshape((1, 3, 2, 4))?, &angles().0, &angles().1)),
    ("ops::sigmoid", Pass, ops::sigmoid),
    ("ops::silu", Pass, ops::silu),
    ("ops::swiglu", Pass, ops::swiglu),
    ("ops::mish", Pass, ops::mish),
    ("ops::leaky_relu", Pass, |x| ops::leaky_relu(x, 0.1)),
    ("ops::hard_sigmoid", Pass, ops::hard_sigmoid),
    ("ops::dropout", Pass, |x| ops::dropout(x, 0.5)),
    ("attention::flash_attn", Cut, |x| {
        let x = x.reshape((1, 3, 2, 4))?;
        attention::flash_attn::<f32>(&x, &x, &x, 1.0, AttnMask::None, None, None)
    }),
    ("KvCache::append", Cut, |x| Ok(KvCache::new(1, 8).append(x, x)?.0)),
    ("QMatMul::forward", Cut, |x| {
        let weight = QTensor::quantize(&ones(&[5, 4]), GgmlDType::F32)?;
        // As it is made of a file: what is made of floats takes them apart again, and passes gradients.
        QMatMul::QTensor(weight.into()).forward(x)
    }),
    // candle_core.
    ("Tensor::detach", Cut, |x| Ok(x.detach())),
    ("Tensor::floor", Cut, Tensor::floor),
    ("Tensor::ceil", Cut, Tensor::ceil),
    ("Tensor::round", Cut, Tensor::round),
    ("Tensor::sign", Cut, Tensor::sign),
    ("Tensor::affine by 0", Cut, |x| x.affine(0.0, 1.0)),
    ("Tensor::argmax", Cut, |x| x.argmax(D::Minus1)?.to_dtype(DType::F32)),
    ("Tensor::arg_sort_last_dim", Cut, |x| x.arg_sort_last_dim(true)?.to_dtype(DType::F32)),
    ("Tensor::sort_last_dim", Pass, |x| Ok(x.sort_last_dim(true)?.0)),
    ("Tensor::ge", Cut, |x| x.ge(0.5)?.to_dtype(DType::F32)),
    ("Tensor::to_dtype, of integers", Cut, |x| x.to_dtype(DType::U32)?.to_dtype(DType::F32)),
    ("Tensor::to_dtype, of floats", Pass, |x| x.to_dtype(DType::F64)?.to_dtype(DType::F32)),
    ("Tensor::slice_set", Cut, |x| {
        let all = x.zeros_like()?;
        all.slice_set(x, 0, 0)?;
        Ok(all)
    }),
    ("Tensor::scatter_set", Cut, |x| {
        let all = x.zeros_like()?;
        all.scatter_set(&Tensor::zeros((2, 3, 4), DType::U32, &Device::Cpu)?, x, 0)?;
        Ok(all)
    }),
    ("Tensor::scatter_add_set", Cut, |x| {
        let all = x.zeros_like()?;
        all.scatter_add_set(&Tensor::zeros((2, 3, 4), DType::U32, &Device::Cpu)?, x, 0)?;
        Ok(all)
    }),
    ("Tensor::slice_scatter", Pass, |x| x.zeros_like()?.slice_scatter(x, 0, 0)),
    ("Tensor::slice_assign", Pass, |x| x.zeros_like()?.slice_assign(&[0..2, 0..3, 0..4], x)),
    ("Tensor::cat", Pass, |x| Tensor::cat(&[x, x], 1)),
    ("Tensor::unfold", Pass, |x| x.unfold(2, 2, 2)),
    ("Tensor::flip", Pass, |x| x.flip(&[0])),
    ("Tensor::roll", Pass, |x| x.roll(1, 2)),
    ("Tensor::cumsum", Pass, |x| x.cumsum(2)),
    ("Tensor::log_sum_exp", Pass, |x| x.log_sum_exp(2)),
    ("Tensor::max", Pass, |x| x.max(D::Minus1)),
    ("Tensor::clamp", Pass, |x| x.clamp(0f32, 1f32)),
    ("Tensor::conv_transpose1d", Refuse, |x| x.conv_transpose1d(&ones(&[3, 3, 2]), 0, 0, 1, 1, 1)),
    ("Tensor::upsample_bilinear2d", Refuse, |x| x.unsqueeze(0)?.upsample_bilinear2d(6, 8, false)),
    ("Tensor::avg_pool2d, overlapping", Refuse, |x| x.unsqueeze(0)?.avg_pool2d_with_stride(2, 1)),
    ("Tensor::max_pool2d, overlapping", Refuse, |x| x.unsqueeze(0)?.max_pool2d_with_stride(2, 1)),
];

fn done_by(operation: Operation) -> Does {
    let x = Var::rand(0.1f32, 0.9, (2, 3, 4), &Device::Cpu).unwrap();
    let loss = operation(&x).unwrap().sqr().unwrap().sum_all().unwrap();
    match loss.backward() {
        Ok(grads) if grads.get(&x).is_some() => Pass,
        Ok(_) => Cut,
        Err(_) => Refuse,
    }
}

/// If candle has changed: `docs/reference/ddp.md` and the words of `NO_GRADIENT_HINT` have the list, too.
#[test]
fn these_operations_lose_gradients_and_these_do_not() {
    let found: Vec<_> = OPERATIONS.iter().map(|&(name, _, operation)| (name, done_by(operation))).collect();
    let expected: Vec<_> = OPERATIONS.iter().map(|&(name, does, _)| (name, does)).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_page_names_every_operation_that_loses_gradients() {
    let page = include_str!("../../../../docs/reference/ddp.md");
    for (name, does, _) in OPERATIONS.iter().filter(|(_, does, _)| *does != Pass) {
        let name = name.split(',').next().unwrap_or(name).trim_end_matches(" by 0");
        let short = name.split("::").last().unwrap();
        assert!(page.contains(short), "`{name}` ({does:?}) is not in docs/reference/ddp.md");
    }
}

/// Layers of which the fused normalisation in the middle cuts off those before it, unless it is not `fused`.
struct Model {
    first: Linear,
    norm: LayerNorm,
    head: Linear,
    statistics: BatchNorm,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            first: candle_nn::linear(4, 4, vb.pp("first"))?,
            norm: candle_nn::layer_norm(4, 1e-5, vb.pp("norm"))?,
            head: candle_nn::linear(4, 2, vb.pp("head"))?,
            statistics: candle_nn::batch_norm(2, 1e-5, vb.pp("statistics"))?,
        })
    }

    fn loss(&self, fused: bool) -> Result<Tensor> {
        let x = self.first.forward(&crate::common::wave(&[3, 4], 1.0).to_dtype(DType::F32)?)?;
        let x = match fused {
            true => self.norm.forward(&x)?,
            false => ops::layer_norm_slow(&x, self.norm.weight(), self.norm.bias().unwrap(), 1e-5)?,
        };
        // Its running statistics are variables, too, and never have a gradient.
        self.statistics.forward_t(&self.head.forward(&x)?, true)?.sqr()?.sum_all()
    }
}

const LOST: [&str; 4] = ["first.bias", "first.weight", "norm.bias", "norm.weight"];

#[track_caller]
fn assert_lost<R>(outcome: phalanx_candle::Result<R>, group: &ProcessGroup) {
    let Err(error) = outcome else { panic!("gradients are missing, and nothing was said") };
    assert!(matches!(&error, Error::NoGradient { names } if *names == LOST), "{error}");
    let told = error.to_string();
    let begin = "no rank has a gradient for `first.bias`, `first.weight`, `norm.bias`, `norm.weight`, so no";
    assert!(told.starts_with(begin) && told.contains("use ops::layer_norm_slow"), "{told}");
    // As `fn main() -> Result<()>` prints it.
    assert_eq!(format!("{error:?}"), told);
    let mut ones = [1u32];
    group.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
    assert_eq!(ones, [group.world_size() as u32]);
}

#[test]
fn variables_that_an_operation_cuts_off_are_named() {
    for world in worlds() {
        for mode in MODES {
            world.run(3, move |group| {
                let ddp = |choice| {
                    let config = DdpConfig::default().overlap(mode).missing_gradients(choice);
                    DistributedDataParallel::build(&VarMap::new(), DType::F32, &group, config, |vb| {
                        Model::new(vb)
                    })
                    .unwrap()
                };
                let refusing = ddp(MissingGradients::Error);
                let loss = |ddp: &DistributedDataParallel<Model>, fused| {
                    ddp.forward(|model| model.loss(fused)).unwrap()
                };
                // What a rank has kept is gone with the step.
                refusing.accumulate(&loss(&refusing, true)).unwrap();
                assert_lost(refusing.backward(&loss(&refusing, true)), &group);
                // What one rank has, all have; a rank without samples has nothing, and that is fine.
                if group.rank() == 1 {
                    refusing.backward_share(&loss(&refusing, false), Share::new(5, 5)).unwrap();
                } else {
                    let mut none = GradStore::default();
                    refusing.sync_gradients(&mut none, Share::new(0, 5)).unwrap();
                }
                let mut none = GradStore::default();
                refusing.sync_gradients(&mut none, Share::new(0, 0)).unwrap();
                // It looks at every step, and whoever joins hears of it, too.
                match group.rank() {
                    2 => assert_lost(refusing.join(), &group),
                    _ => assert_lost(refusing.backward(&loss(&refusing, true)), &group),
                }
                for choice in [MissingGradients::Warn, MissingGradients::Allow] {
                    let ddp = ddp(choice);
                    for _ in 0..2 {
                        ddp.backward(&loss(&ddp, true)).unwrap();
                    }
                }
            });
        }
    }
}

#[test]
fn a_sharded_model_names_them_too() {
    for world in worlds() {
        for stage in [Stage::Optimizer, Stage::Gradients, Stage::Weights] {
            for mode in MODES {
                world.run(2, move |group| {
                    let build = |choice| {
                        let config =
                            ShardConfig::default().stage(stage).overlap(mode).missing_gradients(choice);
                        Sharded::build(DType::F32, &group, config, |_, vb| Model::new(vb)).unwrap()
                    };
                    let refusing = build(MissingGradients::Error);
                    let loss = |fused| refusing.forward(|model| model.loss(fused)).unwrap();
                    refusing.accumulate(&loss(true), Share::EQUAL).unwrap();
                    assert_lost(refusing.backward(&loss(true)), &group);
                    // What was accumulated counts as used.
                    refusing.accumulate(&loss(group.rank() == 1), Share::EQUAL).unwrap();
                    refusing.backward(&loss(true)).unwrap();
                    assert_lost(refusing.backward(&loss(true)), &group);
                    let warning = build(MissingGradients::Warn);
                    for _ in 0..2 {
                        let loss = warning.forward(|model| model.loss(true)).unwrap();
                        warning.backward(&loss).unwrap();
                    }
                });
            }
        }
    }
}

#[test]
fn ranks_that_meet_seldom_name_them_in_their_first_step() {
    for world in worlds() {
        world.run(3, |group| {
            let optimizer = |choice| {
                let varmap = VarMap::new();
                let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
                let model = Model::new(vb).unwrap();
                let sgd = candle_nn::Optimizer::new(varmap.all_vars(), 0.1).unwrap();
                let config = DiLoCoConfig::streaming(4, 1, 2).missing_gradients(choice);
                (model, DiLoCo::<SGD>::new(sgd, &varmap, &group, config).unwrap())
            };
            // Rank 1 has no batch yet.
            let grads = |model: &Model, fused| match group.rank() {
                1 => GradStore::default(),
                _ => model.loss(fused).unwrap().backward().unwrap(),
            };
            let (model, mut refusing) = optimizer(MissingGradients::Error);
            refusing.step(&GradStore::default()).unwrap();
            assert_lost(refusing.step(&grads(&model, true)), &group);
            let (model, mut refusing) = optimizer(MissingGradients::Error);
            // Later steps send nothing that they need not.
            for step in 0..10 {
                refusing.step(&grads(&model, step > 0 || group.rank() == 2)).unwrap();
            }
            refusing.finish().unwrap();
            let (model, mut warning) = optimizer(MissingGradients::Warn);
            warning.step(&grads(&model, true)).unwrap();
        });
    }
}
