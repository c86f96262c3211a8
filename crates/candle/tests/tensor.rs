//! Collectives on tensors: every type, views, and what is refused.

mod common;

use candle_core::{DType, Device, Tensor};
use common::everywhere;
use phalanx::ReduceOp;
use phalanx_candle::{Error, all_gather, all_reduce, broadcast, reduce, reduce_scatter};

const DTYPES: [DType; 9] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// `rows` x 2 small numbers that differ between ranks.
fn numbers(rank: usize, rows: usize, dtype: DType) -> Tensor {
    let values: Vec<f64> = (0..2 * rows).map(|i| (i + 10 * rank) as f64).collect();
    Tensor::from_vec(values, (rows, 2), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

#[test]
fn every_type_is_carried_by_every_collective() {
    for dtype in DTYPES {
        everywhere(3, move |group| {
            let rank = group.rank();
            let mine = |rows| numbers(rank, rows, dtype);

            let tensor = mine(2);
            all_reduce(&group, &tensor, ReduceOp::Sum).unwrap();
            assert_eq!(values(&tensor), [30.0, 33.0, 36.0, 39.0], "{dtype:?}");

            let tensor = mine(2);
            broadcast(&group, &tensor, 1).unwrap();
            assert_eq!(values(&tensor), [10.0, 11.0, 12.0, 13.0], "{dtype:?}");

            let tensor = mine(2);
            reduce(&group, &tensor, ReduceOp::Max, 2).unwrap();
            if rank == 2 {
                assert_eq!(values(&tensor), [20.0, 21.0, 22.0, 23.0], "{dtype:?}");
            }

            let all = all_gather(&group, &mine(1)).unwrap();
            assert_eq!((all.dims(), all.dtype()), (&[3, 2][..], dtype));
            assert_eq!(values(&all), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);

            let part = reduce_scatter(&group, &mine(3), ReduceOp::Sum).unwrap();
            assert_eq!((part.dims(), part.dtype()), (&[1, 2][..], dtype));
            let first = 30.0 + 6.0 * rank as f64;
            assert_eq!(values(&part), [first, first + 3.0], "{dtype:?}");
        });
    }
}

#[test]
fn a_scalar_is_gathered_into_a_row() {
    everywhere(4, |group| {
        let scalar = Tensor::new(group.rank() as u32, &Device::Cpu).unwrap();
        let row = all_gather(&group, &scalar).unwrap();
        assert_eq!(row.to_vec1::<u32>().unwrap(), [0, 1, 2, 3]);
    });
}

#[test]
fn a_view_changes_its_own_part_only() {
    everywhere(2, |group| {
        let whole = numbers(group.rank(), 3, DType::F32);
        let middle = whole.narrow(0, 1, 1).unwrap();
        all_reduce(&group, &middle, ReduceOp::Sum).unwrap();
        let own = 10.0 * group.rank() as f64;
        assert_eq!(values(&whole), [own, own + 1.0, 14.0, 16.0, own + 4.0, own + 5.0]);
    });
}

#[test]
fn columns_are_gathered_in_their_own_order() {
    everywhere(2, |group| {
        let transposed = numbers(group.rank(), 2, DType::F32).t().unwrap();
        let all = all_gather(&group, &transposed).unwrap();
        assert_eq!(values(&all), [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    });
}

#[test]
fn what_cannot_be_done_is_refused_and_the_group_works_on() {
    everywhere(2, |group| {
        let tensor = numbers(0, 3, DType::F32);
        let transposed = tensor.t().unwrap();
        let refused = all_reduce(&group, &transposed, ReduceOp::Sum);
        assert!(matches!(refused, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{refused:?}");
        let refused = reduce_scatter(&group, &tensor, ReduceOp::Sum).map(drop);
        assert!(matches!(refused, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{refused:?}");

        let tiny = tensor.to_dtype(DType::F8E4M3).unwrap();
        for refused in [broadcast(&group, &tiny, 0), all_gather(&group, &tiny).map(drop)] {
            assert!(matches!(refused, Err(Error::Group(phalanx::Error::Unsupported { .. }))), "{refused:?}");
        }

        all_reduce(&group, &tensor, ReduceOp::Avg).unwrap();
        assert_eq!(values(&tensor), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    });
}
