//! When a bucket is sent: as soon as it is complete and all buckets before it in the plan were sent, so that all ranks send in one order.

/// The buckets of one step: how many gradients each still waits for, and which is sent next.
#[derive(Debug)]
pub(crate) struct ReadyBuckets {
    /// How many gradients are still to come, for each bucket.
    missing: Vec<usize>,
    next: usize,
}

impl ReadyBuckets {
    /// For buckets that wait for so many gradients each.
    pub(crate) fn new(missing: Vec<usize>) -> Self {
        Self { missing, next: 0 }
    }

    pub(crate) fn launched(&self) -> usize {
        self.next
    }

    /// Notes that one of the gradients that `bucket` waits for is there.
    pub(crate) fn arrived(&mut self, bucket: usize) {
        self.missing[bucket] -= 1;
    }

    /// The next bucket, if it is complete: it counts as sent then.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let next = self.next;
        (*self.missing.get(next)? == 0).then(|| {
            self.next += 1;
            next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_sent_in_order_once_complete(
            arrivals in prop::collection::vec(0usize..8, 0..40).prop_shuffle(),
        ) {
            let mut missing = vec![0; 8];
            arrivals.iter().for_each(|&bucket| missing[bucket] += 1);
            let mut order = ReadyBuckets::new(missing.clone());
            let mut sent = Vec::new();
            for bucket in arrivals {
                order.arrived(bucket);
                missing[bucket] -= 1;
                sent.extend(std::iter::from_fn(|| order.next()));
                let complete = missing.iter().take_while(|&&n| n == 0).count();
                prop_assert_eq!(&sent, &(0..complete).collect::<Vec<_>>());
            }
        }
    }
}
