//! Batch normalisation over ranks: forward and backward as one process with all samples finds.

use phalanx_testkit::World;
use phalanx_train::BatchMoments;

const FEATURES: usize = 3;
const INNER: usize = 2;

/// Numbers of so many samples, far from zero beside their deviation.
fn numbers(from: usize, samples: usize, by: f64) -> Vec<f64> {
    let of = |at: usize| 1000.0 + (at as f64 * by).sin();
    (from * FEATURES * INNER..(from + samples) * FEATURES * INNER).map(of).collect()
}

fn close(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9)
}

#[test]
fn uneven_batches_are_normalised_as_one() {
    for batches in [[2, 3, 4], [5, 1, 3], [4, 0, 5]] {
        for world in [World::thread(), World::shm(), World::tcp()] {
            world.run(3, move |group| {
                let (samples, before) = (batches[group.rank()], batches[..group.rank()].iter().sum());
                let mine = |by: f64| numbers(before, samples, by);
                let (x, grads) = (mine(0.7), mine(1.9));
                let moments = BatchMoments::of(&x, FEATURES, INNER, true).unwrap().over(&group).unwrap();

                let whole = numbers(0, 9, 0.7);
                let alone = BatchMoments::of(&whole, FEATURES, INNER, true).unwrap();
                assert_eq!(moments.count(), 18.0);
                assert!(close(moments.mean(), alone.mean()));
                assert!(close(&moments.unbiased_variance(), &alone.unbiased_variance()));
                let all = group.all_gather_object(&moments.mean().to_vec()).unwrap();
                assert!(all.iter().all(|mean| *mean == all[0]), "the same bits");

                let (standardise, alone) = (moments.standardise(1e-5), alone.standardise(1e-5));
                let [y, whole_y] =
                    [standardise.forward(&x, INNER).unwrap(), alone.forward(&whole, INNER).unwrap()];
                let here = before * FEATURES * INNER..(before + samples) * FEATURES * INNER;
                assert!(close(&y, &whole_y[here.clone()]));
                if samples == 0 {
                    return; // it has no backward pass
                }
                let found = standardise.backward(&grads, &y, INNER).unwrap();
                let expected = alone.backward(&numbers(0, 9, 1.9), &whole_y, INNER).unwrap();
                assert!(close(&found, &expected[here]));
            });
        }
    }
}

#[test]
fn integers_are_refused() {
    let told = BatchMoments::of(&[1i32, 2], 1, 1, true).unwrap_err().to_string();
    assert!(told.contains("batch normalisation of i32; it needs floats"), "{told}");
}
