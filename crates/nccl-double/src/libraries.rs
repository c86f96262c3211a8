//! Of cuBLAS and cuRAND what candle calls: products of matrices, and numbers at random.

use crate::cuda::RawStream;
use crate::kernels::Elements;
use crate::memory::Address;
use crate::stream;
use half::{bf16, f16};
use std::ffi::{c_int, c_longlong, c_ulonglong, c_void};

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 15;

/// The state of either library: on which stream it works.
struct Handle {
    stream: RawStream,
    random: u64,
}

fn new_handle(handle: *mut *mut c_void) -> c_int {
    let new = Box::new(Handle { stream: std::ptr::null_mut(), random: 1 });
    // SAFETY: the caller's pointer.
    unsafe { *handle = Box::into_raw(new).cast() };
    SUCCESS
}

unsafe fn set_stream(handle: *mut c_void, stream: RawStream) -> c_int {
    // SAFETY: the caller's handle, which nobody else uses meanwhile.
    unsafe { (*handle.cast::<Handle>()).stream = stream };
    SUCCESS
}

unsafe fn destroy(handle: *mut c_void) -> c_int {
    // SAFETY: the caller gives it up.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut c_void) -> c_int {
    new_handle(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe { destroy(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: RawStream) -> c_int {
    // SAFETY: as the caller says.
    unsafe { set_stream(handle, stream) }
}

/// One operand: columns behind each other, or rows if it is transposed.
#[derive(Clone, Copy)]
struct Matrix {
    elements: Address,
    is_transposed: bool,
    leading: usize,
    /// From one of a batch to the next.
    stride: usize,
}

impl Matrix {
    fn index(&self, of_batch: usize, row: usize, column: usize) -> usize {
        let (major, minor) = if self.is_transposed { (row, column) } else { (column, row) };
        of_batch * self.stride + major * self.leading + minor
    }
}

/// The numbers of a `cudaDataType_t` that candle multiplies.
#[derive(Clone, Copy)]
enum Type {
    F32,
    F64,
    F16,
    Bf16,
}

impl Type {
    fn from_code(code: c_int) -> Option<Self> {
        match code {
            0 => Some(Self::F32),
            1 => Some(Self::F64),
            2 => Some(Self::F16),
            14 => Some(Self::Bf16),
            _ => None,
        }
    }

    fn read(self, first: Address, i: usize) -> f64 {
        match self {
            Self::F32 => Elements::<f32>::new(first).at(i).into(),
            Self::F64 => Elements::<f64>::new(first).at(i),
            Self::F16 => Elements::<f16>::new(first).at(i).into(),
            Self::Bf16 => Elements::<bf16>::new(first).at(i).into(),
        }
    }

    fn write(self, first: Address, i: usize, x: f64) {
        match self {
            Self::F32 => Elements::new(first).set(i, x as f32),
            Self::F64 => Elements::new(first).set(i, x),
            Self::F16 => Elements::new(first).set(i, f16::from_f64(x)),
            Self::Bf16 => Elements::new(first).set(i, bf16::from_f64(x)),
        }
    }
}

/// The product of each pair of matrices of a batch. candle scales nothing and adds nothing.
unsafe fn multiply(
    handle: *mut c_void,
    dtype: Type,
    [m, n, k, batch]: [c_int; 4],
    [a, b, c]: [Matrix; 3],
) -> c_int {
    let [m, n, k, batch] = [m, n, k, batch].map(|len| len as usize);
    // SAFETY: the caller's handle.
    let raw = unsafe { (*handle.cast::<Handle>()).stream };
    // SAFETY: the stream that the caller has set.
    unsafe { stream::of(raw) }.push(move || {
        for of_batch in 0..batch {
            for column in 0..n {
                for row in 0..m {
                    let mut sum = 0.0;
                    for i in 0..k {
                        let left = dtype.read(a.elements, a.index(of_batch, row, i));
                        sum += left * dtype.read(b.elements, b.index(of_batch, i, column));
                    }
                    dtype.write(c.elements, c.index(of_batch, row, column), sum);
                }
            }
        }
    });
    SUCCESS
}

fn matrix(elements: *const c_void, transposed: c_int, leading: c_int, stride: c_longlong) -> Matrix {
    Matrix {
        elements: Address(elements.cast_mut().cast()),
        is_transposed: transposed != 0,
        leading: leading as usize,
        stride: stride as usize,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: *mut c_void,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    _alpha: *const c_void,
    a: *const c_void,
    dtype: c_int,
    lda: c_int,
    stride_a: c_longlong,
    b: *const c_void,
    _dtype_b: c_int,
    ldb: c_int,
    stride_b: c_longlong,
    _beta: *const c_void,
    c: *mut c_void,
    _dtype_c: c_int,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
    _compute: c_int,
    _algorithm: c_int,
) -> c_int {
    let Some(dtype) = Type::from_code(dtype) else { return NOT_SUPPORTED };
    let operands = [
        matrix(a, transpose_a, lda, stride_a),
        matrix(b, transpose_b, ldb, stride_b),
        matrix(c, 0, ldc, stride_c),
    ];
    // SAFETY: as the caller says.
    unsafe { multiply(handle, dtype, [m, n, k, batch], operands) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasDgemmStridedBatched(
    handle: *mut c_void,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    _alpha: *const f64,
    a: *const c_void,
    lda: c_int,
    stride_a: c_longlong,
    b: *const c_void,
    ldb: c_int,
    stride_b: c_longlong,
    _beta: *const f64,
    c: *mut c_void,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
) -> c_int {
    let operands = [
        matrix(a, transpose_a, lda, stride_a),
        matrix(b, transpose_b, ldb, stride_b),
        matrix(c, 0, ldc, stride_c),
    ];
    // SAFETY: as the caller says.
    unsafe { multiply(handle, Type::F64, [m, n, k, batch], operands) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandCreateGenerator(generator: *mut *mut c_void, _kind: c_int) -> c_int {
    new_handle(generator)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandDestroyGenerator(generator: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe { destroy(generator) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetStream(generator: *mut c_void, stream: RawStream) -> c_int {
    // SAFETY: as the caller says.
    unsafe { set_stream(generator, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetPseudoRandomGeneratorSeed(
    generator: *mut c_void,
    seed: c_ulonglong,
) -> c_int {
    // SAFETY: the caller's generator, which nobody else uses meanwhile.
    unsafe { (*generator.cast::<Handle>()).random = seed };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandSetGeneratorOffset(_generator: *mut c_void, _offset: c_ulonglong) -> c_int {
    SUCCESS
}

/// Fills memory with `next`, which may draw as many numbers in (0, 1] as it needs.
unsafe fn fill(
    generator: *mut c_void,
    to: *mut c_void,
    dtype: Type,
    len: usize,
    next: impl Fn(&mut dyn FnMut() -> f64) -> f64,
) -> c_int {
    // SAFETY: the caller's generator, which nobody else uses meanwhile.
    let handle = unsafe { &mut *generator.cast::<Handle>() };
    let to = Address(to.cast());
    let mut draw = || {
        handle.random = handle.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((handle.random >> 11) + 1) as f64 / (1u64 << 53) as f64
    };
    let numbers: Vec<f64> = (0..len).map(|_| next(&mut draw)).collect();
    // SAFETY: the stream that the caller has set.
    unsafe { stream::of(handle.stream) }.push(move || {
        let to = to;
        numbers.into_iter().enumerate().for_each(|(i, x)| dtype.write(to, i, x));
    });
    SUCCESS
}

/// Of mean 0 and deviation 1 (Box and Muller 1958).
fn normal(draw: &mut dyn FnMut() -> f64) -> f64 {
    (-2.0 * draw().ln()).sqrt() * (std::f64::consts::TAU * draw()).cos()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateUniform(generator: *mut c_void, to: *mut c_void, len: usize) -> c_int {
    // SAFETY: as the caller says.
    unsafe { fill(generator, to, Type::F32, len, |draw| draw()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateUniformDouble(
    generator: *mut c_void,
    to: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { fill(generator, to, Type::F64, len, |draw| draw()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateNormal(
    generator: *mut c_void,
    to: *mut c_void,
    len: usize,
    mean: f32,
    deviation: f32,
) -> c_int {
    let next = |draw: &mut dyn FnMut() -> f64| f64::from(mean) + f64::from(deviation) * normal(draw);
    // SAFETY: as the caller says.
    unsafe { fill(generator, to, Type::F32, len, next) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn curandGenerateNormalDouble(
    generator: *mut c_void,
    to: *mut c_void,
    len: usize,
    mean: f64,
    deviation: f64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { fill(generator, to, Type::F64, len, |draw| mean + deviation * normal(draw)) }
}
