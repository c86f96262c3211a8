//! The suite for every [`Store`].
//!
//! A suite is told how to make a fresh store; what that returns makes further clients of the same store. Implementations
//! whose clones share may hand out clones, others connect again.

use phalanx_core::{Deadline, Error};
use phalanx_rendezvous::{KEY_LEN_MAX, Store, VALUE_LEN_MAX};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Makes one test of each function of this module, run on the stores that the expression makes.
///
/// # Examples
/// ```
/// mod memory {
///     phalanx_testkit::store_conformance!({
///         let store = phalanx_rendezvous::MemoryStore::new();
///         move || store.clone()
///     });
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($client_maker:expr) => {
        $crate::store_conformance!(@each $client_maker,
            values_come_back,
            counters_count,
            compare_set_sets_what_was_expected,
            delete_removes,
            get_waits_for_a_later_set,
            every_kind_of_change_wakes,
            a_wait_ends_at_its_deadline_and_names_the_key,
            waiting_for_several_names_the_missing,
            a_waiting_thread_does_not_hold_up_others,
            limits_hold,
            any_string_is_a_key_and_any_bytes_a_value,
            many_keys_stay_apart,
            adding_is_atomic,
            comparing_is_atomic,
            no_reader_sees_half_a_value,
        );
    };
    (@each $client_maker:expr, $($test:ident),* $(,)?) => { $(
        #[test]
        fn $test() {
            $crate::conformance::store::$test($client_maker);
        }
    )* };
}

/// Long enough for anything that ought to happen on a busy machine.
fn soon() -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs(60))
}

fn already() -> Deadline {
    Deadline::after(Instant::now(), Duration::ZERO)
}

/// `set`, then `get` and `try_get`, from another client; the last `set` wins.
pub fn values_come_back<S: Store>(client: impl Fn() -> S) {
    let (a, b) = (client(), client());
    assert_eq!(b.try_get("key").unwrap(), None);
    a.set("key", b"one").unwrap();
    assert_eq!(b.try_get("key").unwrap().unwrap(), b"one");
    b.set("key", b"a longer value").unwrap();
    assert_eq!(a.get("key", &soon()).unwrap(), b"a longer value");
    a.set("key", b"").unwrap();
    assert_eq!(b.get("key", &already()).unwrap(), b"", "what is there needs no time");
}

/// Counters start at 0, are decimal texts, and refuse what is no number without changing it.
pub fn counters_count<S: Store>(client: impl Fn() -> S) {
    let (a, b) = (client(), client());
    assert_eq!(a.add("n", 5).unwrap(), 5);
    assert_eq!(b.add("n", -7).unwrap(), -2);
    assert_eq!(b.add("n", 0).unwrap(), -2);
    assert_eq!(a.try_get("n").unwrap().unwrap(), b"-2");
    a.set("n", b"41").unwrap();
    assert_eq!(b.add("n", 1).unwrap(), 42);
    assert_eq!(a.add("limit", i64::MAX).unwrap(), i64::MAX);
    a.set("word", b"many").unwrap();
    for (key, stays) in [("limit", i64::MAX.to_string()), ("word", "many".into())] {
        let refused = a.add(key, 1);
        assert!(matches!(&refused, Err(Error::Misuse { what, .. }) if what.contains(key)), "{refused:?}");
        assert_eq!(a.try_get(key).unwrap().unwrap(), stays.as_bytes());
    }
}

/// `compare_set` acts on the expected value and on no other.
pub fn compare_set_sets_what_was_expected<S: Store>(client: impl Fn() -> S) {
    let store = client();
    assert!(!store.compare_set("key", Some(b"a"), b"b").unwrap(), "there is no value to be expected");
    assert!(store.compare_set("key", None, b"a").unwrap());
    assert!(!store.compare_set("key", None, b"b").unwrap(), "there is a value by now");
    assert!(!store.compare_set("key", Some(b"A"), b"b").unwrap());
    assert!(!store.compare_set("key", Some(b""), b"b").unwrap());
    assert_eq!(store.try_get("key").unwrap().unwrap(), b"a");
    assert!(store.compare_set("key", Some(b"a"), b"b").unwrap());
    assert_eq!(store.try_get("key").unwrap().unwrap(), b"b");
}

/// `delete` says whether there was something, and leaves nothing.
pub fn delete_removes<S: Store>(client: impl Fn() -> S) {
    let (a, b) = (client(), client());
    assert!(!a.delete("key").unwrap());
    a.set("key", b"value").unwrap();
    assert!(b.delete("key").unwrap());
    assert!(!a.delete("key").unwrap());
    assert_eq!(a.try_get("key").unwrap(), None);
    assert!(a.compare_set("key", None, b"again").unwrap());
}

/// A `get` begun before the `set` returns its value, to all who wait, and does not return before.
pub fn get_waits_for_a_later_set<S: Store>(client: impl Fn() -> S) {
    let waiting: Vec<S> = (0..3).map(|_| client()).collect();
    let setter = client();
    thread::scope(|scope| {
        let waits: Vec<_> =
            waiting.iter().map(|store| scope.spawn(|| (woken(store, "key"), Instant::now()))).collect();
        thread::sleep(Duration::from_millis(50));
        let set = Instant::now();
        setter.set("key", b"value").unwrap();
        for wait in waits {
            let (value, returned) = wait.join().unwrap();
            assert_eq!(value, b"value");
            assert!(returned >= set);
        }
    });
}

/// `add` and `compare_set` end waits as `set` does.
pub fn every_kind_of_change_wakes<S: Store>(client: impl Fn() -> S) {
    let (a, b) = (client(), client());
    thread::scope(|scope| {
        let wait = scope.spawn(|| (woken(&a, "counter"), woken(&a, "swapped")));
        thread::sleep(Duration::from_millis(20));
        b.add("counter", 7).unwrap();
        thread::sleep(Duration::from_millis(20));
        b.compare_set("swapped", None, b"x").unwrap();
        assert_eq!(wait.join().unwrap(), (b"7".to_vec(), b"x".to_vec()));
    });
}

/// A wait in vain lasts as long as its deadline grants, names the key and the time, and leaves the client fit for use.
pub fn a_wait_ends_at_its_deadline_and_names_the_key<S: Store>(client: impl Fn() -> S) {
    let store = client();
    for limit in [Duration::ZERO, Duration::from_millis(60)] {
        let begun = Instant::now();
        match store.get("never set", &Deadline::after(begun, limit)) {
            Err(Error::Rendezvous { what, waited, .. }) => {
                assert!(what.contains("\"") && what.contains("never set"), "{what}");
                assert!(waited >= limit && begun.elapsed() >= limit);
            }
            other => panic!("{other:?}"),
        }
    }
    // A value that comes after the wait was given up is not mistaken for another's.
    client().set("never set", b"after all").unwrap();
    store.set("other", b"value").unwrap();
    assert_eq!(store.get("other", &soon()).unwrap(), b"value");
    assert_eq!(store.get("never set", &soon()).unwrap(), b"after all");
}

/// `get_all` returns values in the order of the keys, or names those that are missing.
pub fn waiting_for_several_names_the_missing<S: Store>(client: impl Fn() -> S) {
    let store = client();
    assert_eq!(store.get_all(&[], &already()).unwrap(), Vec::<Vec<u8>>::new());
    store.set("rank 0", b"zero").unwrap();
    store.set("rank 2", b"two").unwrap();
    let keys = ["rank 0", "rank 1", "rank 2", "rank 3"];
    match store.get_all(&keys, &Deadline::after(Instant::now(), Duration::from_millis(30))) {
        Err(Error::Rendezvous { what, .. }) => {
            assert!(what.contains("2 of 4") && what.contains("rank 1") && what.contains("rank 3"), "{what}");
            assert!(!what.contains("rank 0") && !what.contains("rank 2"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        let all = scope.spawn(|| store.get_all(&keys, &soon()).unwrap());
        let other = client();
        other.set("rank 3", b"three").unwrap();
        other.set("rank 1", b"one").unwrap();
        assert_eq!(all.join().unwrap(), [&b"zero"[..], b"one", b"two", b"three"]);
    });
}

/// Threads share one client: one waits for what another sets.
pub fn a_waiting_thread_does_not_hold_up_others<S: Store>(client: impl Fn() -> S) {
    let store = client();
    let keys: Vec<String> = (0..4).map(|i| format!("key {i}")).collect();
    thread::scope(|scope| {
        let waits: Vec<_> = keys.iter().map(|key| scope.spawn(|| woken(&store, key))).collect();
        thread::sleep(Duration::from_millis(20));
        for key in keys.iter().rev() {
            assert_eq!(store.try_get(key).unwrap(), None);
            store.set(key, key.as_bytes()).unwrap();
        }
        for (wait, key) in waits.into_iter().zip(&keys) {
            assert_eq!(wait.join().unwrap(), key.as_bytes());
        }
    });
}

/// The longest keys and values work; longer ones are refused by every method and change nothing.
pub fn limits_hold<S: Store>(client: impl Fn() -> S) {
    // Decorators need some room in the key.
    let key = "k".repeat(KEY_LEN_MAX - 64);
    let value: Vec<u8> = (0..VALUE_LEN_MAX).map(|i| (i % 251) as u8).collect();
    let (a, b) = (client(), client());
    a.set(&key, &value).unwrap();
    assert_eq!(b.get(&key, &soon()).unwrap(), value);
    assert!(b.compare_set(&key, Some(&value), &value).unwrap());
    assert_eq!(a.try_get(&key[1..]).unwrap(), None, "long keys are compared to their end");

    let long_key = "k".repeat(KEY_LEN_MAX + 1);
    let long_value = vec![0; VALUE_LEN_MAX + 1];
    let refused = [
        a.set(&long_key, b""),
        a.get(&long_key, &soon()).map(drop),
        a.try_get(&long_key).map(drop),
        a.add(&long_key, 1).map(drop),
        a.compare_set(&long_key, None, b"").map(drop),
        a.delete(&long_key).map(drop),
        a.set("short", &long_value),
        a.compare_set("short", None, &long_value).map(drop),
        a.compare_set(&key, None, &long_value).map(drop),
        a.compare_set("short", Some(&long_value), b"").map(drop),
    ];
    for (call, outcome) in refused.into_iter().enumerate() {
        assert!(matches!(outcome, Err(Error::Misuse { .. })), "call {call}: {outcome:?}");
    }
    assert_eq!(b.try_get("short").unwrap(), None);
}

/// Keys that look like paths, hide control characters or differ in case only; values that are no text.
pub fn any_string_is_a_key_and_any_bytes_a_value<S: Store>(client: impl Fn() -> S) {
    let keys = [
        "",
        " ",
        ".",
        "..",
        "../../x",
        "/etc/passwd",
        "a/b",
        "a",
        "A",
        "a%2fb",
        "%",
        "\0",
        "\n",
        "ключ",
        "🦀",
    ];
    let (a, b) = (client(), client());
    let bytes: Vec<u8> = (0..=255).collect();
    for (i, key) in keys.iter().enumerate() {
        a.set(key, &[&[i as u8], &bytes[..]].concat()).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        let value = b.get(key, &soon()).unwrap();
        assert_eq!((value[0], &value[1..]), (i as u8, &bytes[..]), "{key:?}");
        assert!(b.delete(key).unwrap(), "{key:?}");
    }
}

/// A thousand keys, each with its own value.
pub fn many_keys_stay_apart<S: Store>(client: impl Fn() -> S) {
    let (a, b) = (client(), client());
    let key = |i: usize| format!("rank/{i}/address");
    (0..1000).for_each(|i| a.set(&key(i), &i.to_le_bytes()).unwrap());
    for i in (0..1000).rev() {
        assert_eq!(b.get(&key(i), &soon()).unwrap(), i.to_le_bytes());
    }
}

/// Eight clients add at once: every sum is seen exactly once.
pub fn adding_is_atomic<S: Store>(client: impl Fn() -> S) {
    const EACH: i64 = 50;
    let mut sums =
        at_once(8, &client, |store, _| (0..EACH).map(|_| store.add("n", 1).unwrap()).collect::<Vec<_>>())
            .concat();
    sums.sort_unstable();
    assert_eq!(sums, (1..=8 * EACH).collect::<Vec<_>>());
}

/// Eight clients want the same key: one gets it.
pub fn comparing_is_atomic<S: Store>(client: impl Fn() -> S) {
    for round in 0..10 {
        let key = format!("leader {round}");
        let won = at_once(8, &client, |store, i| store.compare_set(&key, None, &[i]).unwrap());
        let winner = client().get(&key, &soon()).unwrap()[0];
        let expected: Vec<bool> = (0..8).map(|i| i == winner).collect();
        assert_eq!(won, expected);
    }
}

/// Large values replace each other while they are read: every reader sees one of them whole.
pub fn no_reader_sees_half_a_value<S: Store>(client: impl Fn() -> S) {
    const LEN: usize = 100_000;
    client().set("key", &[b'a'; LEN]).unwrap();
    at_once(4, &client, |store, i| {
        for round in 0..20u8 {
            if i < 2 {
                store.set("key", &[b'a' + i * 13 + round % 13; LEN]).unwrap();
            } else {
                let value = store.get("key", &soon()).unwrap();
                assert_eq!(value.len(), LEN);
                assert!(value.iter().all(|byte| *byte == value[0]));
            }
        }
    });
}

/// Waits for `key`; the change must end the wait, not the deadline.
fn woken<S: Store>(store: &S, key: &str) -> Vec<u8> {
    let deadline = soon();
    let value = store.get(key, &deadline).unwrap();
    assert!(!deadline.has_passed(Instant::now()), "nothing woke the wait for {key:?}");
    value
}

/// Runs `work` on `clients` threads, each with a client of its own, all beginning at the same moment.
fn at_once<S: Store, R: Send>(
    clients: u8,
    client: &impl Fn() -> S,
    work: impl Fn(&S, u8) -> R + Sync,
) -> Vec<R> {
    let stores: Vec<S> = (0..clients).map(|_| client()).collect();
    let start = Barrier::new(usize::from(clients));
    let run = |i, store| {
        start.wait();
        work(store, i)
    };
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(&stores).map(|(i, store)| scope.spawn(move || run(i, store))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
