//! The same model on all ranks, or an error that says where it differs.

use crate::common::everywhere;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use phalanx::ReduceOp;
use phalanx_candle::{DistributedDataParallel, Error, all_reduce, sync_model};

/// A model of the given variables.
fn model(vars: &[(&str, Tensor)]) -> VarMap {
    let varmap = VarMap::new();
    for (name, tensor) in vars {
        let var = Var::from_tensor(tensor).unwrap();
        varmap.data().lock().unwrap().insert((*name).to_owned(), var);
    }
    varmap
}

fn filled(value: f64, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::full(value, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn every_variable_becomes_that_of_the_root() {
    everywhere(3, |group| {
        let own = 1.0 + group.rank() as f64;
        // Many names, so that candle's hash map has another order on each rank.
        let mut vars: Vec<_> = (0..40)
            .map(|i| (format!("layer.{i}"), filled(own * 100.0 + f64::from(i), &[3, 2], DType::F32)))
            .collect();
        vars.push(("half".into(), filled(own, &[5], DType::BF16)));
        vars.push(("steps".into(), filled(own, &[], DType::I64)));
        let vars: Vec<_> = vars.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        let varmap = model(&vars);

        sync_model(&varmap, &group, 2).unwrap();
        for (name, var) in varmap.data().lock().unwrap().iter() {
            let expected = name.strip_prefix("layer.").map_or(3.0, |i| 300.0 + i.parse::<f64>().unwrap());
            let values: Vec<f64> =
                var.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
            assert!(values.iter().all(|&v| v == expected), "{name}: {values:?}");
        }
    });
}

#[test]
fn a_model_that_differs_is_named_on_all_ranks() {
    let ours = [("a", filled(1.0, &[2], DType::F32)), ("b.weight", filled(1.0, &[10, 128], DType::F32))];
    let other_shape = [ours[0].clone(), ("b.weight", filled(2.0, &[10, 64], DType::F32))];
    let other_type = [ours[0].clone(), ("b.weight", filled(2.0, &[10, 128], DType::F64))];
    let one_more = [ours[0].clone(), ours[1].clone(), ("b.bias", filled(2.0, &[10], DType::F32))];
    let one_less = [ours[0].clone()];
    let cases: [(Vec<(&str, Tensor)>, &str); 4] = [
        (
            other_shape.to_vec(),
            "parameter `b.weight` differs between ranks: rank 0 has f32 [10, 128], rank 2 has f32 [10, 64]",
        ),
        (
            other_type.to_vec(),
            "parameter `b.weight` differs between ranks: rank 0 has f32 [10, 128], rank 2 has f64 [10, 128]",
        ),
        (one_more.to_vec(), "parameter `b.bias` differs between ranks: rank 0 has none, rank 2 has f32 [10]"),
        (
            one_less.to_vec(),
            "parameter `b.weight` differs between ranks: rank 0 has f32 [10, 128], rank 2 has none",
        ),
    ];
    for (theirs, message) in cases {
        let ours = ours.clone();
        everywhere(4, move |group| {
            let varmap = model(if group.rank() < 2 { &ours } else { &theirs });
            let error = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap_err();
            assert!(matches!(error, Error::ModelMismatch { rank: 2, root: 0, .. }), "{error:?}");
            assert_eq!(error.to_string(), message);

            let first = varmap.data().lock().unwrap()["a"].to_vec1::<f32>().unwrap();
            assert_eq!(first, [1.0, 1.0], "unchanged");
            let usable = filled(1.0, &[1], DType::F32);
            all_reduce(&group, &usable, ReduceOp::Sum).unwrap();
            assert_eq!(usable.to_vec1::<f32>().unwrap(), [4.0]);
        });
    }
}
