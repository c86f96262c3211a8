//! Clipped gradients have the norm that was asked for, at most: after rounding, and whatever their sizes and types.

use half::{bf16, f16};
use phalanx_train::{Array, Error, Tensor, clip_grad_norm, sum_of_squares};
use proptest::prelude::*;

/// Gradients of one type, and by how much a number of it is rounded at most, of itself. Numbers too large for a type become its largest.
fn array(kind: usize, numbers: &[f64]) -> (Array, f64) {
    let limit = [f64::from(f32::MAX), 1e100, f64::from(f16::MAX), f64::from(bf16::MAX)][kind];
    let numbers = numbers.iter().map(|x| x.clamp(-limit, limit));
    match kind {
        0 => (numbers.map(|x| x as f32).collect::<Vec<_>>().into(), f64::from(f32::EPSILON)),
        1 => (numbers.collect::<Vec<_>>().into(), f64::EPSILON),
        2 => (numbers.map(f16::from_f64).collect::<Vec<_>>().into(), f64::from(f16::EPSILON)),
        _ => (numbers.map(bf16::from_f64).collect::<Vec<_>>().into(), f64::from(bf16::EPSILON)),
    }
}

fn numbers(array: &Array) -> Vec<f64> {
    let wide = array.clone().to_dtype(phalanx::DType::F64).unwrap();
    wide.try_into().unwrap()
}

/// As it is, of numbers of any size: the largest is one in between.
fn norm(numbers: &[f64]) -> f64 {
    let largest = numbers.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    if largest == 0.0 {
        0.0
    } else {
        largest * numbers.iter().map(|x| (x / largest).powi(2)).sum::<f64>().sqrt()
    }
}

/// Numbers about as large as a power of ten, some of them much smaller.
fn sizes() -> impl Strategy<Value = Vec<f64>> {
    let number = (-1.0..1.0f64, prop_oneof![3 => Just(0.0), 1 => -12.0..0.0f64]);
    (-40.0..38.0f64, prop::collection::vec(number, 1..200)).prop_map(|(size, numbers)| {
        numbers.into_iter().map(|(x, less)| x * 10f64.powf(size + less)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_norm_is_at_most_what_was_asked_for_and_not_much_less(
        parts in prop::collection::vec((0..4usize, sizes()), 1..5),
        share in prop_oneof![1 => -8.0..1.0f64, 1 => -0.01..0.01f64, 1 => Just(0.0)],
    ) {
        let (mut grads, digits): (Vec<_>, Vec<_>) =
            parts.iter().map(|(kind, numbers)| array(*kind, numbers)).map(|(array, digit)| (Some(array), digit)).unzip();
        let all = |grads: &[Option<Array>]| grads.iter().flatten().flat_map(numbers).collect::<Vec<_>>();
        let before = all(&grads);
        let max_norm = norm(&before) * 10f64.powf(share);

        let told = clip_grad_norm(&mut grads, max_norm).unwrap();
        prop_assert!((told - norm(&before)).abs() <= 1e-12 * told, "{told}, not {}", norm(&before));
        let after = all(&grads);
        // Above by what this test's own arithmetic in f64 can be wrong by, if at all.
        prop_assert!(norm(&after) <= max_norm * (1.0 + 1e-12), "{} is more than {max_norm}", norm(&after));
        let scaled = told > max_norm;
        let measured = sum_of_squares(&grads).unwrap().sqrt();
        prop_assert!(!scaled || measured <= max_norm, "{measured} is more than {max_norm}");
        if !scaled {
            prop_assert_eq!(&before, &after);
        }

        // Each number has kept its direction and is what it should be but for one place.
        let factor = if scaled { max_norm / told } else { 1.0 };
        let kinds = parts.iter().zip(&digits).flat_map(|((kind, numbers), digit)| numbers.iter().map(move |_| (*kind, *digit)));
        for ((before, after), (kind, digit)) in before.iter().zip(&after).zip(kinds) {
            let least = [f64::from(f32::from_bits(1)), 0.0, f64::from(f16::from_bits(1)), f64::from(bf16::from_bits(1))][kind];
            let exact = before * factor;
            prop_assert!((exact - after).abs() <= exact.abs() * (digit + 2e-9) + least, "{exact} became {after}");
            prop_assert!(after.abs() <= exact.abs() && after * exact >= 0.0, "{exact} became {after}");
        }

        clip_grad_norm(&mut grads, max_norm).unwrap();
        prop_assert_eq!(all(&grads), after, "clipped once more");
    }
}

#[test]
fn norms_that_are_none_are_refused_and_nothing_changes() {
    for size in [0.5f32, 100.0, f32::INFINITY, f32::NAN] {
        for bad in [f64::NAN, -1.0, -f64::MIN_POSITIVE, f64::NEG_INFINITY] {
            let mut grads = [Some(Array::from(vec![size, 3.0])), None];
            let error = clip_grad_norm(&mut grads, bad).unwrap_err();
            assert!(matches!(error, Error::Group(phalanx::Error::Config { .. })), "{error}");
            assert!(error.to_string().contains(&format!("max_norm is {bad}, expected")), "{error}");
            let [Some(grad), None] = &grads else { panic!("{grads:?}") };
            assert_eq!(numbers(grad)[1], 3.0);
        }
    }
}

#[test]
fn to_zero_and_to_infinity_are_norms() {
    let grads = || [Some(Array::from(vec![3f32, -4.0]))];
    let mut found = grads();
    assert_eq!(clip_grad_norm(&mut found, f64::INFINITY).unwrap(), 5.0);
    assert_eq!(found, grads());
    assert_eq!(clip_grad_norm(&mut found, 0.0).unwrap(), 5.0);
    assert_eq!(sum_of_squares(&found).unwrap(), 0.0);
}
