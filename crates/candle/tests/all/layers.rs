//! The layers compute what candle's do, and their gradients reach the other ranks whichever way they go.

use crate::common::{MODES, gradients, on_ranks, wave, weights};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{Conv2dConfig, Module, VarBuilder, VarMap};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Sgd, SgdParams, layers};

fn numbers(shape: &[usize], salt: f64) -> Tensor {
    wave(shape, salt).to_dtype(DType::F32).unwrap()
}

fn assert_close(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let largest =
        |t: &Tensor| t.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
    let (off, size) = (largest(&(found - expected).unwrap()), largest(expected));
    assert!(off <= 2e-5 * size + 1e-6, "{what}: off by {off} of {size}");
}

/// Compares outcomes, and the gradients of `inputs` for a loss that weighs each number of the outcome differently.
fn compare(
    what: &str,
    inputs: &[Var],
    ours: impl Fn() -> Result<Tensor>,
    candles: impl Fn() -> Result<Tensor>,
) {
    let (ours, candles) = (ours().unwrap(), candles().unwrap());
    assert_close(&ours, &candles, what);
    let grads = [&ours, &candles].map(|outcome| {
        let loss = (outcome * numbers(outcome.dims(), 0.3)).unwrap().sum_all().unwrap();
        loss.backward().unwrap()
    });
    for (at, input) in inputs.iter().enumerate() {
        let [found, expected] = grads.each_ref().map(|grads| grads.get(input).expect("it was used"));
        assert_close(found, expected, &format!("{what}, gradient {at}"));
    }
}

fn var(shape: &[usize], salt: f64) -> Var {
    Var::from_tensor(&numbers(shape, salt)).unwrap()
}

/// All variables of a model, with numbers that are the same each time.
fn fill(varmap: &VarMap) -> Vec<Var> {
    let data = varmap.data().lock().unwrap();
    for (name, var) in data.iter() {
        let salt = name.bytes().map(f64::from).sum();
        var.set(&(numbers(var.dims(), salt) * 0.5).unwrap()).unwrap();
    }
    data.values().cloned().collect()
}

#[test]
fn activations_are_candles() {
    for shape in [&[0][..], &[1], &[7, 33], &[300, 301]] {
        let x = Var::from_tensor(&(numbers(shape, 1.0) * 6.0).unwrap()).unwrap();
        let inputs = std::slice::from_ref(&x);
        if shape == [0] {
            assert_eq!(layers::gelu(&x).unwrap().dims(), shape);
            continue;
        }
        compare("gelu", inputs, || layers::gelu(&x), || x.gelu());
        compare("relu", inputs, || layers::relu(&x), || x.relu());
        compare(
            "softmax",
            inputs,
            || layers::softmax_last_dim(&x),
            || candle_nn::ops::softmax(&x, D::Minus1),
        );
        if let [_, _] = shape {
            let turned = || x.t();
            compare("gelu of a view", inputs, || layers::gelu(&turned()?), || turned()?.gelu());
            compare(
                "softmax of a view",
                inputs,
                || layers::softmax_last_dim(&turned()?),
                || candle_nn::ops::softmax(&turned()?, D::Minus1),
            );
        }
    }
}

#[test]
fn far_numbers_make_no_nan() {
    let x = Tensor::new(&[-1e30f32, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30], &Device::Cpu).unwrap();
    let gelu = layers::gelu(&x).unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(gelu[3..], [0.0, 88.0, 200.0, 1e30]);
    assert!(gelu[..3].iter().all(|y| y.abs() == 0.0), "{gelu:?}");
    let softmax = layers::softmax_last_dim(&x).unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(softmax, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    let x = Var::from_tensor(&x).unwrap();
    let grads = layers::gelu(&x).unwrap().sum_all().unwrap().backward().unwrap();
    let slopes = grads.get(&x).unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(slopes, [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]);
    let x = Tensor::new(&[f32::NAN, 1.0], &Device::Cpu).unwrap();
    for y in [layers::relu(&x), layers::gelu(&x), layers::softmax_last_dim(&x)] {
        assert!(y.unwrap().to_vec1::<f32>().unwrap()[0].is_nan(), "what is no number stays none");
    }
}

#[test]
fn linear_layers_are_candles() {
    for (shape, bias) in [(&[5, 6][..], true), (&[2, 3, 6], false), (&[2, 2, 3, 6], true), (&[0, 6], true)] {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let (ours, candles) = match bias {
            true => (layers::linear(6, 4, vb.clone()).unwrap(), candle_nn::linear(6, 4, vb).unwrap()),
            false => (
                layers::linear_no_bias(6, 4, vb.clone()).unwrap(),
                candle_nn::linear_no_bias(6, 4, vb).unwrap(),
            ),
        };
        let mut inputs = fill(&varmap);
        let x = var(shape, 2.0);
        if shape[0] == 0 {
            assert_eq!(ours.forward(&x).unwrap().dims(), [0, 4]);
            continue;
        }
        inputs.push(x.clone());
        compare("linear", &inputs, || ours.forward(&x), || candles.forward(&x));
        let data = numbers(shape, 3.0);
        compare(
            "linear, of data",
            &inputs[..inputs.len() - 1],
            || ours.forward(&data),
            || candles.forward(&data),
        );
        let wrong = ours.forward(&numbers(&[3, 5], 0.0)).unwrap_err().to_string();
        assert!(wrong.contains("[4, 6]") && wrong.contains("rows of 5 numbers"), "{wrong}");
    }
}

#[test]
fn convolutions_are_candles() {
    let plain = Conv2dConfig::default();
    for (config, kernel) in [
        (plain, 1),
        (Conv2dConfig { padding: 1, ..plain }, 3),
        (Conv2dConfig { padding: 3, ..plain }, 3),
        (Conv2dConfig { stride: 2, padding: 1, ..plain }, 3),
        (Conv2dConfig { stride: 3, ..plain }, 2),
        (Conv2dConfig { dilation: 2, padding: 2, ..plain }, 3),
        (Conv2dConfig { groups: 2, ..plain }, 3),
    ] {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let ours = layers::conv2d(2, 4, kernel, config, vb.clone()).unwrap();
        let candles = candle_nn::conv2d(2, 4, kernel, config, vb).unwrap();
        let mut inputs = fill(&varmap);
        // candle's backward pass fails where strides leave more of the width than of the height.
        let x = var(&[3, 2, 8, if config.stride == 1 { 11 } else { 8 }], 2.0);
        inputs.push(x.clone());
        compare(&format!("{config:?}"), &inputs, || ours.forward(&x), || candles.forward(&x));
    }
    let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    let layer = layers::conv2d_no_bias(2, 4, 5, plain, vb).unwrap();
    assert!(layer.forward(&numbers(&[1, 2, 4, 9], 0.0)).is_err(), "the kernel is larger than the image");
}

/// By differences.
#[test]
fn strides_that_leave_an_edge_have_its_gradient() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let config = Conv2dConfig { stride: 3, ..Default::default() };
    let layer = layers::conv2d(1, 2, 2, config, vb).unwrap();
    fill(&varmap);
    let x = var(&[1, 1, 6, 7], 2.0);
    let loss = |x: &Tensor| {
        let y = layer.forward(x).unwrap();
        (&y * numbers(y.dims(), 0.3)).unwrap().sum_all().unwrap()
    };
    let found =
        loss(&x).backward().unwrap().get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let all = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (at, found) in found.into_iter().enumerate() {
        let with = |by: f32| {
            let mut all = all.clone();
            all[at] += by;
            loss(&Tensor::from_vec(all, x.shape(), &Device::Cpu).unwrap()).to_scalar::<f32>().unwrap()
        };
        let expected = with(0.5) - with(-0.5);
        assert!((found - expected).abs() < 1e-4, "{at}: {found} and {expected}");
    }
}

#[test]
fn the_largest_of_a_window_gets_the_whole_gradient() {
    let x = var(&[2, 3, 7, 9], 1.0);
    let [ours, candles] = [layers::max_pool2d(&x, 2).unwrap(), x.max_pool2d(2).unwrap()];
    assert_close(&ours, &candles, "pool");
    let grads = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let grad = grads.get(&x).unwrap();
    let largest = ours.sum_all().unwrap().to_scalar::<f32>().unwrap();
    assert!((grad.sum_all().unwrap().to_scalar::<f32>().unwrap() - 2.0 * largest).abs() < 1e-3);
    let is_largest = grad.ne(0f32).unwrap().to_dtype(DType::U32).unwrap();
    assert_eq!(is_largest.sum_all().unwrap().to_scalar::<u32>().unwrap(), 2 * 3 * 3 * 4);
    assert!(layers::max_pool2d(&x, 0).is_err());
}

/// One layer is used twice, and the weights of another by candle's operation besides.
struct Model {
    ours: bool,
    first: layers::Linear,
    twice: layers::Linear,
    candles: [candle_nn::Linear; 2],
}

impl Model {
    fn new(ours: bool, vb: VarBuilder<'_>) -> Result<Self> {
        let (a, b) = (vb.pp("first"), vb.pp("twice"));
        Ok(Self {
            ours,
            first: layers::linear(5, 6, a.clone())?,
            twice: layers::linear_no_bias(6, 6, b.clone())?,
            candles: [candle_nn::linear(5, 6, a)?, candle_nn::linear_no_bias(6, 6, b)?],
        })
    }

    fn loss(&self, rank: usize) -> Result<Tensor> {
        let x = numbers(&[4, 5], rank as f64);
        let x = if self.ours { self.first.forward(&x) } else { self.candles[0].forward(&x) }?.tanh()?;
        let twice = |x: &Tensor| if self.ours { self.twice.forward(x) } else { self.candles[1].forward(x) };
        let x = twice(&twice(&x)?.tanh()?)?;
        self.candles[1].forward(&x)?.sqr()?.mean_all()
    }
}

#[test]
fn gradients_are_those_of_candles_layers_whichever_way_they_go() {
    on_ranks(2, |group| {
        for overlap in MODES {
            for cap in [0, 1 << 20] {
                let config = || DdpConfig::default().overlap(overlap).bucket_cap_bytes(cap);
                let steps = [true, false].map(|ours| {
                    let varmap = VarMap::new();
                    let model = |vb: VarBuilder<'_>| Model::new(ours, vb);
                    let ddp =
                        DistributedDataParallel::build(&varmap, DType::F32, &group, config(), model).unwrap();
                    fill(&varmap);
                    let mut optimizer =
                        Sgd::new(&varmap, SgdParams { lr: 0.1, ..Default::default() }).unwrap();
                    let mut seen = Vec::new();
                    for step in 0..3 {
                        let loss = || ddp.forward(|model| model.loss(2 * step + group.rank())).unwrap();
                        // A graph that is left alone, one of this rank alone, and one whose gradients are added.
                        loss();
                        let alone = loss().backward().unwrap();
                        assert!(varmap.all_vars().iter().all(|var| alone.get(var).is_some()));
                        ddp.accumulate(&loss()).unwrap();
                        let grads = ddp.backward(&loss()).unwrap();
                        seen.push(gradients(&varmap, &grads));
                        optimizer.step(&grads).unwrap();
                        seen.push(weights(&varmap));
                    }
                    ddp.verify_parameters().unwrap();
                    seen
                });
                let [ours, candles] = steps;
                for (ours, candles) in ours.iter().flatten().zip(candles.iter().flatten()) {
                    let (Some(ours), Some(candles)) = (ours, candles) else {
                        panic!("a gradient is missing")
                    };
                    for (ours, candles) in ours.iter().zip(candles) {
                        let (ours, candles) = (f32::from_bits(*ours), f32::from_bits(*candles));
                        assert!(
                            (ours - candles).abs() < 1e-5,
                            "{ours} and {candles}, {overlap:?}, {cap} bytes"
                        );
                    }
                }
            }
        }
    });
}
