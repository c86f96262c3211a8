//! Gather and scatter of blocks of several lengths, and all_to_alls of equal ones, in place and not.

use super::{Rank, Reach, bytes, bytes_mut, on_team, value, window};
use crate::last_level_cache::outgrows_cache;
use crate::{Buffers, Fault, Givers, Own, Transfer, create, window_len};
use phalanx_algo::MemoryWay;
use phalanx_core::{Layout, OpKind};

impl Rank {
    /// The blocks of a gather or scatter: of several lengths, that of rank 1 empty now and then.
    fn uneven(&self, len: usize, n: usize) -> Layout {
        let count = |rank| if rank == 1 && n.is_multiple_of(3) { 0 } else { len + 3 * rank };
        Layout::from_counts(&(0..self.world_size).map(count).collect::<Vec<_>>())
    }

    pub(super) fn gather(&mut self, len: usize, n: usize, root: usize) {
        let (rank, blocks) = (self.rank, self.uneven(len, n));
        let count = |rank: usize| blocks.block(rank).len();
        let input: Vec<u32> = (0..count(rank)).map(|i| value(rank, i, n)).collect();
        let mut output = vec![0; if rank == root { blocks.len() } else { 0 }];
        let place = |rank: usize| blocks.block(rank).start * 4..blocks.block(rank).end * 4;
        let own =
            (rank == root && n.is_multiple_of(2)).then(|| Own { from: 0..count(rank) * 4, to: place(rank) });
        let transfer = Transfer {
            same: true,
            givers: Givers::AllBut(root),
            largest: (0..self.world_size).map(count).max().unwrap() * 4,
            part: &|_| 0..count(rank) * 4,
            place: if rank == root { Some(&place) } else { None },
            own: own.as_ref(),
            layout: Some(&blocks),
        };
        self.run(OpKind::Gather, len, |team, call| {
            team.pull(call, Buffers::Separate(bytes(&input), bytes_mut(&mut output)), transfer)
        })
        .unwrap();
        let has_come = |giver: usize| rank == root && (giver != root || own.is_some());
        for giver in (0..self.world_size).filter(|&giver| has_come(giver)) {
            let got = &output[blocks.block(giver)];
            assert!((0..count(giver)).all(|i| got[i] == value(giver, i, n)), "gather of {len} from {giver}");
        }
    }

    pub(super) fn scatter(&mut self, len: usize, n: usize, root: usize) {
        let (rank, blocks) = (self.rank, self.uneven(len, n));
        let input: Vec<u32> = (0..blocks.len()).map(|i| value(root, i, n)).collect();
        let block = blocks.block(rank);
        let mut output = vec![0; block.len()];
        let part = |rank: usize| blocks.block(rank).start * 4..blocks.block(rank).end * 4;
        let whole = |_| 0..block.len() * 4;
        let copies_own = rank == root && n.is_multiple_of(2);
        let own = copies_own.then(|| Own { from: part(rank), to: whole(rank) });
        let transfer = Transfer {
            same: false,
            givers: Givers::Only(root),
            largest: (0..self.world_size).map(|rank| blocks.block(rank).len()).max().unwrap() * 4,
            part: &part,
            place: if rank == root { None } else { Some(&whole) },
            own: own.as_ref(),
            layout: Some(&blocks),
        };
        self.run(OpKind::Scatter, len, |team, call| {
            let input = if rank == root { &input[..] } else { &[] };
            team.pull(call, Buffers::Separate(bytes(input), bytes_mut(&mut output)), transfer)
        })
        .unwrap();
        assert!(rank == root && own.is_none() || output == input[block], "scatter of {len}");
    }

    /// An all_to_all of equal blocks, in `buffer` or from there to another.
    pub(super) fn exchange(&mut self, buffer: &mut [u8], in_place: bool, n: usize) {
        let (rank, count) = (self.rank, buffer.len() / 4 / self.world_size);
        let blocks = Layout::even(self.world_size, count * self.world_size);
        let given = |from: usize, to: usize| (0..count).map(move |i| value(from, i + to, n));
        let input: Vec<u32> = (0..self.world_size).flat_map(|to| given(rank, to)).collect();
        let (filled, _) = buffer.split_at_mut(input.len() * 4);
        filled.copy_from_slice(bytes(&input));
        let block = |r: usize| blocks.block(r).start * 4..blocks.block(r).end * 4;
        let transfer = Transfer {
            same: false,
            givers: Givers::All,
            largest: count * 4,
            part: &block,
            place: Some(&block),
            own: None,
            layout: Some(&blocks),
        };
        let mut output = input.clone();
        self.run(OpKind::AllToAll, count, |team, call| {
            let buffers = match in_place {
                true => Buffers::InPlace(&mut *filled),
                false => Buffers::Separate(filled, bytes_mut(&mut output)),
            };
            team.pull(call, buffers, transfer)
        })
        .unwrap();
        let expected: Vec<u32> = (0..self.world_size).flat_map(|from| given(from, rank)).collect();
        let result = if in_place { filled } else { bytes_mut(&mut output) };
        assert!(*result == *bytes(&expected), "all_to_all of {count} on rank {rank}, in place: {in_place}");
    }
}

#[test]
fn what_is_longer_than_the_caches_arrives() {
    // In these tests they are said to be small, so that few bytes go past them.
    let len = 300_000;
    assert!(outgrows_cache(len * size_of::<u32>()));
    on_team(2, false, Reach::Staging, |rank| {
        for n in 0..4 {
            rank.gather(len, n, 0);
            rank.scatter(len, n, 1);
            rank.broadcast(len, n, n % 2);
            rank.all_gather(len, n);
            rank.all_to_all(len, n);
        }
        assert!(rank.team.long_reads.have_timed());
    });
}

#[test]
fn what_is_replaced_goes_to_others_first() {
    const LEN: usize = 4 << 20;
    for world_size in [2, 3] {
        let file = create(window_len(world_size, LEN).unwrap()).unwrap();
        on_team(world_size, false, Reach::Memory, |rank| {
            rank.team.force(OpKind::AllToAll, MemoryWay::Staged);
            let (mut window, mut plain) = (window(rank, &file, LEN), vec![0; LEN]);
            // Rank 0 in place in each kind of memory; the others in place, or from a window that rank 0 reads at once.
            for n in 0..8 {
                let buffer = if rank.rank == 0 && n < 4 { &mut plain[..] } else { window.bytes_mut() };
                rank.exchange(buffer, rank.rank == 0 || n % 2 == 0, n);
            }
        });
    }
}

/// A giver may be told of another length than the taker has room for.
#[test]
fn nobody_writes_beyond_the_place_of_a_part() {
    const LEN: usize = 1 << 20;
    const SHORT: usize = LEN - (64 << 10);
    on_team(2, false, Reach::Memory, |rank| {
        rank.team.force(OpKind::Gather, MemoryWay::Shared);
        let input = vec![1u8; LEN];
        let mut memory = vec![2u8; LEN];
        let (output, rest) = memory.split_at_mut(SHORT);
        let takes = rank.rank == 0;
        let place = |_| 0..SHORT;
        let transfer = Transfer {
            same: true,
            givers: Givers::Only(1),
            largest: LEN,
            part: &|_| 0..LEN,
            place: if takes { Some(&place) } else { None },
            own: None,
            layout: None,
        };
        let result = rank.run(OpKind::Gather, LEN, |team, call| {
            team.pull(call, Buffers::Separate(&input, output), transfer)
        });
        match result {
            Err(Fault::Counts { peer: 0, sent: LEN, expected: SHORT }) if !takes => {}
            Err(Fault::Closed { .. }) if takes => {}
            other => panic!("rank {}: {other:?}", rank.rank),
        }
        assert!(rest.iter().all(|&byte| byte == 2), "what lies after the place has changed");
    });
}
