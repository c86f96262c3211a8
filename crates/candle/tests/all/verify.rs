//! Weights that went apart are found, and told with who holds which.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_candle::{DistributedDataParallel, Error, verify_parameters};
use phalanx_testkit::World;

fn add(varmap: &VarMap, name: &str, tensor: Tensor) {
    varmap.data().lock().unwrap().insert(name.to_owned(), Var::from_tensor(&tensor).unwrap());
}

fn filled(value: f64, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::full(value, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// Many names, so that candle's hash map has another order on each rank, and one parameter of each type.
fn model() -> VarMap {
    let varmap = VarMap::new();
    for i in 0..20 {
        add(&varmap, &format!("layer.{i:02}"), filled(f64::from(i), &[300, 7], DType::F32));
    }
    for dtype in
        [DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I16, DType::I32, DType::I64]
    {
        add(&varmap, &format!("of {}", dtype.as_str()), filled(3.0, &[5], dtype));
    }
    varmap
}

fn is_usable(group: &ProcessGroup) -> bool {
    let mut ones = [1u32];
    group.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
    ones == [group.world_size() as u32]
}

#[test]
fn one_bit_on_one_rank_is_found_on_every_transport() {
    for world in [World::thread(), World::shm(), World::tcp()] {
        let told = world.run(4, |group| {
            let varmap = model();
            let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
            ddp.verify_parameters().unwrap();
            if group.rank() == 2 {
                // The last bit of the last element, and a later parameter, which is not the first to differ.
                let mut values = vec![7f32; 2100];
                values[2099] = f32::from_bits(7f32.to_bits() ^ 1);
                let changed = Tensor::from_vec(values, (300, 7), &Device::Cpu).unwrap();
                let data = varmap.data().lock().unwrap();
                data["layer.07"].set(&changed).unwrap();
                data["layer.11"].set(&changed).unwrap();
            }
            let error = ddp.verify_parameters().unwrap_err();
            assert!(is_usable(&group));
            let Error::ParameterMismatch { name, versions } = &error else { panic!("{error}") };
            assert_eq!(name, "layer.07");
            assert_eq!(versions.iter().map(|v| &v.ranks[..]).collect::<Vec<_>>(), [&[0, 1, 3][..], &[2]]);
            assert_ne!(versions[0].hash, versions[1].hash);
            assert!(versions.iter().all(|v| v.kind.as_deref() == Some("f32 [300, 7]")));
            error.to_string()
        });
        assert!(told.iter().all(|text| *text == told[0]), "the same words on all ranks");
        assert!(told[0].starts_with("parameter `layer.07` differs between ranks: f32 [300, 7] with hash "));
        assert!(told[0].contains(" on ranks [0, 1, 3], f32 [300, 7] with hash "), "{}", told[0]);
        assert!(told[0].ends_with(" on rank 2"), "{}", told[0]);
    }
}

#[test]
fn a_parameter_that_only_some_ranks_have_is_named() {
    World::thread().run(3, |group| {
        let varmap = model();
        let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
        if group.rank() != 1 {
            add(&varmap, "added", filled(1.0, &[2], DType::F32));
        }
        let error = ddp.verify_parameters().unwrap_err().to_string();
        assert!(error.starts_with("parameter `added` differs between ranks: f32 [2] with hash "), "{error}");
        assert!(error.ends_with(" on ranks [0, 2], none on rank 1"), "{error}");
    });
}

#[test]
fn type_and_shape_count_as_much_as_values() {
    let zero = |kind: usize| match kind {
        0 => filled(0.0, &[2, 3], DType::F32),
        1 => filled(0.0, &[3, 2], DType::F32),
        _ => filled(0.0, &[2, 3], DType::I32), // the same bytes
    };
    World::thread().run(3, move |group| {
        let varmap = VarMap::new();
        add(&varmap, "a", zero(group.rank()));
        let error = verify_parameters(&varmap, &group).unwrap_err();
        let Error::ParameterMismatch { name, versions } = &error else { panic!("{error}") };
        let kinds: Vec<_> = versions.iter().map(|v| v.kind.as_deref().unwrap()).collect();
        assert_eq!((&name[..], &kinds[..]), ("a", &["f32 [2, 3]", "f32 [3, 2]", "i32 [2, 3]"][..]));
        assert!(versions.iter().all(|v| v.hash == versions[0].hash));
    });
}

#[test]
fn nothing_to_compare_is_fine() {
    World::thread().run(2, |group| verify_parameters(&VarMap::new(), &group).unwrap());
    World::thread().run(1, |group| verify_parameters(&model(), &group).unwrap());
}
