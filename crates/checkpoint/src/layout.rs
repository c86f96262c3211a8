//! Which rank writes which elements: arithmetic on what all ranks have told each other.

use crate::TensorInfo;
use crate::state::{State, Whole};
use phalanx::chunk;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, btree_map};
use std::ops::Range;

/// One rank's part: names, types and shapes of its [`State`], and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    wholes: Vec<(String, TensorInfo)>,
    of_rank_0: Vec<(String, TensorInfo)>,
    pieces: Vec<(String, TensorInfo, Range<usize>)>,
    wrong: Vec<String>,
}

impl Table {
    pub(crate) fn of(state: &State<'_>) -> Self {
        let sorted = |wholes: &[Whole<'_>]| {
            let mut sorted: Vec<_> = wholes.iter().map(|w| (w.name.clone(), w.info.clone())).collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            sorted
        };
        let (wholes, of_rank_0) = (sorted(&state.wholes), sorted(&state.of_rank_0));
        let pieces = state.pieces.iter().map(|p| (p.name.clone(), p.info.clone(), p.elements.clone()));
        Self { wholes, of_rank_0, pieces: pieces.collect(), wrong: state.wrong.clone() }
    }
}

/// A run of elements of a tensor, and who writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) rank: usize,
    pub(crate) elements: Range<usize>,
}

/// A tensor, and its parts in the order of their elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) info: TensorInfo,
    pub(crate) parts: Vec<Part>,
}

/// All tensors, by name. Equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout(pub(crate) BTreeMap<String, Parts>);

impl Layout {
    /// Puts the ranks' tables together, or says what does not fit.
    pub(crate) fn agreed(tables: &[Table]) -> Result<Self, String> {
        let first = &tables[0];
        for (rank, table) in tables.iter().enumerate() {
            if let Some(what) = table.wrong.first() {
                return Err(format!("rank {rank}: {what}"));
            }
            same(&first.wholes, &table.wholes, rank)?;
            same(&first.of_rank_0, &table.of_rank_0, rank)?;
        }
        let mut tensors = BTreeMap::new();
        for (name, info) in &first.wholes {
            add(&mut tensors, name, info, Vec::new())?;
        }
        deal(&mut tensors, tables.len())?;
        for (name, info) in &first.of_rank_0 {
            let whole = Part { rank: 0, elements: 0..checked_elements(name, info)? };
            let parts = if whole.elements.is_empty() { Vec::new() } else { vec![whole] };
            add(&mut tensors, name, info, parts)?;
        }
        let mut pieces: BTreeMap<String, Parts> = BTreeMap::new();
        for (rank, table) in tables.iter().enumerate() {
            for (name, info, elements) in &table.pieces {
                if tensors.contains_key(name) {
                    return Err(format!("tensor `{name}` is given both as a whole and in pieces"));
                }
                add_piece(&mut pieces, name, info, Part { rank, elements: elements.clone() })?;
            }
        }
        for (name, Parts { info, parts }) in &mut pieces {
            parts.retain(|part| !part.elements.is_empty());
            parts.sort_by_key(|part| part.elements.start);
            let ranges: Vec<_> = parts.iter().map(|part| &part.elements).collect();
            tiled(name, info, &ranges)?;
        }
        tensors.append(&mut pieces);
        Ok(Self(tensors))
    }

    /// The parts of tensors that `rank` writes, by name.
    pub(crate) fn of_rank(&self, rank: usize) -> impl Iterator<Item = (&str, &TensorInfo, &Range<usize>)> {
        self.0.iter().flat_map(move |(name, Parts { info, parts })| {
            let own = parts.iter().filter(move |part| part.rank == rank);
            own.map(move |part| (name.as_str(), info, &part.elements))
        })
    }
}

/// Two ranks must have the same whole tensors; both lists are sorted by name.
fn same(
    expected: &[(String, TensorInfo)],
    found: &[(String, TensorInfo)],
    rank: usize,
) -> Result<(), String> {
    let Some(at) = (0..expected.len().max(found.len())).find(|&i| expected.get(i) != found.get(i)) else {
        return Ok(());
    };
    // Of two different names the lesser is the one that the other side does not have at all.
    let name = [expected.get(at), found.get(at)].into_iter().flatten().map(|(name, _)| name).min();
    let name = name.expect("one of them is there, or they would not differ");
    let told = |list: &[(String, TensorInfo)]| match list.iter().find(|(other, _)| other == name) {
        Some((_, info)) => info.to_string(),
        None => "none".to_owned(),
    };
    Err(format!(
        "tensor `{name}` differs between ranks: rank 0 has {}, rank {rank} has {}",
        told(expected),
        told(found)
    ))
}

fn checked_elements(name: &str, info: &TensorInfo) -> Result<usize, String> {
    if name == "__metadata__" {
        return Err("no tensor can have the name `__metadata__`: safetensors keeps it for itself".to_owned());
    }
    info.elements().ok_or_else(|| format!("tensor `{name}`, {info}, is larger than memory can be"))
}

fn add(
    tensors: &mut BTreeMap<String, Parts>,
    name: &str,
    info: &TensorInfo,
    parts: Vec<Part>,
) -> Result<(), String> {
    checked_elements(name, info)?;
    match tensors.insert(name.to_owned(), Parts { info: info.clone(), parts }) {
        None => Ok(()),
        Some(_) => Err(format!("tensor `{name}` is given twice")),
    }
}

fn add_piece(
    pieces: &mut BTreeMap<String, Parts>,
    name: &str,
    info: &TensorInfo,
    part: Part,
) -> Result<(), String> {
    checked_elements(name, info)?;
    match pieces.entry(name.to_owned()) {
        btree_map::Entry::Vacant(entry) => {
            entry.insert(Parts { info: info.clone(), parts: vec![part] });
        }
        btree_map::Entry::Occupied(mut entry) => {
            let Parts { info: expected, parts } = entry.get_mut();
            if expected != info {
                let (first, rank) = (parts[0].rank, part.rank);
                return Err(format!(
                    "tensor `{name}` differs between ranks: rank {first} has a piece of {expected}, rank {rank} of {info}"
                ));
            }
            parts.push(part);
        }
    }
    Ok(())
}

/// Cuts the tensors, laid end to end, into as many runs of equal bytes as there are ranks. So at most one tensor less than there
/// are ranks is cut, and a single rank's file has all tensors whole.
fn deal(tensors: &mut BTreeMap<String, Parts>, world_size: usize) -> Result<(), String> {
    let bytes = |info: &TensorInfo| info.elements().map(|elements| elements * info.dtype.size());
    let total = tensors.values().try_fold(0usize, |sum, parts| sum.checked_add(bytes(&parts.info)?));
    let total = total.ok_or("the tensors together are larger than memory can be")?;
    let mut start = 0;
    for Parts { info, parts } in tensors.values_mut() {
        let size = info.dtype.size();
        let end = start + bytes(info).expect("it was checked");
        for rank in 0..world_size {
            let share = chunk(rank, world_size, total);
            // An element that is cut belongs to the rank in whose share it begins.
            let element = |at: usize| (at.clamp(start, end) - start).div_ceil(size);
            let elements = element(share.start)..element(share.end);
            if !elements.is_empty() {
                parts.push(Part { rank, elements });
            }
        }
        start = end;
    }
    Ok(())
}

/// Whether `ranges`, in the order of their starts, make the whole tensor.
pub(crate) fn tiled(name: &str, info: &TensorInfo, ranges: &[&Range<usize>]) -> Result<(), String> {
    let elements = checked_elements(name, info)?;
    let mut next = 0;
    for range in ranges {
        if range.start > range.end || range.start < next {
            return Err(format!(
                "the pieces of tensor `{name}` overlap, or are outside of it: {range:?} comes after element {next}"
            ));
        }
        if range.start > next {
            break;
        }
        next = range.end;
    }
    if next == elements {
        return Ok(());
    }
    let found = if next < elements { "are missing" } else { "are more than it has" };
    let (low, high) = (next.min(elements), next.max(elements));
    Err(format!("elements {low}..{high} of tensor `{name}`, {info}, {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::DType;
    use proptest::prelude::*;

    fn info(dtype: DType, shape: &[usize]) -> TensorInfo {
        TensorInfo { dtype, shape: shape.to_vec() }
    }

    fn table(wholes: &[(&str, TensorInfo)], pieces: &[(&str, TensorInfo, Range<usize>)]) -> Table {
        Table {
            wholes: wholes.iter().map(|(name, info)| (name.to_string(), info.clone())).collect(),
            of_rank_0: Vec::new(),
            pieces: pieces.iter().map(|(n, i, r)| (n.to_string(), i.clone(), r.clone())).collect(),
            wrong: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn every_element_is_written_once_and_all_write_alike(
            shapes in prop::collection::vec((0usize..40, 0usize..20), 0..12),
            dtypes in prop::collection::vec(prop::sample::select(DType::ALL.to_vec()), 12),
            world_size in 1usize..9,
        ) {
            let names: Vec<String> = (0..shapes.len()).map(|i| format!("{i:02}")).collect();
            let wholes: Vec<_> = (0..shapes.len())
                .map(|i| (names[i].as_str(), info(dtypes[i], &[shapes[i].0, shapes[i].1])))
                .collect();
            let layout = Layout::agreed(&vec![table(&wholes, &[]); world_size]).unwrap();
            prop_assert_eq!(layout.0.len(), wholes.len());
            for (name, Parts { info, parts }) in &layout.0 {
                let ranges: Vec<_> = parts.iter().map(|part| &part.elements).collect();
                tiled(name, info, &ranges).unwrap();
            }
            let written = |rank| -> usize {
                layout.of_rank(rank).map(|(_, info, range)| range.len() * info.dtype.size()).sum()
            };
            let total: usize = (0..world_size).map(written).sum();
            for rank in 0..world_size {
                prop_assert!(written(rank).abs_diff(total / world_size) <= 8, "an element at most");
            }
            let cuts: usize = layout.0.values().map(|parts| parts.parts.len().saturating_sub(1)).sum();
            prop_assert!(cuts < world_size);
        }
    }

    #[test]
    fn pieces_make_the_whole_or_are_refused() {
        let of = |ranges: &[Range<usize>]| {
            let tables: Vec<_> =
                ranges.iter().map(|r| table(&[], &[("m", info(DType::F32, &[2, 3]), r.clone())])).collect();
            Layout::agreed(&tables)
        };
        let layout = of(&[4..6, 0..4, 6..6]).unwrap();
        let parts = &layout.0["m"].parts;
        assert_eq!((parts[0].rank, parts[1].rank, parts.len()), (1, 0, 2));
        for (ranges, complaint) in [
            (vec![0..2, 3..6], "elements 2..6 of tensor `m`, f32 [2, 3], are missing"),
            (vec![0..4, 3..6], "overlap"),
            (vec![0..3, 3..7], "elements 6..7 of tensor `m`, f32 [2, 3], are more than it has"),
        ] {
            let error = of(&ranges).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn what_each_rank_has_another_of_is_rank_0s_whole() {
        let (small, empty) = (info(DType::F32, &[9]), info(DType::F32, &[0]));
        let table = Table {
            of_rank_0: vec![("empty".into(), empty), ("mean".into(), small.clone())],
            ..table(&[("a", small.clone()), ("z", small.clone())], &[])
        };
        let layout = Layout::agreed(&vec![table; 3]).unwrap();
        assert_eq!(layout.0["mean"].parts, [Part { rank: 0, elements: 0..9 }]);
        let written: Vec<usize> = (0..3)
            .map(|rank| layout.of_rank(rank).filter(|part| part.0 != "mean").map(|part| part.2.len()).sum())
            .collect();
        assert_eq!(written, [6; 3], "of the others as if it were not there");
        let run = |(name, _, elements): (&str, _, &Range<usize>)| (name.to_owned(), elements.clone());
        let of_first: Vec<_> = layout.of_rank(0).map(run).collect();
        assert_eq!(of_first[0], ("a".to_owned(), 0..6));
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let (small, large) = (info(DType::F32, &[2]), info(DType::F32, &[3]));
        let ours = table(&[("a", small.clone()), ("c", small.clone())], &[]);
        let told = |theirs: Table| Layout::agreed(&[ours.clone(), ours.clone(), theirs]).unwrap_err();
        assert_eq!(
            told(table(&[("a", small.clone()), ("c", large.clone())], &[])),
            "tensor `c` differs between ranks: rank 0 has f32 [2], rank 2 has f32 [3]"
        );
        assert_eq!(
            told(table(&[("a", small.clone())], &[])),
            "tensor `c` differs between ranks: rank 0 has f32 [2], rank 2 has none"
        );
        assert_eq!(
            told(table(&[("a", small.clone()), ("b", large.clone()), ("c", small.clone())], &[])),
            "tensor `b` differs between ranks: rank 0 has none, rank 2 has f32 [3]"
        );
    }

    #[test]
    fn names_must_be_unambiguous() {
        let x = info(DType::F32, &[2]);
        for (bad, complaint) in [
            (table(&[("a", x.clone()), ("a", x.clone())], &[]), "twice"),
            (table(&[("a", x.clone())], &[("a", x.clone(), 0..2)]), "both"),
            (table(&[("__metadata__", x.clone())], &[]), "safetensors"),
            (table(&[("a", info(DType::F64, &[usize::MAX, 2]))], &[]), "larger"),
            (Table { of_rank_0: vec![("a".into(), x.clone())], ..table(&[("a", x.clone())], &[]) }, "twice"),
        ] {
            let error = Layout::agreed(&[bad]).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
