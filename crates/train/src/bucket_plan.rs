//! Which gradients travel together: planning only, no tensor and no network in sight.

use phalanx::DType;

/// One parameter, as far as planning needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

impl Item {
    pub(crate) fn bytes(self) -> usize {
        self.elements.saturating_mul(self.dtype.size())
    }
}

/// Parameters whose gradients lie end to end and are reduced by one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The element type of the gradients while they travel.
    pub dtype: DType,
    /// Indices of the parameters, in the order of the plan.
    pub members: Vec<usize>,
    /// Elements of all members together.
    pub elements: usize,
}

impl Bucket {
    /// Bytes of all members together.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Parameter, Plan};
    ///
    /// let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 6]))];
    /// assert_eq!(Plan::new(&parameters.into(), &[0], 4 << 20).buckets()[0].bytes(), 24);
    /// ```
    pub fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// The size of buckets at both ends of a plan: so that something is under way soon, and so that little is still to be sent
/// when the last gradient is ready.
const SMALL_BYTES: usize = 1 << 20;

/// Deals `items` into buckets of one element type and at most `cap_bytes` each; the first, and those of the last `cap_bytes`
/// of gradients, of at most [`SMALL_BYTES`].
///
/// `order` names the indices of `items` in the order in which their gradients are ready, each at most once. Those that it does not
/// name have buckets of their own at the end: as long as they have no gradient on any rank, none of these is sent.
///
/// Members of a bucket keep that order, and buckets follow each other by their first member. An item larger than the cap has a bucket
/// for itself. The plan depends on nothing but the arguments, so ranks that give the same have equal plans without talking.
pub(crate) fn plan(items: &[Item], order: &[usize], cap_bytes: usize) -> Vec<Bucket> {
    let mut named = vec![false; items.len()];
    order.iter().for_each(|&index| named[index] = true);
    let others: Vec<usize> = (0..items.len()).filter(|&index| !named[index]).collect();
    let mut buckets = deal(items, order, cap_bytes);
    buckets.extend(deal(items, &others, cap_bytes));
    buckets
}

/// Buckets for the items that `order` names.
fn deal(items: &[Item], order: &[usize], cap_bytes: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut rest = order.iter().map(|&index| items[index].bytes()).fold(0, usize::saturating_add);
    for &index in order {
        let Item { dtype, elements } = items[index];
        // Only the newest bucket of a type takes more: older ones are closed, which keeps the order within a type.
        let newest = buckets.iter().rposition(|bucket| bucket.dtype == dtype);
        let is_small = newest == Some(0) || rest <= cap_bytes;
        let cap = if is_small { cap_bytes.min(SMALL_BYTES) } else { cap_bytes };
        let open = newest.filter(|&at| {
            let with_it = Item { dtype, elements: buckets[at].elements.saturating_add(elements) };
            with_it.bytes() <= cap
        });
        match open {
            Some(at) => {
                buckets[at].members.push(index);
                buckets[at].elements += elements;
            }
            None => buckets.push(Bucket { dtype, members: vec![index], elements }),
        }
        rest -= items[index].bytes();
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

    fn f32s(elements: usize) -> Item {
        Item { dtype: DType::F32, elements }
    }

    fn members(buckets: Vec<Bucket>) -> Vec<Vec<usize>> {
        buckets.into_iter().map(|b| b.members).collect()
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_bucket_of_its_type_within_the_cap(
            (items, order, named) in prop::collection::vec(item(), 0..60)
                .prop_flat_map(|items| {
                    let order: Vec<usize> = (0..items.len()).collect();
                    let named = 0..=items.len();
                    (Just(items), Just(order).prop_shuffle(), named)
                }),
            cap in 0usize..10_000,
        ) {
            let buckets = plan(&items, &order[..named], cap);
            let mut seen: Vec<usize> = buckets.iter().flat_map(|b| b.members.iter().copied()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..items.len()).collect::<Vec<_>>());
            for bucket in &buckets {
                prop_assert!(bucket.members.iter().all(|&m| items[m].dtype == bucket.dtype));
                prop_assert_eq!(bucket.elements, bucket.members.iter().map(|&m| items[m].elements).sum::<usize>());
                let bytes = bucket.elements * bucket.dtype.size();
                prop_assert!(bytes <= cap || bucket.members.len() == 1);
                let is_named = |m: &usize| order[..named].contains(m);
                prop_assert!(bucket.members.iter().all(is_named) || !bucket.members.iter().any(is_named));
            }
        }

        #[test]
        fn order_is_kept_within_a_type_and_buckets_follow_their_first_members(
            items in prop::collection::vec(item(), 0..60),
            cap in 0usize..10_000,
        ) {
            let order: Vec<usize> = (0..items.len()).collect();
            let buckets = plan(&items, &order, cap);
            prop_assert!(buckets.is_sorted_by_key(|b| b.members[0]));
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let of_type = buckets.iter().filter(|b| b.dtype == dtype).flat_map(|b| &b.members);
                prop_assert!(of_type.is_sorted());
            }
        }
    }

    #[test]
    fn buckets_are_filled_before_the_next_is_opened() {
        let items = [f32s(3), f32s(3), f32s(9), f32s(1), Item { dtype: DType::F64, elements: 1 }, f32s(1)];
        let order: Vec<usize> = (0..6).collect();
        assert_eq!(members(plan(&items, &order, 24)), [vec![0, 1], vec![2], vec![3, 5], vec![4]]);
    }

    #[test]
    fn the_first_and_the_last_buckets_are_small() {
        // Of 400 kB each.
        let order: Vec<usize> = (0..16).rev().collect();
        let found = members(plan(&[f32s(100_000); 16], &order, 2 << 20));
        let expected =
            [vec![15, 14], vec![13, 12, 11, 10, 9], vec![8, 7, 6, 5], vec![4, 3], vec![2, 1], vec![0]];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_has_no_gradient_travels_apart() {
        assert_eq!(members(plan(&[f32s(1); 4], &[2, 1], 1000)), [vec![2, 1], vec![0, 3]]);
    }
}
