//! Every request that can be made is performed, in each of its forms, by each backend, blocking and not; no other can be made.

use super::other_method::{LIMIT, Part, on_two_hosts, over_pipes, threads};
use crate::group::backend::Backend;
use crate::group::call::{Call, HostCall, OwnedCall, is_sensible};
use crate::group::memory::{Extent, OwnedBuffer};
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{CallSite, DType, Error, Layout, OpKind, ReduceOp, Result, Signature};
use std::ops::Range;

type Bytes = Vec<u8>;

/// A request, and what must stand where in the buffer of its result.
type Case = (Request<Bytes, Bytes>, Range<usize>, Bytes);

fn value(rank: usize, i: usize) -> u8 {
    (16 * rank + i) as u8
}

/// What a rank has of these elements.
fn values(rank: usize, elements: Range<usize>) -> Bytes {
    elements.map(|i| value(rank, i)).collect()
}

fn summed(world_size: usize, elements: Range<usize>) -> Bytes {
    elements.map(|i| (0..world_size).fold(0, |sum, rank| value(rank, i).wrapping_add(sum))).collect()
}

/// All that rank `rank` can be asked for.
fn cases(rank: usize, world_size: usize) -> Vec<Case> {
    const LEN: usize = 7;
    let (reduce, roots) = (ReduceOp::Sum, [0, world_size - 1]);
    let (mine, sum) = (values(rank, 0..LEN), summed(world_size, 0..LEN));
    let mut cases: Vec<Case> = vec![(Request::Barrier, 0..0, vec![])];
    for buffers in [Buffers::InPlace(mine.clone()), Buffers::Separate(mine.clone(), vec![0; LEN])] {
        cases.push((Request::AllReduce { buffers: buffers.clone(), reduce }, 0..LEN, sum.clone()));
        cases.push((Request::Scan { buffers, reduce }, 0..LEN, summed(rank + 1, 0..LEN)));
    }
    for root in roots {
        let result = if rank == root { 0..LEN } else { 0..0 };
        let expected = sum[result.clone()].to_vec();
        cases.push((Request::Reduce { buffer: mine.clone(), reduce, root }, result, expected));
        cases.push((Request::Broadcast { buffer: mine.clone(), root }, 0..LEN, values(root, 0..LEN)));
    }
    let counts: Vec<usize> = (1..=world_size).collect();
    for blocks in [Layout::even(world_size, 3 * world_size), Layout::from_counts(&counts)] {
        let (own, len) = (blocks.block(rank), blocks.len());
        let all: Bytes = (0..world_size).flat_map(|rank| values(rank, blocks.block(rank))).collect();
        let (block, mut placed) = (values(rank, own.clone()), vec![0; len]);
        placed[own.clone()].copy_from_slice(&block);
        for buffers in [Buffers::InPlace(placed.clone()), Buffers::Separate(block.clone(), vec![0; len])] {
            let request = Request::AllGather { buffers, blocks: blocks.clone() };
            cases.push((request, 0..len, all.clone()));
        }
        let sum = summed(world_size, own.clone());
        let buffers = Buffers::InPlace(values(rank, 0..len));
        let request = Request::ReduceScatter { buffers, blocks: blocks.clone(), reduce };
        cases.push((request, own.clone(), sum.clone()));
        let buffers = Buffers::Separate(values(rank, 0..len), vec![0; own.len()]);
        let request = Request::ReduceScatter { buffers, blocks: blocks.clone(), reduce };
        cases.push((request, 0..own.len(), sum));
        for root in roots {
            let is_root = rank == root;
            // Elsewhere the result is the input.
            let expected = if is_root { all.clone() } else { block.clone() };
            for in_place in [false, true] {
                let input = (!in_place || !is_root).then(|| block.clone());
                let output = is_root.then(|| if in_place { placed.clone() } else { vec![0; len] });
                let request = Request::Gather { input, output, blocks: blocks.clone(), root };
                cases.push((request, 0..expected.len(), expected.clone()));
                let input = is_root.then(|| values(root, 0..len));
                let output = (!in_place || !is_root).then(|| vec![0; own.len()]);
                let result = if output.is_some() { 0..own.len() } else { own.clone() };
                let request = Request::Scatter { input, output, blocks: blocks.clone(), root };
                cases.push((request, result, values(root, own.clone())));
            }
        }
    }
    let count = 2;
    let (input, output) = (values(rank, 0..count * world_size), vec![0; count * world_size]);
    let theirs = |from| values(from, count * rank..count * (rank + 1));
    let expected: Bytes = (0..world_size).flat_map(theirs).collect();
    for buffers in [Buffers::InPlace(input.clone()), Buffers::Separate(input, output)] {
        let request = Request::AllToAll { buffers, blocks: BlockExchange::Even { count } };
        cases.push((request, 0..expected.len(), expected.clone()));
    }
    let sent = |from: usize, to: usize| (2 * from + to) % 3;
    let sends = |from| Layout::from_counts(&(0..world_size).map(|to| sent(from, to)).collect::<Vec<_>>());
    let received: Vec<usize> = (0..world_size).map(|from| sent(from, rank)).collect();
    let (send, recv) = (sends(rank), Layout::from_counts(&received));
    let (input, output) = (values(rank, 0..send.len()), vec![0; recv.len()]);
    let expected: Bytes = (0..world_size).flat_map(|from| values(from, sends(from).block(rank))).collect();
    let buffers = Buffers::Separate(input, output);
    let request = Request::AllToAll { buffers, blocks: BlockExchange::Uneven { send, recv } };
    cases.push((request, 0..expected.len(), expected));
    cases
}

/// The signature of a call of bytes that is named as what it does.
fn named<I: Extent, O: Extent>(request: &Request<I, O>) -> Signature {
    let (op, count) = (request.kind(), request.count(1) as u64);
    let (reduce, root) = (request.reduce().copied(), request.root().map(|root| root as u32));
    let dtype = Some(DType::U8);
    let bare = Signature::bare(op, CallSite::caller());
    Signature { dtype, count, reduce, root, ..bare }
}

/// Gives `perform` a call on borrowed memory.
fn borrowed<R>(
    request: &mut Request<Bytes, Bytes>,
    place: (usize, usize),
    perform: impl FnOnce(HostCall<'_>) -> R,
) -> R {
    let request = request.each().map(|input| &**input, |output| &mut **output);
    let signature = named(&request);
    perform(HostCall::new(&signature, request, place.0, place.1).unwrap())
}

fn owned(request: Request<Bytes, Bytes>, place: (usize, usize)) -> Result<OwnedCall> {
    let owned = |buffer| OwnedBuffer::new(Box::new(buffer));
    let request = request.map(owned, owned);
    OwnedCall::new(named(&request), request, place.0, place.1)
}

/// All requests, and a call of another rank's in between.
fn perform_all(backend: &dyn Backend) {
    let place = (backend.rank(), backend.members().len());
    for (mut request, range, expected) in cases(place.0, place.1) {
        let what = format!("{request:?} over {} on rank {}", backend.name(), place.0);
        for elsewhere in [(place.0, place.1 + 1), ((place.0 + 1) % place.1, place.1)] {
            let request = || Request::Broadcast { buffer: vec![0], root: 0 };
            let done = borrowed(&mut request(), elsewhere, |call| backend.perform(call, LIMIT));
            assert!(matches!(done, Err(Error::Misuse { .. })), "{done:?}");
            let begun = backend.submit(owned(request(), elsewhere).unwrap(), LIMIT);
            assert!(matches!(begun, Err(Error::Misuse { .. })), "{begun:?}");
        }
        let begun = backend.submit(owned(request.clone(), place).unwrap(), LIMIT).unwrap();
        let result = begun.wait().unwrap().into_any().downcast::<Bytes>().unwrap();
        assert_eq!(result[range.clone()], expected, "begun: {what}");
        borrowed(&mut request, place, |call| backend.perform(call, LIMIT)).unwrap();
        let result = request.into_result().unwrap_or_default();
        assert_eq!(result[range], expected, "{what}");
    }
    for (mut request, range, expected) in cases(place.0, place.1) {
        let what = format!("{request:?} by others over {} on rank {}", backend.name(), place.0);
        let is_basic = request.is_basic();
        let done = borrowed(&mut request, place, |call| backend.perform_derived(call, LIMIT));
        if is_basic {
            assert!(matches!(done, Err(Error::Unsupported { .. })), "{what}: {done:?}");
            continue;
        }
        done.unwrap();
        let result = request.into_result().unwrap_or_default();
        assert_eq!(result[range], expected, "{what}");
    }
}

#[test]
fn every_request_is_performed_by_every_backend() {
    threads(3, |part: Part| perform_all(&*part.world("")));
    over_pipes(3, |part: Part| perform_all(&*part.world("")));
    on_two_hosts(|part: Part| perform_all(&part.two_levels("")));
    on_two_hosts(|part: Part| perform_all(&part.two_levels("").slicing_from(0)));
}

/// Requests of rank 0 of 2 that make no sense, and what is said of each.
fn ill_formed() -> Vec<(Request<Bytes, Bytes>, &'static str)> {
    let (reduce, two, one, none) = (ReduceOp::Sum, || vec![0; 2], || vec![0], || vec![0; 0]);
    let (blocks, three) = (|| Layout::even(2, 2), || Layout::even(3, 3));
    let gather = |input, output, root| Request::Gather { input: Some(input), output, blocks: blocks(), root };
    let gather_nothing = |root| Request::Gather { input: None, output: None, blocks: blocks(), root };
    let scatter =
        |input, output, root| Request::Scatter { input, output: Some(output), blocks: blocks(), root };
    let scatter_nothing = |root| Request::Scatter { input: None, output: None, blocks: blocks(), root };
    let uneven = |send: [usize; 2], recv: [usize; 2]| BlockExchange::Uneven {
        send: Layout::from_counts(&send),
        recv: Layout::from_counts(&recv),
    };
    let (in_place, separate) = (Buffers::InPlace::<Bytes, Bytes>, Buffers::Separate::<Bytes, Bytes>);
    let all_gather = |buffers, blocks| Request::AllGather { buffers, blocks };
    let reduce_scatter = |buffers, blocks| Request::ReduceScatter { buffers, blocks, reduce };
    let all_to_all = |buffers, blocks| Request::AllToAll { buffers, blocks };
    vec![
        (Request::AllReduce { buffers: separate(two(), one()), reduce }, "output has 1 element, expected 2"),
        (
            Request::AllReduce { buffers: in_place(one()), reduce: ReduceOp::BitAnd },
            "bit_and is for integers, not for f32",
        ),
        (
            Request::Reduce { buffer: one(), reduce, root: 2 },
            "root 2 is out of range: the ranks of this group are 0..2",
        ),
        (
            Request::Broadcast { buffer: one(), root: 2 },
            "root 2 is out of range: the ranks of this group are 0..2",
        ),
        (all_gather(in_place(one()), blocks()), "buffer has 1 element, expected 2 (1 × 2 ranks)"),
        (all_gather(separate(two(), two()), blocks()), "input has 2 elements, expected 1"),
        (all_gather(separate(one(), one()), blocks()), "output has 1 element, expected 2"),
        (all_gather(in_place(vec![0; 3]), three()), "3 blocks for 2 ranks"),
        (reduce_scatter(in_place(one()), blocks()), "buffer has 1 element, expected 2"),
        (reduce_scatter(separate(one(), one()), blocks()), "input has 1 element, expected 2"),
        (reduce_scatter(separate(two(), two()), blocks()), "output has 2 elements, expected 1"),
        (reduce_scatter(in_place(vec![0; 3]), three()), "3 blocks for 2 ranks"),
        (gather(one(), None, 0), "output is missing, expected 2 (1 × 2 ranks)"),
        (gather(one(), Some(two()), 1), "output has 2 elements, expected none (the root is rank 1)"),
        (gather(one(), Some(one()), 0), "output has 1 element, expected 2"),
        (gather(two(), None, 1), "input has 2 elements, expected 1"),
        (gather_nothing(1), "input is missing, expected 1"),
        (gather_nothing(0), "output is missing, expected 2 (1 × 2 ranks)"),
        (gather(one(), None, 2), "root 2 is out of range: the ranks of this group are 0..2"),
        (scatter(None, one(), 0), "input is missing, expected 2"),
        (scatter(Some(two()), one(), 1), "input has 2 elements, expected none"),
        (scatter(Some(one()), one(), 0), "input has 1 element, expected 2"),
        (scatter(None, two(), 1), "output has 2 elements, expected 1"),
        (scatter_nothing(1), "output is missing, expected 1"),
        (scatter_nothing(0), "input is missing, expected 2 (1 × 2 ranks)"),
        (scatter(None, one(), 2), "root 2 is out of range: the ranks of this group are 0..2"),
        (
            all_to_all(separate(two(), one()), BlockExchange::Even { count: 1 }),
            "output has 1 element, expected 2",
        ),
        (all_to_all(in_place(one()), BlockExchange::Even { count: 1 }), "buffer has 1 element, expected 2"),
        (all_to_all(separate(none(), none()), BlockExchange::Even { count: usize::MAX }), "does not fit"),
        (all_to_all(in_place(two()), uneven([1, 1], [1, 1])), "with counts it has two buffers"),
        (all_to_all(separate(two(), two()), uneven([1, 2], [1, 1])), "input has 2 elements, expected 3"),
        (all_to_all(separate(two(), two()), uneven([1, 1], [1, 2])), "output has 2 elements, expected 3"),
        (
            all_to_all(separate(two(), two()), uneven([2, 0], [0, 2])),
            "sends 2 elements to itself, and expects 0",
        ),
    ]
}

#[test]
fn a_call_of_what_makes_no_sense_cannot_be_made() {
    let signature =
        |op, dtype| Signature { dtype, ..Signature::bare(op, CallSite { file: "train.rs".into(), line: 7 }) };
    for (request, why) in ill_formed() {
        let what = format!("{request:?}");
        // Whole elements of the type.
        let widen = |bytes: Bytes| vec![0u8; 4 * bytes.len()];
        let request = request.map(widen, widen);
        let op = request.kind();
        let mut request = request;
        let borrowed = request.each().map(|input| &input[..], |output| &mut output[..]);
        let signature = signature(op, Some(DType::F32));
        assert!(!is_sensible(&signature, &borrowed, 0, 2), "{what}");
        let made = Call::new(signature, borrowed, 0, 2);
        let Err(error @ Error::Misuse { .. }) = made else { panic!("{what}: {made:?}") };
        let text = error.to_string();
        let whole = text.starts_with(op.name()) && text.ends_with("at train.rs:7");
        assert!(whole && text.contains(why), "{what}: {text}");
    }
    let halves = Request::<&[u8], _>::Broadcast { buffer: &mut [0u8; 6][..], root: 0 };
    let made = Call::new(signature(OpKind::Broadcast, Some(DType::F32)), halves, 0, 2);
    assert!(made.unwrap_err().to_string().contains("buffer has 6 bytes of elements of 4"));
    let (buffers, reduce) = (Buffers::<&[u8], _>::InPlace(&mut [0u8][..]), ReduceOp::Sum);
    let sum = Request::AllReduce { buffers, reduce };
    assert!(!is_sensible(&signature(OpKind::AllReduce, None), &sum, 0, 2));
    let made = Call::new(signature(OpKind::AllReduce, None), sum, 0, 2);
    assert!(made.unwrap_err().to_string().contains("sum of elements of no type"));
}

#[test]
fn a_request_is_the_call_of_the_method_of_its_name() {
    crate::on_threads(2, |group| match group.rank() {
        0 => group.barrier(),
        _ => group.request::<f32>(Request::Barrier),
    })
    .unwrap();
}

#[test]
fn a_rank_that_is_none_of_the_group_has_no_calls() {
    let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
    for rank in [2, 7] {
        let made = HostCall::new(&signature, Request::Barrier, rank, 2);
        assert!(made.unwrap_err().to_string().contains(&format!("rank {rank} is out of range")));
    }
    let gathered = Request::AllGather {
        buffers: Buffers::Separate(&[0u8][..], &mut [0u8; 2][..]),
        blocks: Layout::even(2, 2),
    };
    let u8 = Signature { dtype: Some(DType::U8), ..Signature::bare(OpKind::AllGather, CallSite::caller()) };
    assert!(matches!(HostCall::new(&u8, gathered, 2, 2), Err(Error::Misuse { .. })));
}

#[test]
fn counts_beyond_all_memory_are_an_error() {
    let group = &crate::threads(1)[0];
    let counts = [usize::MAX / 2];
    let begun = group.all_gather_v_async(vec![1u8], &counts);
    assert!(matches!(begun, Err(Error::Misuse { .. })));
    assert!(matches!(group.scatter_async::<f32>(None, usize::MAX, 0), Err(Error::Misuse { .. })));
}

/// Nothing was sent, and nothing is written: here for a forced way that has another order than a reproducible sum.
#[test]
fn what_is_refused_leaves_the_output_as_it_was() {
    for group in crate::threads_with(2, LIMIT, "all_reduce=ring").unwrap() {
        let mut output = [7.0f32; 3];
        let buffers = Buffers::Separate(&[1.0f32; 3][..], &mut output[..]);
        let error = group.reproducible().request(Request::AllReduce { buffers, reduce: ReduceOp::Sum });
        assert!(matches!(error, Err(Error::Config { .. })), "{error:?}");
        assert_eq!(output, [7.0; 3]);
    }
}
