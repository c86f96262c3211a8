//! Kernels beside a plain copy that moves as many bytes: two reads and a write for `combine`, more for wider shapes.
//!
//! Every line's throughput counts all bytes moved, so that lines of one size may be compared directly; `copy` is the bar.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{Instance, Kernel};
use std::hint::black_box;
use std::time::Duration;

/// Fits the second-level cache of today's CPUs with its partners; and doesn't fit even a share of the third.
const SIZES: [(&str, usize); 2] = [("256 KiB", 256 << 10), ("16 MiB", 16 << 20)];

/// A small value of any type, so that nothing overflows or turns subnormal however often it is added to.
const FILL: u8 = 0x3a;

fn group<'a>(c: &'a mut Criterion, name: String, bytes: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes as u64));
    group
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .sample_size(20);
    group
}

fn copy(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize) {
    // A copied byte is one read and one write.
    let (from, mut into) = (vec![FILL; bytes / 2], vec![0; bytes / 2]);
    group.bench_function("copy", |b| b.iter(|| black_box(&mut into).copy_from_slice(black_box(&from))));
}

fn combine(c: &mut Criterion) {
    for (name, size) in SIZES {
        let mut group = group(c, format!("combine/{name}"), 3 * size);
        copy(&mut group, 3 * size);
        let (mut into, from) = (vec![FILL; size], vec![FILL; size]);
        let instances = [Instance::Baseline, Instance::Avx2, Instance::best()];
        for (i, instance) in instances.into_iter().enumerate() {
            if !instance.is_available() || instances[..i].contains(&instance) {
                continue;
            }
            for dtype in DType::ALL {
                let kernel = Kernel::with(instance, ReduceOp::Sum, dtype).expect("everything can be summed");
                group.bench_function(format!("{instance} sum {dtype}"), |b| {
                    b.iter(|| kernel.combine(black_box(&mut into), black_box(&from)));
                });
                // Overwritten, or sums of many rounds would be infinite.
                into.fill(FILL);
            }
        }
        for (op, dtype) in [
            (ReduceOp::Max, DType::F32),
            (ReduceOp::Min, DType::F16),
            (ReduceOp::Max, DType::BF16),
            (ReduceOp::Prod, DType::I8),
            (ReduceOp::BitXor, DType::U64),
        ] {
            let kernel = Kernel::new(op, dtype).expect("supported");
            group.bench_function(format!("{} {op} {dtype}", kernel.instance()), |b| {
                b.iter(|| kernel.combine(black_box(&mut into), black_box(&from)));
            });
        }
    }
}

fn reduce(c: &mut Criterion) {
    for (name, size) in SIZES {
        for (sources, destinations) in [(2, 2), (4, 1), (4, 4), (8, 1)] {
            let bytes = (sources + destinations) * size;
            let mut group = group(c, format!("reduce {sources} to {destinations}/{name}"), bytes);
            copy(&mut group, bytes);
            let mut buffers = vec![vec![FILL; size]; sources];
            let into: Vec<*mut u8> = buffers.iter_mut().map(Vec::as_mut_ptr).collect();
            let from: Vec<*const u8> = into.iter().map(|p| p.cast_const()).collect();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let kernel = Kernel::new(ReduceOp::Avg, dtype).expect("floats can be averaged");
                group.bench_function(format!("{} avg {dtype}", kernel.instance()), |b| {
                    b.iter(|| {
                        // SAFETY: every pointer is good for `size` bytes of its own buffer; destinations are sources.
                        unsafe {
                            kernel.reduce(black_box(&into[..destinations]), black_box(&from), size, sources);
                        }
                    });
                });
            }
        }
    }
}

/// What a call costs when there is almost nothing to do.
fn tiny(c: &mut Criterion) {
    for bytes in [4, 64, 1024] {
        let mut group = group(c, format!("tiny/{bytes} B"), 3 * bytes);
        let (mut into, from) = (vec![FILL; bytes], vec![FILL; bytes]);
        for dtype in [DType::F32, DType::BF16] {
            group.bench_function(format!("new and combine {dtype}"), |b| {
                b.iter(|| {
                    let kernel =
                        Kernel::new(black_box(ReduceOp::Sum), black_box(dtype)).expect("can be summed");
                    kernel.combine(black_box(&mut into), black_box(&from));
                });
            });
        }
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    combine(&mut criterion);
    reduce(&mut criterion);
    tiny(&mut criterion);
    criterion.final_summary();
}
