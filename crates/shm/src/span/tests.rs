//! Spans over memory that ends where they end: `cargo xtask miri` runs these, and sees each byte that is touched beyond it.

use super::*;
use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::Instance;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// On both sides of what the C library copies and what the kernels do, and of whole lines.
const LENGTHS: [usize; 6] = [0, 1, 63, 64, 129, 1100];

/// Exactly `len` bytes, in an allocation of their own.
fn bytes(len: usize, first: usize) -> Box<[u8]> {
    (0..len).map(|i| (first + i) as u8).collect()
}

fn span(bytes: &mut [u8]) -> Span {
    // SAFETY: the tests keep the slice alive, and touch it only through the span while they use that.
    unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn panics(act: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(act)).is_err()
}

#[test]
fn bytes_are_copied_and_none_beyond_them() {
    for len in LENGTHS {
        for copy in [Span::copy_from, Span::stream_from] {
            let (mut from, mut into) = (bytes(len, 1), bytes(len, 100));
            copy(span(&mut into), span(&mut from));
            assert_eq!(into, from);
        }
        let (mut shared, mut own) = (bytes(len, 1), bytes(len, 100));
        span(&mut shared).read(&mut own);
        assert_eq!(own, bytes(len, 1));
        span(&mut shared).write(&bytes(len, 50));
        assert_eq!(shared, bytes(len, 50));
    }
}

#[test]
fn a_part_is_inside_or_there_is_none() {
    for len in LENGTHS {
        let mut whole = bytes(len, 0);
        let whole = span(&mut whole);
        assert_eq!(whole.part(len..len).len(), 0);
        for start in 0..len.min(3) {
            let mut rest = bytes(len - start, 7);
            whole.part(start..len).read(&mut rest);
            assert_eq!(rest, bytes(len - start, start));
        }
        for outside in [len..len + 1, len + 1..len + 1, 0..len + 1, 0..usize::MAX, usize::MAX..usize::MAX] {
            assert!(panics(|| _ = whole.part(outside.clone())), "{outside:?} of {len}");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "it is to be refused")]
        let backwards = 1..0;
        assert!(panics(|| _ = whole.part(backwards)));
    }
}

/// As in an operation that was planned for `len` elements on all ranks, where the buffer of one has fewer by now.
#[test]
fn what_was_planned_for_a_longer_buffer_touches_nothing_behind_a_shorter_one() {
    let sum = Kernel::new(ReduceOp::Sum, DType::U8).unwrap();
    let (len, world_size) = (300, 3);
    let mut given = bytes(len, 3);
    let given = span(&mut given);
    for short in [0, 1, 99, 100, 101, 199, 200, 299] {
        let mut buffer = bytes(short, 9);
        let buffer = span(&mut buffer);
        assert!(panics(|| buffer.copy_from(given)) && panics(|| given.stream_from(buffer)));
        assert!(panics(|| Span::reduce(&[buffer], &[given, given], &sum, 1)));
        assert!(panics(|| Span::reduce(&[given], &[given, buffer], &sum, 1)));
        // Slice by slice, until the one that the buffer has not.
        let slice = |rank: usize| rank * len / world_size..(rank + 1) * len / world_size;
        let whole = (0..world_size).take_while(|&rank| slice(rank).end <= short).count();
        let done = |rank: &usize| !panics(|| buffer.part(slice(*rank)).copy_from(given.part(slice(*rank))));
        assert_eq!((0..world_size).take_while(done).count(), whole, "{short} bytes");
    }
}

#[test]
fn contributions_are_combined_in_place_and_elsewhere() {
    let sum = Kernel::new(ReduceOp::Sum, DType::U8).unwrap();
    for len in [0, 1, 64, 129] {
        for ranks in [1, 3, SHORT, SHORT + 1] {
            let mut sources: Vec<_> = (0..ranks).map(|rank| bytes(len, rank)).collect();
            let mut apart = bytes(len, 0);
            let sources: Vec<_> = sources.iter_mut().map(|source| span(source)).collect();
            Span::reduce(&[sources[0], span(&mut apart)], &sources, &sum, 1);
            let expected: Box<[u8]> =
                (0..len).map(|i| (0..ranks).map(|rank| (rank + i) as u8).fold(0, u8::wrapping_add)).collect();
            assert_eq!(apart, expected, "{len} bytes of {ranks} ranks");
            let mut in_place = bytes(len, 0);
            sources[0].read(&mut in_place);
            assert_eq!(in_place, expected, "{len} bytes of {ranks} ranks");
        }
    }
}

/// By the plain kernels, which take the shortest, and by those that go block by block, at addresses that are out of line.
#[test]
fn elements_of_every_type_are_combined_and_none_beyond_them() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            let kernel = Kernel::new(op, dtype).unwrap();
            let plain = Kernel::with(Instance::Plain, op, dtype).unwrap();
            for elements in [1, 35] {
                let len = 1 + elements * dtype.size();
                let [mut ours, mut theirs, mut other] = [1, 2, 1].map(|rank| bytes(len, 0x3c * rank));
                plain.combine(&mut other[1..], &theirs[1..]);
                let [into, from] = [&mut ours, &mut theirs].map(|bytes| span(bytes).part(1..len));
                Span::reduce(&[into], &[into, from], &kernel, 1);
                assert_eq!(ours, other, "{op} of {elements} {dtype}");
            }
        }
    }
}

#[test]
fn only_lines_that_begin_inside_are_owned() {
    for len in [0, 1, 64, 65, 300] {
        for skip in [0, 1, 63, 64] {
            let mut all = bytes(len, 1);
            let part = skip.min(len)..len;
            let at = all.as_ptr().addr();
            span(&mut all).part(part.clone()).own_lines();
            let begins = |i: usize| part.contains(&i) && (at + i).is_multiple_of(64);
            assert!((0..len).all(|i| all[i] == if begins(i) { 0 } else { (1 + i) as u8 }));
            span(&mut all).fetch(FETCH_BYTES);
        }
    }
}

#[test]
fn lists_have_their_items_however_many_they_are() {
    for len in [0, 1, SHORT, SHORT + 1, 3 * SHORT] {
        let mut list = List::new(0..len, usize::MAX);
        list.as_mut_slice().iter_mut().for_each(|item| *item += 1);
        assert!(list.as_slice().iter().copied().eq(1..=len));
    }
}

#[test]
fn bytes_become_words_of_which_the_last_is_filled_up() {
    for (len, start) in (0..=17).chain([64, 129]).flat_map(|len| [(len, 0), (len, 1), (len, 6)]) {
        let mut own = bytes(start + len, 1);
        let part = span(&mut own).part(start..start + len);
        let mut words = Vec::new();
        part.each_word(|n, word| {
            assert_eq!(words.len(), 8 * n);
            words.extend(word.to_ne_bytes());
        });
        assert_eq!(words.len(), len.next_multiple_of(8));
        let (data, rest) = words.split_at(len);
        assert!(data == &own[start..] && rest.iter().all(|byte| *byte == 0), "{len} bytes: {words:?}");
    }
}
