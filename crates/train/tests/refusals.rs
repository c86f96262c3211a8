//! What does not fit is refused by name, on the ranks that need to know, and nobody waits in vain.

mod common;

use common::{ALL, array, everywhere, gradient, gradients, parameters, reducer, sums};
use phalanx::{DType, ProcessGroup, ReduceOp};
use phalanx_train::{Array, Error, Parameter, Reducer, Share, Tensor};
use phalanx_train::{sync_buffers, sync_model, verify_parameters};

fn is_usable(group: &ProcessGroup) -> bool {
    let mut ones = [1u32];
    group.all_reduce(&mut ones, ReduceOp::Sum).is_ok() && ones == [group.world_size() as u32]
}

#[track_caller]
fn assert_misuse<R: std::fmt::Debug>(outcome: Result<R, Error>, says: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Group(phalanx::Error::Misuse { .. })), "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn every_tensor_becomes_that_of_the_root() {
    everywhere(3, |group, _| {
        let own = 1.0 + group.rank() as f64;
        let mut floats: Vec<Array> = (0..ALL).map(|index| array(index, |i| own * i as f64)).collect();
        let mut steps = Array::from(vec![group.rank() as u64; 2]);
        let mut named: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].into_iter().zip(&mut floats).collect();
        named.push(("steps", &mut steps));
        named.rotate_left(group.rank()); // in whatever order a rank has them
        sync_model(named, &group, 2).unwrap();
        assert_eq!(floats, (0..ALL).map(|index| array(index, |i| 3.0 * i as f64)).collect::<Vec<_>>());
        assert_eq!(steps, Array::from(vec![2u64; 2]));

        let mut means = [Array::from(vec![own]), Array::from(vec![own as f32; 3])];
        sync_buffers(&mut means, &group, 1).unwrap();
        assert_eq!(means, [Array::from(vec![2f64]), Array::from(vec![2f32; 3])]);
    });
}

#[test]
fn a_model_that_differs_is_named_on_all_ranks() {
    everywhere(3, |group, _| {
        let mut weight = Array::from(vec![1f32; 6]).shaped(&[2, 3]).unwrap();
        let mut bias = if group.rank() < 2 { Array::from(vec![1f32]) } else { Array::from(vec![2f64]) };
        let error = sync_model([("weight", &mut weight), ("bias", &mut bias)], &group, 0).unwrap_err();
        let expected = "parameter `bias` differs between ranks: rank 0 has f32 [1], rank 2 has f64 [1]";
        assert_eq!(error.to_string(), expected);
        let error = sync_model([(["x", "y", "x"][group.rank()], &mut weight)], &group, 0).unwrap_err();
        let Error::ModelMismatch { name, rank, .. } = &error else { panic!("{error:?}") };
        assert_eq!((&name[..], *rank), ("x", 1), "{error}");
        assert!(is_usable(&group));
    });
}

#[test]
fn one_bit_on_one_rank_is_found() {
    everywhere(3, |group, _| {
        let (first, mut second) = (array(0, |i| i as f64), array(5, |_| 7.0));
        let verify = |second: &Array| verify_parameters([("b", second), ("a", &first)], &group);
        verify(&second).unwrap();
        if group.rank() == 1 {
            let numbers = second.as_mut_slice::<f32>().unwrap();
            numbers[39] = f32::from_bits(numbers[39].to_bits() ^ 1);
        }
        let error = verify(&second).unwrap_err();
        let Error::ParameterMismatch { name, versions } = &error else { panic!("{error:?}") };
        assert_eq!(name, "b");
        assert_eq!(versions.iter().map(|v| &v.ranks[..]).collect::<Vec<_>>(), [&[0, 2][..], &[1]]);
        assert!(error.to_string().ends_with(" on rank 1"), "{error}");
        assert!(is_usable(&group));
    });
}

#[test]
fn parameters_have_an_order_that_no_rank_can_mistake() {
    everywhere(1, |group, _| {
        let of = |names: [&str; 2]| {
            let parameters = names.map(|name| Parameter::of(name, &Array::from(vec![0f32])));
            Reducer::<Array>::new(parameters, &group, 0, false)
        };
        of(["a", "b"]).unwrap();
        assert_misuse(of(["b", "a"]), "`b` comes before `a`");
        assert_misuse(of(["a", "a"]), "each once");
        let counter = [Parameter::of("steps", &Array::from(vec![0u32]))];
        assert_misuse(Reducer::<Array>::new(counter, &group, 0, false), "`steps` cannot have gradients");
    });
}

#[test]
fn gradients_and_shares_that_do_not_fit_are_refused_before_anything_is_sent() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        let with = |index: usize, grad: Array| {
            let mut mine = vec![None; ALL];
            mine[index] = Some(grad);
            mine
        };
        let longer = with(4, Array::from(vec![1f32; 2]));
        assert_misuse(
            reducer.reduce(longer, Share::EQUAL),
            "the gradient of `e` is F32 [2], but the variable is F32 [1]",
        );
        let wider = with(4, Array::from(vec![1f64]));
        assert_misuse(reducer.reduce(wider, Share::EQUAL), "the gradient of `e` is F64 [1]");
        assert_misuse(reducer.reduce(vec![None], Share::EQUAL), "got a list of 1, expected 7 gradients");
        assert_misuse(reducer.reduce(vec![None; ALL], Share::new(3, 2)), "more than the global batch");
        assert_misuse(
            reducer.keep(ALL, Array::from(vec![1f32])),
            "parameter 7 is out of range: the parameters are 0..7",
        );
        assert_misuse(reducer.ready(0, gradient(0, 0, 0, 1.0)), "no step has begun");
        assert_misuse(reducer.finish(), "no step has begun");
        let found = reducer.reduce(gradients(group.rank(), 0, 2.0), Share::EQUAL).unwrap();
        assert_eq!(found, sums(2, 0), "the group works on");
    });
}

#[test]
fn a_step_that_goes_wrong_ends_on_all_ranks() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 0, mode);
        // The other rank may hear of it at any moment.
        let mut step = || {
            reducer.begin(Share::EQUAL, 0..ALL - 1)?;
            reducer.ready(3, gradient(3, group.rank(), 0, 2.0))?;
            if group.rank() == 1 {
                reducer.ready(3, gradient(3, 1, 0, 2.0))?; // a second time what was sent
            }
            reducer.finish()
        };
        let error = step().unwrap_err();
        if group.rank() == 1 {
            assert!(error.to_string().contains("`d` has a second gradient in this step"), "{error}");
            if !mode {
                // Nothing was sent, and the other rank waits: the program has to say so.
                group.abort("it gives up");
            }
        } else {
            // `Aborted`, or `Poisoned` by that, if it came between two operations.
            let reason = if mode { "its step failed: " } else { "it gives up" };
            assert!(error.to_string().contains("rank 1 "), "{error}");
            assert!(error.to_string().contains(&format!("aborted the group: {reason}")), "{error}");
        }
    });
}

#[test]
fn a_gradient_that_nobody_was_told_of_is_refused() {
    everywhere(1, |group, _| {
        let mut reducer = reducer(&group, 0, true);
        assert_misuse(
            reducer.begin(Share::EQUAL, [ALL]),
            "parameter 7 is out of range: the parameters are 0..7",
        );
        reducer.begin(Share::EQUAL, [0]).unwrap();
        assert_misuse(reducer.ready(4, gradient(4, 0, 0, 1.0)), "`e` has a gradient, but was not announced");
    });
}

#[test]
fn a_failed_backward_pass_is_told_to_all_that_wait() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 0, mode);
        // The other rank may hear of it at any moment.
        let mut step = |fails: bool| {
            reducer.begin(Share::EQUAL, 0..ALL)?;
            reducer.ready(6, gradient(6, group.rank(), 0, 2.0))?;
            if fails {
                reducer.give_up("its backward pass failed");
                return Ok(Vec::new());
            }
            reducer.finish()
        };
        if !mode {
            // Nothing has been sent, so nobody waits, and the next step is a step.
            step(true).unwrap();
            let found = reducer.reduce(gradients(group.rank(), 1, 2.0), Share::EQUAL).unwrap();
            assert_eq!(found, sums(2, 1));
        } else if group.rank() == 1 {
            step(true).unwrap();
        } else {
            let error = step(false).unwrap_err().to_string();
            assert!(error.contains("rank 1") && error.contains("its backward pass failed"), "{error}");
        }
    });
}

#[test]
fn a_failed_step_leaves_nothing_of_what_was_kept_for_it() {
    type Failure = fn(&mut Reducer<Array>, usize);
    // None of them sends anything: the group works on.
    let failures: [Failure; 4] = [
        |reducer, rank| {
            reducer.begin(Share::EQUAL, 0..ALL).unwrap();
            reducer.ready(2, gradient(2, rank, 11, 2.0)).unwrap();
            reducer.give_up("its backward pass failed");
        },
        |reducer, rank| {
            reducer.begin(Share::EQUAL, 0..ALL).unwrap();
            reducer.ready(2, gradient(2, rank, 11, 2.0)).unwrap();
            let again = reducer.ready(2, gradient(2, rank, 11, 2.0));
            assert_misuse(again, "`c` has a second gradient in this step");
        },
        |reducer, rank| {
            reducer.begin(Share::EQUAL, 0..ALL).unwrap();
            reducer.ready(2, gradient(2, rank, 11, 2.0)).unwrap(); // and then nothing more
        },
        |reducer, _| {
            let longer = Array::from(vec![1f32; 2]);
            assert_misuse(reducer.keep(4, longer), "the gradient of `e` is F32 [2]");
        },
    ];
    everywhere(2, move |group, _| {
        let mut reducer = reducer(&group, 100, false);
        for fail in failures {
            (0..4).for_each(|index| reducer.keep(index, gradient(index, group.rank(), 10, 2.0)).unwrap());
            fail(&mut reducer, group.rank());
            let found = reducer.reduce(gradients(group.rank(), 12, 2.0), Share::EQUAL).unwrap();
            assert_eq!(found, sums(2, 12));
        }
    });
}

/// An array of a library that may find nothing to convert it with.
struct Brittle(Array, bool);

impl Tensor for Brittle {
    type Device = ();

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn dims(&self) -> &[usize] {
        self.0.dims()
    }

    fn device(&self) {}

    fn zeros(dtype: DType, dims: &[usize], device: &()) -> phalanx_train::Result<Self> {
        Ok(Self(Array::zeros(dtype, dims, device)?, false))
    }

    fn to_dtype(self, dtype: DType) -> phalanx_train::Result<Self> {
        if self.1 && dtype == DType::F32 {
            return Err(Error::Tensors("out of memory".into()));
        }
        Ok(Self(self.0.to_dtype(dtype)?, self.1))
    }

    fn add(self, other: Self) -> phalanx_train::Result<Self> {
        Ok(Self(self.0.add(other.0)?, self.1))
    }

    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> phalanx_train::Result<R> {
        self.0.read(read)
    }

    fn write<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> phalanx_train::Result<R> {
        self.0.write(write)
    }
}

#[test]
fn a_library_that_fails_on_one_rank_ends_the_step_on_all() {
    everywhere(2, |group, mode| {
        let array = || Array::from(vec![1f32; 10]);
        let parameters =
            ["a", "b"].map(|name| Parameter::of(name, &Brittle(array(), false)).wire(DType::F16));
        let mut reducer = Reducer::new(parameters, &group, 0, mode).unwrap();
        // The second step of the other rank may find the group failed, or the first.
        let mut step = || {
            let mine = || Some(Brittle(array(), group.rank() == 1));
            reducer.reduce(vec![mine(), mine()], Share::EQUAL)
        };
        let error = step().and_then(|_| step()).map(drop).unwrap_err();
        if group.rank() == 1 {
            assert!(matches!(error, Error::Tensors(_)), "{error:?}");
            assert_eq!(error.to_string(), "out of memory");
        } else {
            assert!(error.to_string().contains("rank 1 "), "{error}");
            assert!(
                error.to_string().contains("aborted the group: its step failed: out of memory"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_step_in_the_middle_of_another_is_refused_where_that_has_sent_something() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 0, mode);
        reducer.begin(Share::EQUAL, 0..ALL).unwrap();
        reducer.ready(2, gradient(2, group.rank(), 0, 2.0)).unwrap();
        let again = reducer.begin(Share::EQUAL, 0..ALL);
        if mode {
            assert_misuse(again, "a step has begun already");
            reducer.keep(0, gradient(0, group.rank(), 1, 2.0)).unwrap(); // part of this one, for it is awaited
            let found = reducer.finish().unwrap();
            assert_eq!((&found[0], &found[2]), (&sums(2, 1)[0], &sums(2, 0)[2]));
        } else {
            again.unwrap();
            assert!(reducer.finish().unwrap().iter().all(Option::is_none), "it is forgotten");
        }
    });
}

#[test]
fn ranks_that_do_different_things_are_told_where_in_the_program() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 0, mode);
        reducer.reduce(gradients(group.rank(), 0, 2.0), Share::EQUAL).unwrap();
        let (error, line) = match group.rank() {
            0 => (reducer.reduce(gradients(0, 1, 2.0), Share::EQUAL).unwrap_err(), line!()),
            _ => (group.barrier().unwrap_err().into(), line!()),
        };
        // A `Mismatch`, or, where the counts are asked for ahead, what a bucket that comes after it hears of it.
        assert!(error.to_string().contains("ranks disagree at operation #"), "{error}");
        assert!(error.to_string().contains(&format!("tests/refusals.rs:{line}")), "{error}");
    });
}

#[test]
fn a_model_without_parameters_is_fine() {
    everywhere(2, |group, mode| {
        let mut reducer = Reducer::<Array>::new([], &group, 0, mode).unwrap();
        assert_eq!(reducer.reduce(Vec::new(), Share::EQUAL).unwrap(), []);
        assert_eq!(parameters().len(), ALL);
    });
}
