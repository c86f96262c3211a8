//! Which gradients travel together: planning only, no tensor and no network in sight.

use candle_core::DType;

/// What planning needs to know of one variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

impl Item {
    fn bytes(self) -> usize {
        self.elements.saturating_mul(self.dtype.size_in_bytes())
    }
}

/// Variables whose gradients are laid end to end in one buffer and reduced by one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) dtype: DType,
    /// Indices of the variables, in the order of the plan.
    pub(crate) members: Vec<usize>,
    /// Elements of all members together.
    pub(crate) elements: usize,
}

/// Deals `items` into buckets of one element type and at most `cap_bytes` each.
///
/// `order` names the indices of `items` to plan, in the order in which their gradients are to be sent: by name today,
/// by the moment they are ready once communication overlaps with the backward pass. Members of a bucket keep that order, and
/// buckets follow each other by their first member. An item larger than the cap has a bucket for itself.
///
/// The plan depends on nothing but the arguments, so ranks with equal models have equal plans without talking.
pub(crate) fn plan(items: &[Item], order: impl IntoIterator<Item = usize>, cap_bytes: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for index in order {
        let Item { dtype, elements } = items[index];
        // Only the newest bucket of a type takes more: older ones are closed, which keeps the order within a type.
        let open = buckets.iter_mut().rfind(|b| b.dtype == dtype).filter(|b| {
            let with_it = Item { dtype, elements: b.elements.saturating_add(elements) };
            with_it.bytes() <= cap_bytes
        });
        match open {
            Some(bucket) => {
                bucket.members.push(index);
                bucket.elements += elements;
            }
            None => buckets.push(Bucket { dtype, members: vec![index], elements }),
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item() -> impl Strategy<Value = Item> {
        let dtype = prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::BF16]);
        (dtype, 0usize..3_000).prop_map(|(dtype, elements)| Item { dtype, elements })
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_bucket_of_its_type_within_the_cap(
            (items, order) in prop::collection::vec(item(), 0..60)
                .prop_flat_map(|items| {
                    let order: Vec<usize> = (0..items.len()).collect();
                    (Just(items), Just(order).prop_shuffle())
                }),
            cap in 0usize..10_000,
        ) {
            let buckets = plan(&items, order.iter().copied(), cap);
            let mut seen: Vec<usize> = buckets.iter().flat_map(|b| b.members.iter().copied()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..items.len()).collect::<Vec<_>>());
            for bucket in &buckets {
                prop_assert!(bucket.members.iter().all(|&m| items[m].dtype == bucket.dtype));
                prop_assert_eq!(bucket.elements, bucket.members.iter().map(|&m| items[m].elements).sum::<usize>());
                let bytes = bucket.elements * bucket.dtype.size_in_bytes();
                prop_assert!(bytes <= cap || bucket.members.len() == 1);
            }
        }

        #[test]
        fn order_is_kept_within_a_type_and_buckets_follow_their_first_members(
            items in prop::collection::vec(item(), 0..60),
            cap in 0usize..10_000,
        ) {
            let buckets = plan(&items, 0..items.len(), cap);
            prop_assert!(buckets.is_sorted_by_key(|b| b.members[0]));
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let of_type = buckets.iter().filter(|b| b.dtype == dtype).flat_map(|b| &b.members);
                prop_assert!(of_type.is_sorted());
            }
        }
    }

    #[test]
    fn buckets_are_filled_before_the_next_is_opened() {
        let f32s = |elements| Item { dtype: DType::F32, elements };
        let items = [f32s(3), f32s(3), f32s(9), f32s(1), Item { dtype: DType::F64, elements: 1 }, f32s(1)];
        let members: Vec<_> = plan(&items, 0..6, 24).into_iter().map(|b| b.members).collect();
        assert_eq!(members, [vec![0, 1], vec![2], vec![3, 5], vec![4]]);
    }
}
