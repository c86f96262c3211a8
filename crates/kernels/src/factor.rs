//! Multiplication by one factor: what contributions to a pre-multiplied sum go through before they are added.

use crate::{HalfSum, Kernel};
use phalanx_core::{DType, ReduceOp};

/// Bytes of the factor, again and again, by which a buffer is multiplied piece by piece: they stay in the first cache.
const REPEATED: usize = 2 << 10;

/// Multiplies numbers of one type by one factor. Products of half types are `f32`, all others of the type itself.
///
/// # Determinism
/// The factor is rounded to the type of the products, and so is each product, whatever state the thread's floats are in. A product that is NaN is the
/// one NaN.
///
/// # Examples
/// ```
/// use phalanx_core::DType;
/// use phalanx_kernels::Factor;
///
/// let third = Factor::new(DType::F32, 1.0 / 3.0).expect("a type of floats");
/// let mut product = [0; 4];
/// third.multiply(&3f32.to_ne_bytes(), &mut product);
/// assert_eq!(f32::from_ne_bytes(product), 1.0);
/// ```
#[derive(Debug, Clone)]
pub struct Factor {
    product: Product,
    repeated: [u8; REPEATED],
}

#[derive(Debug, Clone, Copy)]
enum Product {
    Same(Kernel),
    Wide(HalfSum),
}

impl Factor {
    /// A factor for numbers of type `dtype`; `None` for integers.
    pub fn new(dtype: DType, factor: f64) -> Option<Self> {
        let (op, mut repeated) = (ReduceOp::Prod, [0; REPEATED]);
        if !dtype.is_float() {
            return None;
        }
        match dtype {
            DType::F64 => fill(&mut repeated, &factor.to_ne_bytes()),
            _ => fill(&mut repeated, &(factor as f32).to_ne_bytes()),
        }
        let product = match HalfSum::new(op, dtype) {
            Some(halves) => Product::Wide(halves),
            None => Product::Same(Kernel::new(op, dtype)?),
        };
        Some(Self { product, repeated })
    }

    /// Whether products are `f32`, and so twice as long as the numbers.
    pub fn widens(&self) -> bool {
        matches!(self.product, Product::Wide(_))
    }

    /// Writes the products of `numbers`.
    ///
    /// # Shape
    /// `numbers`: whole elements. `products`: as many bytes, or twice as many where it [widens](Self::widens). No address needs an alignment.
    ///
    /// # Cost
    /// A pass over both.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn multiply(&self, numbers: &[u8], products: &mut [u8]) {
        match self.product {
            Product::Same(kernel) => {
                assert_eq!(numbers.len(), products.len(), "a product for each number");
                let pieces = numbers.chunks(REPEATED).zip(products.chunks_mut(REPEATED));
                pieces.for_each(|(numbers, products)| {
                    let factors = &self.repeated[..numbers.len()];
                    kernel.fold(products, &[Some(numbers), Some(factors)], 1);
                });
            }
            Product::Wide(halves) => {
                assert_eq!(2 * numbers.len(), products.len(), "a product of 4 bytes for each number of 2");
                let pieces = numbers.chunks(REPEATED / 2).zip(products.chunks_mut(REPEATED));
                pieces.for_each(|(numbers, products)| {
                    products.copy_from_slice(&self.repeated[..products.len()]);
                    halves.add(products, numbers);
                });
            }
        }
    }

    /// As [`multiply`](Self::multiply), in place.
    ///
    /// # Panics
    /// If these are no whole elements, or the products would be longer.
    pub fn multiply_in_place(&self, numbers: &mut [u8]) {
        let Product::Same(kernel) = self.product else { panic!("products of half types are longer") };
        for numbers in numbers.chunks_mut(REPEATED) {
            kernel.combine(numbers, &self.repeated[..numbers.len()]);
        }
    }
}

fn fill(repeated: &mut [u8], factor: &[u8]) {
    repeated.chunks_exact_mut(factor.len()).for_each(|place| place.copy_from_slice(factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Longer than what is multiplied at a time, and no whole number of that.
    const LEN: usize = 3 * REPEATED / 2 + 5;

    fn number(i: usize) -> f32 {
        (i as f32 - 1000.5) / 7.0
    }

    #[test]
    fn each_product_is_rounded_once() {
        for factor in [0.1, -3.0, 1.0 / 3.0, 0.0, 1e-30, f64::INFINITY] {
            let single: Vec<f32> = (0..LEN).map(number).collect();
            let by = Factor::new(DType::F32, factor).unwrap();
            let (mut products, mut in_place) = (vec![0f32; LEN], single.clone());
            by.multiply(bytemuck::cast_slice(&single), bytemuck::cast_slice_mut(&mut products));
            by.multiply_in_place(bytemuck::cast_slice_mut(&mut in_place));
            let expected: Vec<f32> = single.iter().map(|x| x * factor as f32).collect();
            assert_eq!(bits(&products), bits(&expected), "f32 by {factor}");
            assert_eq!(bits(&in_place), bits(&expected), "f32 by {factor}, in place");

            let double: Vec<f64> = (0..LEN).map(|i| f64::from(number(i))).collect();
            let by = Factor::new(DType::F64, factor).unwrap();
            let mut products = double.clone();
            by.multiply_in_place(bytemuck::cast_slice_mut(&mut products));
            let expected: Vec<f64> = double.iter().map(|x| x * factor).collect();
            let equal = |(found, expected): (&f64, &f64)| found.to_bits() == expected.to_bits();
            assert!(products.iter().zip(&expected).all(equal), "f64 by {factor}");
        }
    }

    #[test]
    fn products_of_half_types_are_not_rounded_to_them() {
        let factor = 1.0 / 3.0;
        let halves: Vec<bf16> = (0..LEN).map(|i| bf16::from_f32(number(i))).collect();
        let mut products = vec![0f32; LEN];
        let by = Factor::new(DType::BF16, factor).unwrap();
        assert!(by.widens());
        by.multiply(bytemuck::cast_slice(&halves), bytemuck::cast_slice_mut(&mut products));
        let expected: Vec<f32> = halves.iter().map(|x| x.to_f32() * factor as f32).collect();
        assert_eq!(bits(&products), bits(&expected));

        let largest = [f16::MAX; 3];
        let mut products = [0f32; 3];
        let by = Factor::new(DType::F16, 4.0).unwrap();
        by.multiply(bytemuck::cast_slice(&largest), bytemuck::cast_slice_mut(&mut products));
        assert_eq!(products, [4.0 * 65504.0; 3]);
    }

    #[test]
    fn integers_have_no_factor_and_a_nan_has_one_form() {
        assert!(DType::ALL.iter().all(|&dtype| Factor::new(dtype, 2.0).is_some() == dtype.is_float()));
        let mut numbers = [f32::from_bits(0xFFC0_1234), 1.0];
        Factor::new(DType::F32, 2.0).unwrap().multiply_in_place(bytemuck::cast_slice_mut(&mut numbers));
        assert_eq!(bits(&numbers), [f32::NAN.to_bits(), 2f32.to_bits()]);
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }
}
