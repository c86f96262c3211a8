//! Every operation, for any group of both kinds of memory, on the double or on GPUs.

mod small;

use half::{bf16, f16};
use phalanx_core::{Error, ReduceOp};
use phalanx_nccl::{DataType, DeviceBuffer, F8E4M3, F8E5M2, HybridGroup, Place, Stream, Work};
use small::Small;
use std::time::Duration;

/// Far more than anything takes.
const LONG: Duration = Duration::from_secs(60);
/// Elements of one rank's block.
const LEN: usize = 5;

/// All of it. `keep_busy` gives a stream something to do for a while.
pub(crate) fn everything(all: &HybridGroup, keep_busy: impl Fn(&Stream)) {
    macro_rules! each {
        ($($t:ty)*) => { $(types::<$t>(all);)* };
    }
    each!(f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 F8E4M3 F8E5M2);
    let (devices, host) = (one_by_one::<DeviceBuffer<f32>>(all), one_by_one::<Vec<f32>>(all));
    let is_near = |(one, other): (&Vec<f32>, &Vec<f32>)| {
        one.len() == other.len() && one.iter().zip(other).all(|(x, y)| (x - y).abs() < 1e-5)
    };
    // An average has other bits over NCCL.
    assert!(
        devices.len() == host.len() && devices.iter().zip(&host).all(is_near),
        "{devices:?}, but {host:?}"
    );
    streams(all, keep_busy);
}

/// The number of `rank` at place `i`, such that what comes of them is small, too.
fn number(all: &HybridGroup, op: ReduceOp, rank: usize, i: usize) -> u8 {
    let n = all.world_size();
    match op {
        ReduceOp::Sum => ((rank + i) % 2) as u8,
        ReduceOp::Prod => 1 + u8::from((rank + i) % n < 3),
        // As much more here as less there.
        ReduceOp::Avg => (2 + i % 4) as u8 + 2 * u8::from(rank == 0) - 2 * u8::from(rank == n - 1),
        ReduceOp::PreMulSum(_) => u8::from((rank + i) % n < 4),
        _ => ((3 * rank + i) % 9) as u8,
    }
}

/// What the contribution of `rank` to a pre-multiplied sum is multiplied by.
fn factor(rank: usize) -> f64 {
    [2.0, 1.0][rank % 2]
}

fn combined(all: &HybridGroup, op: ReduceOp, i: usize) -> u8 {
    let numbers = (0..all.world_size()).map(|rank| number(all, op, rank, i));
    match op {
        ReduceOp::Sum => numbers.sum(),
        ReduceOp::Avg => numbers.sum::<u8>() / all.world_size() as u8,
        ReduceOp::Prod => numbers.product(),
        ReduceOp::Min => numbers.min().unwrap(),
        ReduceOp::Max => numbers.max().unwrap(),
        // Every rank's factor is its own.
        ReduceOp::PreMulSum(_) => numbers.enumerate().map(|(rank, number)| factor(rank) as u8 * number).sum(),
        other => panic!("no numbers for {other}"),
    }
}

fn buffer<T: Small>(all: &HybridGroup, numbers: impl IntoIterator<Item = u8>) -> DeviceBuffer<T> {
    let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
    DeviceBuffer::from_host(all.stream(), &elements).unwrap()
}

fn check<T: Small>(
    all: &HybridGroup,
    found: &DeviceBuffer<T>,
    numbers: impl Iterator<Item = u8>,
    what: &str,
) {
    let expected: Vec<T> = numbers.map(T::of).collect();
    let found = found.to_host(all.stream(), LONG).unwrap();
    assert_eq!(found, expected, "{what} of {} on rank {} of {all:?}", std::any::type_name::<T>(), all.rank());
}

/// As [`check`], but for what an average on devices makes of it.
fn check_about<T: Small>(all: &HybridGroup, found: &[T], numbers: impl Iterator<Item = u8>, op: ReduceOp) {
    let n = all.world_size();
    let is_exact = op != ReduceOp::Avg || n.is_power_of_two();
    let numbers: Vec<u8> = numbers.collect();
    let is_right = |(found, &number): (&T, &u8)| match is_exact {
        true => *found == T::of(number),
        false => found.is_about(number, n),
    };
    assert!(
        found.len() == numbers.len() && found.iter().zip(&numbers).all(is_right),
        "{op:?} of {} on rank {} of {all:?}: {found:?} instead of {numbers:?}",
        std::any::type_name::<T>(),
        all.rank()
    );
}

/// All operations in one type. Those of a kind are launched together.
pub(crate) fn types<T: Small>(all: &HybridGroup) {
    moved::<T>(all);
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
    for op in ops.into_iter().chain([ReduceOp::PreMulSum(factor(all.rank()))]) {
        let is_avg = op == ReduceOp::Avg;
        // What of floats of eight bits NCCL reduces, and where.
        let has_eight_bits =
            all.nccl().is_some_and(|nccl| nccl.library().version() >= DataType::F8E4M3.since())
                && all.device().compute_capability() >= (9, 0)
                && (all.world_size() > 1 || !(is_avg || op.factor().is_some()));
        // An average of eight bits is not exact on a GPU.
        if T::DTYPE.is_none() && is_avg && has_eight_bits && all.nccl().is_some() {
            continue;
        }
        let is_there = match all.nccl() {
            Some(_) => T::DATA_TYPE.is_some() && (T::DTYPE.is_some() || has_eight_bits),
            None => T::DTYPE.is_some(),
        };
        if op.factor().is_some() && T::DTYPE.is_some_and(|dtype| !dtype.is_float()) {
            let error = all.batch().all_reduce(&mut buffer::<T>(all, [1]), op).unwrap_err();
            assert!(error.to_string().contains("pre_mul_sum is for floats, not for"), "{error}");
        } else if is_there {
            reduced::<T>(all, op);
        } else {
            let error = all.batch().all_reduce(&mut buffer::<T>(all, [1]), op).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
    }
}

fn reduced<T: Small>(all: &HybridGroup, op: ReduceOp) {
    let (rank, n, root) = (all.rank(), all.world_size(), all.world_size() - 1);
    let own = |len| (0..len).map(|i| number(all, op, rank, i));
    let result = |len| (0..len).map(|i| combined(all, op, i));
    let input: DeviceBuffer<T> = buffer(all, own(n * LEN));
    let [mut in_place, mut at_root, mut scattered] = [(); 3].map(|()| buffer::<T>(all, own(n * LEN)));
    let mut output: DeviceBuffer<T> = buffer(all, vec![0; n * LEN]);
    let mut part: DeviceBuffer<T> = buffer(all, [0; LEN]);
    let mut batch = all.batch();
    batch.all_reduce(&mut in_place, op).unwrap();
    batch.all_reduce_into(&input, &mut output, op).unwrap();
    batch.reduce(&mut at_root, op, root).unwrap();
    batch.reduce_scatter(&input, &mut part, op).unwrap();
    batch.reduce_scatter_in_place(&mut scattered, op).unwrap();
    all.launch(&batch).and_then(Work::wait).unwrap();
    let mine = || result(n * LEN).skip(rank * LEN).take(LEN);
    check(all, &input, own(n * LEN), "the input");
    let read = |buffer: &DeviceBuffer<T>| buffer.to_host(all.stream(), LONG).unwrap();
    check_about(all, &read(&in_place), result(n * LEN), op);
    check_about(all, &read(&output), result(n * LEN), op);
    check_about(all, &read(&part), mine(), op);
    check_about(all, &read(&scattered)[rank * LEN..][..LEN], mine(), op);
    if rank == root {
        check_about(all, &read(&at_root), result(n * LEN), op);
    } else {
        check(all, &at_root, own(n * LEN), "what is not the root's");
    }
}

fn moved<T: Small>(all: &HybridGroup) {
    let (rank, n, root) = (all.rank(), all.world_size(), all.world_size() / 2);
    // What rank `r` has in its block for rank `to`.
    let has = |r: usize, to: usize| (0..LEN).map(move |i| ((2 * r + 3 * to + i) % 9) as u8);
    let to_all = |r: usize| (0..n).flat_map(move |to| has(r, to));
    let of_all = || (0..n).flat_map(move |r| has(r, 0));
    let zeros = |len: usize| buffer::<T>(all, vec![0; len]);
    let (mine, exchanged): (DeviceBuffer<T>, DeviceBuffer<T>) =
        (buffer(all, has(rank, 0)), buffer(all, to_all(rank)));
    let mut sent: DeviceBuffer<T> = buffer(all, has(rank, 1));
    let own_block = |r| if r == rank { has(r, 0).collect() } else { vec![0; LEN] };
    let mut in_place: DeviceBuffer<T> = buffer(all, (0..n).flat_map(own_block));
    let [mut gathered, mut received, mut collected] = [(); 3].map(|()| zeros(n * LEN));
    let mut dealt = zeros(LEN);
    let mut batch = all.batch();
    batch.broadcast(&mut sent, root).unwrap();
    batch.all_gather(&mine, &mut gathered).unwrap();
    batch.all_gather_in_place(&mut in_place).unwrap();
    batch.all_to_all(&exchanged, &mut received).unwrap();
    batch.gather(&mine, (rank == root).then_some(&mut collected), root).unwrap();
    batch.scatter((rank == root).then_some(&exchanged), &mut dealt, root).unwrap();
    all.launch(&batch).and_then(Work::wait).unwrap();
    check(all, &mine, has(rank, 0), "the input");
    check(all, &sent, has(root, 1), "broadcast");
    check(all, &gathered, of_all(), "all_gather");
    check(all, &in_place, of_all(), "all_gather in place");
    check(all, &received, (0..n).flat_map(|r| has(r, rank)), "all_to_all");
    check(all, &dealt, has(root, rank), "scatter");
    if rank == root {
        check(all, &collected, of_all(), "gather");
    }
    round_the_ring::<T>(all);
}

/// To the next and from the one before, together: else each would wait for the other.
fn round_the_ring<T: Small>(all: &HybridGroup) {
    let (rank, n) = (all.rank(), all.world_size());
    let numbers = |r: usize| (0..LEN).map(move |i| ((r + i) % 9) as u8);
    let mine: DeviceBuffer<T> = buffer(all, numbers(rank));
    let mut received: DeviceBuffer<T> = buffer(all, [0; LEN]);
    let mut batch = all.batch();
    let sent = batch.send(&mine, (rank + 1) % n);
    if n == 1 && all.nccl().is_none() {
        let error = sent.unwrap_err();
        return assert_eq!(
            error.to_string(),
            "send: the destination is this rank, which goes over NCCL only"
        );
    }
    batch.recv(&mut received, (rank + n - 1) % n).unwrap();
    all.launch(&batch).and_then(Work::wait).unwrap();
    check(all, &received, numbers((rank + n - 1) % n), "a message");
}

/// Elements somewhere.
pub(crate) trait Kept: Sized {
    type Place: Place + ?Sized;
    fn new(all: &HybridGroup, elements: &[f32]) -> Self;
    fn place(&self) -> &Self::Place;
    fn place_mut(&mut self) -> &mut Self::Place;
    fn read(&self, all: &HybridGroup) -> Vec<f32>;
}

impl Kept for Vec<f32> {
    type Place = [f32];

    fn new(_: &HybridGroup, elements: &[f32]) -> Self {
        elements.to_vec()
    }

    fn place(&self) -> &[f32] {
        self
    }

    fn place_mut(&mut self) -> &mut [f32] {
        self
    }

    fn read(&self, _: &HybridGroup) -> Self {
        self.clone()
    }
}

impl Kept for DeviceBuffer<f32> {
    type Place = Self;

    fn new(all: &HybridGroup, elements: &[f32]) -> Self {
        Self::from_host(all.stream(), elements).unwrap()
    }

    fn place(&self) -> &Self {
        self
    }

    fn place_mut(&mut self) -> &mut Self {
        self
    }

    fn read(&self, all: &HybridGroup) -> Vec<f32> {
        self.to_host(all.stream(), LONG).unwrap()
    }
}

/// The same calls on memory of the host and of a device, which give the same.
pub(crate) fn one_by_one<K: Kept>(all: &HybridGroup) -> Vec<Vec<f32>> {
    let (rank, n, root) = (all.rank(), all.world_size(), all.world_size() - 1);
    let done = |work: phalanx_core::Result<Work>| work.and_then(Work::wait).unwrap();
    let mut results = Vec::new();
    let mut keep = |kept: &K| results.push(kept.read(all));

    let mut sum = K::new(all, &[rank as f32 + 1.0, 0.25]);
    done(all.all_reduce(sum.place_mut(), ReduceOp::Sum));
    keep(&sum);
    let mut largest = K::new(all, &[rank as f32]);
    done(all.reduce(largest.place_mut(), ReduceOp::Max, root));
    done(all.broadcast(largest.place_mut(), root));
    keep(&largest);
    let mine = K::new(all, &[rank as f32, -1.0]);
    let mut gathered = K::new(all, &vec![0.0; 2 * n]);
    done(all.all_gather(mine.place(), gathered.place_mut()));
    keep(&gathered);
    let mut part = K::new(all, &[0.0; 2]);
    done(all.reduce_scatter(gathered.place(), part.place_mut(), ReduceOp::Avg));
    keep(&part);
    let mut exchanged = K::new(all, &vec![0.0; 2 * n]);
    done(all.all_to_all(gathered.place(), exchanged.place_mut()));
    keep(&exchanged);
    let mut at_root = (rank == root).then(|| K::new(all, &vec![0.0; 2 * n]));
    done(all.gather(mine.place(), at_root.as_mut().map(K::place_mut), root));
    done(all.scatter(at_root.as_ref().map(K::place), part.place_mut(), root));
    keep(&part);
    if n > 1 {
        // One after the other round the ring, beginning with rank 0.
        let mut token = K::new(all, &[7.0]);
        if rank > 0 {
            done(all.recv(token.place_mut(), rank - 1));
        }
        done(all.send(token.place(), (rank + 1) % n));
        if rank == 0 {
            done(all.recv(token.place_mut(), n - 1));
        }
        keep(&token);
    }
    let mut none = K::new(all, &[]);
    done(all.all_reduce(none.place_mut(), ReduceOp::Sum));
    keep(&none);
    results
}

/// On a stream of the caller: behind its work, and before what comes later.
fn streams(all: &HybridGroup, keep_busy: impl Fn(&Stream)) {
    let compute = Stream::new(all.device()).unwrap();
    let on_compute = all.on_stream(&compute).unwrap();
    for round in 0..2 {
        keep_busy(&compute);
        let mut sum = DeviceBuffer::from_host(&compute, &[round as f32]).unwrap();
        let work = on_compute.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        // Another stream comes to it when it is over.
        assert_eq!(sum.to_host(all.stream(), LONG).unwrap(), [(round * all.world_size()) as f32]);
        work.wait().unwrap();
    }
    all.synchronize().unwrap();
    all.barrier().unwrap();
}
