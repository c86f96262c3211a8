//! What is saved on some ranks is loaded on others, and what is damaged is named and not loaded.

#![allow(clippy::print_stdout, reason = "a test tells why it was skipped")]

use phalanx::ProcessGroup;
use phalanx_checkpoint::{Checkpoints, Error, Result, State, TensorInfo};
use phalanx_testkit::World;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Saves a state that depends on `step` alone: tensors that all ranks have, one that is dealt out in uneven runs, values.
fn save(group: &ProcessGroup, checkpoints: &mut Checkpoints, step: u64) -> Result<()> {
    let rank = group.rank();
    let (weights, bias, bytes) = (weights(step), [step as f64, 0.5], [7u8; 5]);
    let (moments, own) = (moments(step), part(rank, group.world_size()));
    let mut state = State::new();
    state.slice("weights", &[40, 30], &weights);
    state.slice("bias", &[2], &bias);
    state.slice("bytes", &[5], &bytes);
    state.slice("scalar", &[], &bias[..1]);
    state.slice::<f32>("empty", &[0, 3], &[]);
    state.piece("moments", &[10, 10], own.start, &moments[own]);
    state.value("sampler", &(step, "position"))?;
    state.rank_value("random", &(100 * step + rank as u64))?;
    checkpoints.save(step, state)
}

fn weights(step: u64) -> Vec<f32> {
    (0..1200).map(|i| (i as f32 + step as f32).sin()).collect()
}

fn moments(step: u64) -> Vec<i32> {
    (0..100).map(|i| i * i + step as i32).collect()
}

/// Rank r has r parts in 0 + 1 + …, so that the first has nothing unless it is alone.
fn part(rank: usize, world_size: usize) -> Range<usize> {
    let before = |rank: usize| rank * rank.saturating_sub(1) / 2;
    if world_size == 1 {
        0..100
    } else {
        100 * before(rank) / before(world_size)..100 * before(rank + 1) / before(world_size)
    }
}

/// Finds the newest that is good, and checks every bit of it.
fn load(group: &ProcessGroup, checkpoints: &mut Checkpoints, saved_by: usize) -> u64 {
    let found = checkpoints.latest_good().unwrap().expect("there is one");
    let step = found.step();
    assert_eq!(found.world_size(), saved_by);
    assert_eq!(found.read::<f32>("weights").unwrap(), weights(step));
    assert_eq!(found.read::<f64>("bias").unwrap(), [step as f64, 0.5]);
    assert_eq!(found.read::<u8>("bytes").unwrap(), [7; 5]);
    assert_eq!(found.read::<f64>("scalar").unwrap(), [step as f64]);
    assert_eq!(found.read::<f32>("empty").unwrap(), [0.0; 0]);
    assert_eq!(found.info("weights").unwrap().to_string(), "f32 [40, 30]");
    // Only what this rank has now.
    let own = part(group.rank(), group.world_size());
    let mut mine = vec![0i32; own.len()];
    found.read_bytes("moments", own.clone(), cast(&mut mine)).unwrap();
    assert_eq!(mine, moments(step)[own]);
    assert_eq!(found.value::<(u64, String)>("sampler").unwrap(), (step, "position".to_owned()));
    for rank in 0..saved_by + 1 {
        let random = (rank < saved_by).then(|| 100 * step + rank as u64);
        assert_eq!(found.rank_value::<u64>("random", rank).unwrap(), random);
    }
    step
}

fn cast(values: &mut [i32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}

/// Runs `act` on each of `ranks` ranks, with the checkpoints in `folder`.
fn on<R: Send + 'static>(
    world: &World,
    ranks: usize,
    folder: &Path,
    act: impl Fn(&ProcessGroup, &mut Checkpoints) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let folder = folder.to_owned();
    world.run(ranks, move |group| act(&group, &mut Checkpoints::open(&folder, &group).unwrap()))
}

/// Saves `steps` on `ranks` ranks.
fn saved(folder: &Path, ranks: usize, steps: &'static [u64]) {
    on(&World::thread(), ranks, folder, |group, checkpoints| {
        steps.iter().for_each(|&step| save(group, checkpoints, step).unwrap());
    });
}

/// The files of a step's checkpoint, by name.
fn files(folder: &Path, step: u64) -> Vec<PathBuf> {
    let path = folder.join(format!("step-{step:08}"));
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn any_number_of_ranks_loads_what_any_number_saved() {
    for world in [World::thread(), World::shm(), World::tcp()] {
        for saving in 1..=4 {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            on(&world, saving, folder, move |group, checkpoints| {
                assert!(checkpoints.latest_good().unwrap().is_none());
                save(group, checkpoints, 41).unwrap();
                save(group, checkpoints, 42).unwrap();
                assert_eq!(load(group, checkpoints, saving), 42);
            });
            assert_eq!(names(folder), ["step-00000041", "step-00000042"]);
            for loading in 1..=4 {
                let steps = on(&world, loading, folder, move |group, found| load(group, found, saving));
                assert_eq!(steps, vec![42; loading]);
            }
        }
    }
}

#[test]
fn what_each_rank_has_for_itself_is_found_again_by_that_rank() {
    let folder = tempfile::tempdir().unwrap();
    let saved = on(&World::shm(), 3, folder.path(), |group, checkpoints| {
        let (rank, shared) = (group.rank(), weights(1));
        let (velocity, nothing) = ([rank as f32, 0.5], [0u8; 0]);
        let mut state = State::new();
        state.slice("shared", &[1200], &shared);
        state.of_rank(rank, |own| {
            own.slice("velocity", &[2, 1], &velocity);
            own.slice("nothing", &[0], &nothing);
            own.value("steps", &(10 + rank))
        })?;
        checkpoints.save(1, state)
    });
    saved.into_iter().for_each(Result::unwrap);
    on(&World::thread(), 2, folder.path(), |_, checkpoints| {
        let found = checkpoints.latest_good().unwrap().unwrap();
        for rank in 0..3 {
            let own = found.of_rank(rank);
            assert_eq!(own.info("velocity").unwrap().shape, [2, 1]);
            assert_eq!(own.read::<f32>("velocity").unwrap(), [rank as f32, 0.5]);
            assert_eq!(own.read::<u8>("nothing").unwrap(), [0; 0]);
            assert_eq!(own.value::<usize>("steps").unwrap(), 10 + rank);
            assert_eq!(own.read::<f32>("shared").unwrap(), weights(1), "what all have is there, too");
        }
        for (checkpoint, name) in [(&found, "velocity"), (&found.of_rank(3), "velocity")] {
            let error = checkpoint.read::<f32>(name).unwrap_err().to_string();
            assert!(error.starts_with("tensor `velocity` is not in checkpoint"), "{error}");
        }
    });
}

#[test]
fn the_bytes_are_dealt_out_evenly_and_one_rank_alone_writes_whole_tensors() {
    let folder = tempfile::tempdir().unwrap();
    fn tensors() -> [Vec<f32>; 3] {
        [vec![1.0; 100_000], vec![2.0; 7], vec![3.0; 50_000]]
    }
    let save = |ranks: usize, step: u64| {
        on(&World::thread(), ranks, folder.path(), move |_, checkpoints| {
            let (tensors, mut state) = (tensors(), State::new());
            for (i, tensor) in tensors.iter().enumerate() {
                state.slice(format!("{i}"), &[tensor.len()], tensor);
            }
            checkpoints.save(step, state).unwrap();
        });
        files(folder.path(), step)
    };
    let four = save(4, 4);
    assert_eq!(four.len(), 5, "and a manifest");
    for file in four.iter().filter(|file| file.extension().is_some_and(|e| e == "safetensors")) {
        let bytes = fs::metadata(file).unwrap().len();
        assert!(bytes.abs_diff(4 * 150_007 / 4) < 1000, "{bytes} in {}", file.display());
    }
    let one = save(1, 1);
    let text = fs::read(&one[1]).unwrap();
    let read = safetensors::SafeTensors::deserialize(&text).unwrap();
    for (i, tensor) in tensors().iter().enumerate() {
        assert_eq!(read.tensor(&i.to_string()).unwrap().data(), bytemuck::cast_slice::<f32, u8>(tensor));
    }
}

#[test]
fn whatever_is_damaged_is_named_and_the_last_good_one_is_loaded() {
    type Damage = fn(&[PathBuf]);
    fn flip_bit(path: &Path, at: impl Fn(usize) -> usize) {
        let mut bytes = fs::read(path).unwrap();
        let at = at(bytes.len());
        bytes[at] ^= 0x10;
        fs::write(path, bytes).unwrap();
    }
    fn cut(path: &Path) {
        let len = fs::metadata(path).unwrap().len();
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len - 1).unwrap();
    }
    let cases: [(Damage, &[&str]); 8] = [
        (
            |f| flip_bit(&f[2], |len| len - 1),
            &["rank-00001-of-00003.safetensors has hash ", ", and should have "],
        ),
        (|f| flip_bit(&f[1], |_| 3), &["rank-00000-of-00003.safetensors has hash "]),
        (|f| cut(&f[3]), &["rank-00002-of-00003.safetensors has ", " bytes, and should have "]),
        (
            |f| fs::remove_file(&f[1]).unwrap(),
            &["rank-00000-of-00003.safetensors can't be read: No such file"],
        ),
        (|f| flip_bit(&f[0], |len| len / 2), &["manifest.json "]),
        (|f| cut(&f[0]), &["manifest.json is torn"]),
        (|f| fs::remove_file(&f[0]).unwrap(), &["manifest.json can't be read: No such file"]),
        (|f| fs::write(&f[0], "").unwrap(), &["manifest.json is torn"]),
    ];
    for (damage, complaint) in cases {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        saved(folder, 3, &[10, 20]);
        damage(&files(folder, 20));
        for ranks in 1..=4 {
            on(&World::thread(), ranks, folder, move |group, checkpoints| {
                let told = checkpoints.load(20).unwrap_err().to_string();
                let named = complaint.iter().all(|part| told.contains(part));
                assert!(named && told.contains("step-00000020 is damaged"), "{told}");
                assert_eq!(load(group, checkpoints, 3), 10);
            });
        }
        // Nothing else is left to load: that is no new beginning.
        damage(&files(folder, 10));
        on(&World::tcp(), 2, folder, |group, checkpoints| {
            let error = checkpoints.latest_good().unwrap_err();
            assert!(matches!(&error, Error::NoneGood { damaged, .. } if damaged.len() == 2), "{error}");
            // Saved once more it is good again.
            save(group, checkpoints, 20).unwrap();
            assert_eq!(load(group, checkpoints, 2), 20);
        });
    }
}

/// What can't be read may be good: to go on from an older step would throw away what was trained since.
#[test]
#[cfg(unix)]
fn what_cannot_be_read_is_named_and_no_older_one_takes_its_place() {
    for (file, rank, name) in [(0, 0, "manifest.json"), (2, 1, "rank-00001-of-00003.safetensors")] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        saved(folder, 3, &[10, 20]);
        let path = files(folder, 20)[file].clone();
        let aside = folder.join("aside");
        fs::rename(&path, &aside).unwrap();
        // A link to itself, which not even root can read.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        on(&World::thread(), 3, folder, move |_, checkpoints| {
            for error in [checkpoints.load(20).unwrap_err(), checkpoints.latest_good().unwrap_err()] {
                let Error::Unreadable { causes, .. } = &error else { panic!("{error}") };
                assert!(causes.iter().any(|(by, what)| *by == rank && what.starts_with(name)), "{error}");
                let told = error.to_string();
                let says = [
                    "step-00000020 can't be read, which does not mean that it is damaged: rank ",
                    "Too many levels",
                ];
                assert!(says.iter().all(|part| told.contains(part)), "{told}");
                assert_eq!(format!("{error:?}"), told);
            }
        });
        // With another file damaged it is still not known what this one has.
        let other = files(folder, 20)[1].clone();
        let good = fs::read(&other).unwrap();
        fs::write(&other, "").unwrap();
        on(&World::thread(), 2, folder, |_, checkpoints| {
            let error = checkpoints.latest_good().unwrap_err();
            assert!(matches!(error, Error::Unreadable { .. }), "{error}");
        });
        fs::write(&other, good).unwrap();
        fs::rename(&aside, &path).unwrap();
        on(&World::thread(), 2, folder, |group, checkpoints| assert_eq!(load(group, checkpoints, 3), 20));
    }
}

/// Runs in a process of its own, whose user may not read a file.
#[test]
#[ignore = "this is what the next test runs"]
fn without_permission() {
    let Some(folder) = std::env::var_os("PHALANX_TEST_CHECKPOINTS") else { return };
    on(&World::thread(), 2, Path::new(&folder), |_, checkpoints| {
        let told = checkpoints.latest_good().unwrap_err().to_string();
        assert!(told.contains("rank-00000-of-00002.safetensors can't be read: Permission denied"), "{told}");
        // Whoever may not write need not: nothing is cleaned up, and an older one can be asked for.
        assert_eq!(checkpoints.load(10).unwrap().step(), 10);
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 2, &[10, 20]);
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(folder.path(), 0o555);
    mode(&files(folder.path(), 20)[1], 0o000);
    // The test's own program may lie where another user may not go.
    let program = folder.path().join("step-00000010/program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    mode(&program, 0o755);
    let is_root = rustix::process::geteuid().is_root();
    let mut command = match is_root {
        true => std::process::Command::new("setpriv"),
        false => std::process::Command::new(&program),
    };
    if is_root {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    }
    command.args(["--exact", "without_permission", "--ignored", "--nocapture", "--test-threads=1"]);
    let run = command.env("PHALANX_TEST_CHECKPOINTS", folder.path()).current_dir("/").output().unwrap();
    mode(folder.path(), 0o755);
    let told = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn a_checkpoint_of_a_newer_version_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    saved(folder, 2, &[10, 20]);
    let path = &files(folder, 20)[0];
    let text = fs::read_to_string(path).unwrap();
    let (_, manifest) = text.split_once("\"manifest\":").unwrap();
    let manifest = manifest.strip_suffix('}').unwrap().replace("\"format\": 1", "\"format\": 3");
    let hash = twox_hash::XxHash3_64::oneshot(manifest.as_bytes());
    fs::write(path, format!("{{\"xxh3\":\"{hash:016x}\",\"manifest\":{manifest}}}")).unwrap();
    on(&World::thread(), 3, folder, |group, checkpoints| {
        for error in [checkpoints.load(20).unwrap_err(), checkpoints.latest_good().unwrap_err()] {
            assert!(matches!(error, Error::OtherFormat { found: 3, known: 2, .. }), "{error}");
            let says = "step-00000020 is of format 3, and this program reads formats 1 to 2: build it with the version of phalanx that";
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(checkpoints.load(10).unwrap().step(), 10);
        save(group, checkpoints, 20).unwrap();
        assert_eq!(load(group, checkpoints, 3), 20);
    });
}

#[test]
fn tensors_are_read_under_other_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0]).unwrap();
    let mut state = State::new();
    state.slice("a", &[1], &[1f32]);
    state.slice("b", &[1], &[2f32]);
    state.slice("c", &[1], &[3f32]);
    checkpoints.save(1, state).unwrap();
    let found = checkpoints.load(1).unwrap();

    let turned = found.renamed([("a", "b"), ("b", "a")]).unwrap();
    let all = ["a", "b", "c"].map(|name| turned.read::<f32>(name).unwrap()[0]);
    assert_eq!(all, [2.0, 1.0, 3.0]);
    let moved = found.renamed([("a", "model.a")]).unwrap();
    assert!(moved.read::<f32>("a").is_err());
    let refused = |names: &[(&str, &str)]| found.renamed(names.iter().copied()).unwrap_err();
    assert!(matches!(refused(&[("d", "e")]), Error::Missing { what, .. } if what == "tensor `d`"));
    assert!(matches!(refused(&[("a", "c")]), Error::SameName { name } if name == "c"));
    assert!(matches!(refused(&[("a", "d"), ("b", "d")]), Error::SameName { name } if name == "d"));
    assert!(matches!(refused(&[("a", "d"), ("a", "e")]), Error::Missing { .. }));
}

#[test]
fn a_renamed_checkpoint_is_not_taken_for_another_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    saved(folder, 2, &[10, 20]);
    fs::rename(folder.join("step-00000020"), folder.join("step-00000030")).unwrap();
    on(&World::thread(), 2, folder, |group, checkpoints| {
        let told = checkpoints.load(30).unwrap_err().to_string();
        assert!(told.ends_with("step-00000030 is damaged: manifest.json is that of step 20"), "{told}");
        assert_eq!(load(group, checkpoints, 2), 10);
    });
}

#[test]
fn old_ones_are_deleted_but_never_the_one_that_was_just_saved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    saved(folder, 2, &[10, 20, 30]);
    // The newest is damaged, so the training goes on from 20.
    fs::write(&files(folder, 30)[0], "").unwrap();
    let here = folder.to_owned();
    World::thread().run(2, move |group| {
        let mut checkpoints = Checkpoints::open(&here, &group).unwrap().keep(1);
        assert_eq!(load(&group, &mut checkpoints, 2), 20);
        save(&group, &mut checkpoints, 25).unwrap();
        assert_eq!(load(&group, &mut checkpoints, 2), 25);
    });
    assert_eq!(names(folder), ["step-00000025", "step-00000030"]);
    let here = folder.to_owned();
    World::thread().run(1, move |group| {
        let mut checkpoints = Checkpoints::open(&here, &group).unwrap().keep(2);
        [30, 35].into_iter().for_each(|step| save(&group, &mut checkpoints, step).unwrap());
    });
    assert_eq!(names(folder), ["step-00000030", "step-00000035"]);
}

#[test]
fn an_asynchronous_save_holds_what_was_there_when_it_began() {
    let folder = tempfile::tempdir().unwrap();
    on(&World::thread(), 3, folder.path(), |_, checkpoints| {
        let mut weights = vec![1.0f32; 1000];
        for step in 1..=5 {
            let mut state = State::new();
            state.slice("weights", &[1000], &weights);
            checkpoints.save_async(step, state).unwrap();
            weights.iter_mut().for_each(|weight| *weight += 1.0);
        }
        checkpoints.wait().unwrap();
        for step in 1..=5 {
            let found = checkpoints.load(step).unwrap().read::<f32>("weights").unwrap();
            assert!(found.iter().all(|weight| *weight == step as f32));
        }
        // One that nobody waits for does not become a checkpoint.
        checkpoints.save_async(6, State::new()).unwrap();
        let temporary = || {
            let mut names = names(checkpoints.folder()).into_iter();
            checkpoints.folder().join(names.find(|name| name.starts_with("step-00000006.tmp-")).unwrap())
        };
        while names(&temporary()).len() < 3 {
            std::thread::yield_now();
        }
    });
    on(&World::thread(), 1, folder.path(), |_, checkpoints| {
        let found = checkpoints.latest_good().unwrap();
        assert_eq!(found.map(|found| found.step()), Some(5));
    });
    assert_eq!(names(folder.path()).len(), 5);
}

#[test]
fn one_rank_that_cannot_write_is_named_on_all_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 3, &[1]);
    on(&World::thread(), 3, folder.path(), |group, checkpoints| {
        let rank = group.rank();
        let failing = || {
            let mut state = State::new();
            let info = TensorInfo { dtype: phalanx::DType::F32, shape: vec![30] };
            state.tensor("weights", info, move |range| match rank {
                1 => Err(Error::Tensors("the device is lost".into())),
                _ => Ok(vec![0; 4 * range.len()]),
            });
            state
        };
        let told = checkpoints.save(2, failing()).unwrap_err().to_string();
        assert_eq!(told, "step 2 was not saved: rank 1: the device is lost");
        // The error of an asynchronous one comes with the next call, once.
        checkpoints.save_async(2, failing()).unwrap();
        let told = checkpoints.save_async(3, State::new()).unwrap_err().to_string();
        assert_eq!(told, "step 2 was not saved: rank 1: the device is lost");
        assert_eq!(load(group, checkpoints, 3), 1);
        save(group, checkpoints, 3).unwrap();
    });
    assert_eq!(names(folder.path()), ["step-00000001", "step-00000003"]);
}

#[test]
fn a_file_that_vanishes_under_way_is_missed_before_the_checkpoint_exists() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    on(&World::thread(), 2, folder, |group, checkpoints| {
        checkpoints.save_async(1, State::new()).unwrap();
        let vanishes = || {
            let name = names(checkpoints.folder()).pop()?;
            fs::remove_file(checkpoints.folder().join(name).join("rank-00001-of-00002.safetensors")).ok()
        };
        while group.rank() == 0 && vanishes().is_none() {
            std::thread::yield_now();
        }
        let told = checkpoints.wait().unwrap_err().to_string();
        let said = [
            "rank 0: looking for the files of all ranks",
            "00001-of-00002.safetensors can't be read",
            "do all hosts share this folder?",
        ];
        assert!(said.iter().all(|part| told.contains(part)), "{told}");
    });
    assert!(names(folder).is_empty());
}

#[test]
fn states_that_do_not_fit_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    on(&World::thread(), 2, folder.path(), |group, checkpoints| {
        let told = |checkpoints: &mut Checkpoints, step: u64, shape: &[usize]| {
            let weights = vec![0f32; shape.iter().product()];
            let mut state = State::new();
            state.slice("weights", shape, &weights);
            checkpoints.save(step, state).unwrap_err().to_string()
        };
        let rank = group.rank();
        assert_eq!(
            told(checkpoints, 7, &[2, 1 + rank]),
            "step 7 was not saved: tensor `weights` differs between ranks: rank 0 has f32 [2, 1], rank 1 has f32 [2, 2]"
        );
        assert!(told(checkpoints, 7 + rank as u64, &[2]).ends_with("rank 0 saves step 7, rank 1 step 8"));
        for (shape, complaint) in [
            (&[2, 1][..], "tensor `own`, f32 [2, 1], was given 6 elements"),
            (&[2, 4], "tensor `own`, f32 [2, 4], was given 6 elements"),
            (&[0, 3], "tensor `own`, f32 [0, 3], was given 6 elements"),
            (&[usize::MAX, 2], "was given 6 elements"),
        ] {
            let mut state = State::new();
            if rank == 1 {
                let fill = |own: &mut State<'_>| {
                    own.slice("own", shape, &[0f32; 6]);
                    Ok(())
                };
                state.of_rank(rank, fill).unwrap();
            }
            let error = checkpoints.save(7, state).unwrap_err();
            assert!(matches!(error, Error::State { .. }), "{error:?}");
            assert!(error.to_string().contains(complaint), "{error}");

            let mut state = State::new();
            state.slice("own", shape, &[0f32; 6]);
            let error = checkpoints.save(7, state).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        assert!(names(checkpoints.folder()).is_empty());
        save(group, checkpoints, 9).unwrap();
        let found = checkpoints.load(9).unwrap();
        assert!(found.read::<f64>("weights").unwrap_err().to_string().contains(
            "tensor `weights` is f32 [40, 30] in the checkpoint, and was expected to be f64 [40, 30]"
        ));
        let missing = found.read::<f64>("weight").unwrap_err().to_string();
        assert!(
            missing.starts_with("tensor `weight` is not in checkpoint ")
                && missing.ends_with("step-00000009")
        );
        assert!(found.value::<u64>("sampler").is_err());
        assert!(found.read_bytes("weights", 1190..1201, &mut [0; 44]).is_err());
    });
}

#[test]
fn a_folder_that_is_gone_is_told_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    on(&World::thread(), 2, folder.path(), |group, checkpoints| {
        // Gone for all, as after `rm -r`; and then only for one, as on a host that does not share it.
        if group.rank() == 0 {
            fs::remove_dir(checkpoints.folder()).unwrap();
        }
        let told = checkpoints.save(1, State::new()).unwrap_err().to_string();
        let expected = "step 1 was not saved: rank 0: creating folder ";
        assert!(told.starts_with(expected) && told.contains("No such file"), "{told}");
    });
    World::thread().run(2, move |group| {
        let elsewhere = tempfile::tempdir().unwrap();
        let told = Checkpoints::open(elsewhere.path(), &group).unwrap().save(1, State::new());
        let told = told.unwrap_err().to_string();
        assert!(told.starts_with("step 1 was not saved: rank 1: writing "), "{told}");
        assert!(told.contains("(do all hosts share this folder?): No such file"), "{told}");
    });
}

#[test]
fn a_folder_that_cannot_be_is_told_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    World::thread().run(2, move |group| {
        let told = Checkpoints::open(file.join("checkpoints"), &group).unwrap_err().to_string();
        let expected = format!("rank 0: creating folder {}/checkpoints: Not a directory", file.display());
        assert!(told.starts_with(&expected), "{told}");
    });
}

/// On a file system of one megabyte, which only root can make.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_named_and_the_last_checkpoint_is_still_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |program: &str, args: &[&str]| {
        let ran = std::process::Command::new(program).args(args).arg(folder).output();
        ran.is_ok_and(|output| output.status.success())
    };
    if !run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"]) {
        println!("skipped: only root can mount a small file system");
        return;
    }
    on(&World::thread(), 2, folder, |group, checkpoints| {
        save(group, checkpoints, 1).unwrap();
        let huge = vec![1.0f64; 200_000];
        let mut state = State::new();
        state.slice("huge", &[huge.len()], &huge);
        let told = checkpoints.save(2, state).unwrap_err().to_string();
        assert!(told.contains("safetensors: No space left on device"), "{told}");
        assert_eq!(load(group, checkpoints, 2), 1);
        save(group, checkpoints, 3).unwrap();
    });
    let left = names(folder);
    assert!(run("umount", &[]));
    assert_eq!(left, ["step-00000001", "step-00000003"]);
}
