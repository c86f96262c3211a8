//! Collectives on tensors: every type, views, and what is refused.

use crate::common::everywhere;
use candle_core::{DType, Device, Tensor};
use phalanx::ReduceOp;
use phalanx_candle::{
    Error, all_gather, all_gather_coalesced, all_reduce, all_reduce_coalesced, all_to_all, broadcast, gather,
    recv, reduce, reduce_scatter, reduce_scatter_coalesced, scan, scatter, send,
};

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

            let tensor = mine(1);
            scan(&group, &tensor, ReduceOp::Sum).unwrap();
            let before = [[0.0, 1.0], [10.0, 12.0], [30.0, 33.0]][rank];
            assert_eq!(values(&tensor), before, "{dtype:?}");

            let all = gather(&group, &mine(1), 1).unwrap();
            assert_eq!(all.is_some(), rank == 1, "{dtype:?}");
            if let Some(all) = all {
                assert_eq!((all.dims(), values(&all)), (&[3, 2][..], vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0]));
            }

            let (whole, part) = (mine(3), mine(1));
            scatter(&group, (rank == 2).then_some(&whole), &part, 2).unwrap();
            let first = 20.0 + 2.0 * rank as f64;
            assert_eq!(values(&part), [first, first + 1.0], "{dtype:?}");

            let exchanged = all_to_all(&group, &mine(3)).unwrap();
            assert_eq!(exchanged.dims(), [3, 2]);
            let theirs = |from: usize| [0, 1].map(|i| (10 * from + 2 * rank + i) as f64);
            assert_eq!(values(&exchanged), [theirs(0), theirs(1), theirs(2)].concat(), "{dtype:?}");

            // Round the ring.
            let received = mine(1);
            send(&group, &mine(1), (rank + 1) % 3).unwrap();
            recv(&group, &received, (rank + 2) % 3).unwrap();
            let from = 10.0 * ((rank + 2) % 3) as f64;
            assert_eq!(values(&received), [from, from + 1.0], "{dtype:?}");
        });
    }
}

#[test]
fn many_tensors_go_in_one_call() {
    for dtype in DTYPES {
        everywhere(3, move |group| {
            let rank = group.rank();
            let whole = numbers(rank, 4, dtype);
            // A view, whose neighbours stay, and a tensor that travels alone.
            let (few, view, many) =
                (numbers(rank, 1, dtype), whole.narrow(0, 1, 1).unwrap(), numbers(0, 20_000, dtype));
            all_reduce_coalesced(&group, &[&few, &view, &many], ReduceOp::Max).unwrap();
            assert_eq!(values(&few), [20.0, 21.0], "{dtype:?}");
            let own = 10.0 * rank as f64;
            assert_eq!(values(&whole)[..5], [own, own + 1.0, 22.0, 23.0, own + 4.0], "{dtype:?}");
            assert_eq!(values(&many), values(&numbers(0, 20_000, dtype)), "{dtype:?}");

            let rows = [numbers(rank, 1, dtype), numbers(rank, 2, dtype).t().unwrap()];
            let all = all_gather_coalesced(&group, &[&rows[0], &rows[1]]).unwrap();
            for (all, row) in all.iter().zip(&rows) {
                assert_eq!(values(all), values(&all_gather(&group, row).unwrap()), "{dtype:?}");
                assert_eq!(all.dims()[1..], row.dims()[1..]);
            }
            let mine = [numbers(rank, 3, dtype), numbers(rank, 6, dtype)];
            let parts = reduce_scatter_coalesced(&group, &[&mine[0], &mine[1]], ReduceOp::Sum).unwrap();
            for (part, whole) in parts.iter().zip(&mine) {
                let expected = reduce_scatter(&group, whole, ReduceOp::Sum).unwrap();
                assert_eq!((part.dims(), values(part)), (expected.dims(), values(&expected)), "{dtype:?}");
            }
            all_reduce_coalesced(&group, &[], ReduceOp::Sum).unwrap();
            assert!(all_gather_coalesced(&group, &[]).unwrap().is_empty());
        });
    }
}

#[test]
fn tensors_that_do_not_go_together_keep_what_they_have() {
    everywhere(2, |group| {
        let whole = numbers(group.rank(), 2, DType::F32);
        let own = values(&whole);
        let (one, other) = (whole.narrow(0, 0, 1).unwrap(), whole.narrow(0, 1, 1).unwrap());
        let shared = all_reduce_coalesced(&group, &[&one, &other], ReduceOp::Sum).unwrap_err();
        assert!(matches!(shared, Error::Candle(_)), "{shared}");
        let integers = numbers(0, 2, DType::U32);
        for refused in [
            all_reduce_coalesced(&group, &[&whole, &integers], ReduceOp::Sum),
            all_reduce_coalesced(&group, &[&whole.t().unwrap()], ReduceOp::Sum),
            all_reduce_coalesced(&group, &[&integers], ReduceOp::PreMulSum(0.5)),
            all_gather_coalesced(&group, &[&whole, &integers]).map(drop),
            reduce_scatter_coalesced(&group, &[&numbers(0, 3, DType::F32)], ReduceOp::Sum).map(drop),
            scatter(&group, Some(&integers), &whole, group.rank()),
            all_to_all(&group, &numbers(0, 3, DType::F32)).map(drop),
            recv(&group, &whole.t().unwrap(), 1 - group.rank()),
        ] {
            assert!(matches!(refused, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{refused:?}");
        }
        assert_eq!(values(&whole), own);
        all_reduce(&group, &whole, ReduceOp::PreMulSum(0.5)).unwrap();
        assert_eq!(values(&whole), [5.0, 6.0, 7.0, 8.0]);
    });
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
