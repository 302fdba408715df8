//! Properties of the order: permutations, ranks, resuming, any step.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use batchfs_sampler::{Sampler, Spec};
use proptest::prelude::*;
use std::collections::HashMap;

fn sampler(text: &str, len: u64) -> Sampler {
    Sampler::new(text.parse().unwrap(), len).unwrap()
}

fn batch(sampler: &Sampler, step: u64) -> Vec<u64> {
    let mut ids = vec![u64::MAX; sampler.local_batch() as usize];
    sampler.ids(step, &mut ids);
    ids
}

fn steps(sampler: &Sampler, steps: std::ops::Range<u64>) -> Vec<u64> {
    steps.flat_map(|step| batch(sampler, step)).collect()
}

fn most_often(ids: &[u64]) -> usize {
    let mut counts = HashMap::new();
    ids.iter().for_each(|id| *counts.entry(id).or_insert(0) += 1);
    counts.into_values().max().unwrap_or(0)
}

/// Lengths around the change from shuffle to bijection, and small and large ones.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![1..40_u64, 480..560_u64, 1..5000_u64]
}

fn any_lengths() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..5000_u64,
        (0..64_u32, 0..3_u64).prop_map(|(bit, add)| (1_u64 << bit).wrapping_add(add).max(1)),
        1..=u64::MAX
    ]
}

fn any_steps() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, any::<u64>(), Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn drop_has_each_record_at_most_once_per_cycle(len in lengths(), share in 1..=100_u64, seed: u64, cycle in 0..1000_u64) {
        let size = (len * share / 100).max(1);
        let sampler = sampler(&format!("batch={size},seed={seed}"), len);
        let per_cycle = sampler.steps_per_cycle();
        prop_assert_eq!(per_cycle, len / size);
        let ids = steps(&sampler, cycle * per_cycle..(cycle + 1) * per_cycle);
        prop_assert!(ids.iter().all(|&id| id < len));
        prop_assert_eq!(most_often(&ids), 1);
        prop_assert_eq!(sampler.cycle_of(cycle * per_cycle), cycle);
        prop_assert_eq!(sampler.cycle_of((cycle + 1) * per_cycle - 1), cycle);
    }

    #[test]
    fn carry_has_each_record_exactly_once_per_cycle(len in lengths(), share in 1..=100_u64, seed: u64, cycles in 1..4_u64) {
        let size = (len * share / 100).max(1);
        let sampler = sampler(&format!("batch={size},seed={seed},remainder=carry"), len);
        let ids = steps(&sampler, 0..(cycles * len).div_ceil(size));
        for cycle in 0..cycles {
            let mut ids = ids[(cycle * len) as usize..((cycle + 1) * len) as usize].to_vec();
            ids.sort_unstable();
            prop_assert!(ids.into_iter().eq(0..len));
        }
        prop_assert!(most_often(&batch(&sampler, len / size)) <= 2);
    }

    #[test]
    fn sequential_counts_and_wraps(len in any_lengths(), size in 1..300_u64, step in any_steps()) {
        let size = size.min(len);
        let sampler = sampler(&format!("mode=sequential,batch={size}"), len);
        let first = u128::from(step) * u128::from(size);
        for (id, place) in batch(&sampler, step).into_iter().zip(0..) {
            prop_assert_eq!(u128::from(id), (first + place) % u128::from(len));
        }
    }

    #[test]
    fn ranks_joined_are_the_global_batch(len in any_lengths(), seed: u64, step in any_steps(), mode in 0..4_usize) {
        let mode = ["mode=sequential", "mode=iid", "mode=cyclic", "mode=cyclic,remainder=carry"][mode];
        // 1320 has many divisors; 660 and 264 lie in two chunks and in one.
        let size = [1320, 660, 264, 24, 1].into_iter().find(|&size| size <= len).unwrap();
        let global = batch(&sampler(&format!("{mode},batch={size},seed={seed}"), len), step);
        for world in (1..=size).filter(|world| size % world == 0) {
            let joined: Vec<u64> = (0..world)
                .flat_map(|rank| batch(&sampler(&format!("{mode},batch={size},seed={seed},rank={rank},world={world}"), len), step))
                .collect();
            prop_assert_eq!(&joined, &global, "{} world={}", mode, world);
        }
    }

    #[test]
    fn any_step_of_any_length_is_in_range(len in any_lengths(), size in 1..600_u64, seed: u64, step in any_steps(), mode in 0..4_usize) {
        let mode = ["mode=sequential", "mode=iid", "mode=cyclic", "mode=cyclic,remainder=carry"][mode];
        let size = if mode == "mode=iid" { size } else { size.min(len) };
        let sampler = sampler(&format!("{mode},batch={size},seed={seed}"), len);
        let ids = batch(&sampler, step);
        prop_assert!(ids.iter().all(|&id| id < len));
        prop_assert_eq!(&ids, &batch(&sampler, step));
        prop_assert!(sampler.cycle_of(step) <= step);
        prop_assert!(sampler.steps_per_cycle() >= 1);
        if mode == "mode=cyclic" {
            prop_assert_eq!(most_often(&ids), 1);
        }
    }
}

/// The largest specs: positions here need 128 bits, the last rank's words of iid end where ChaCha's counter does.
#[test]
fn the_largest_batches_do_not_wrap() {
    let world = 1_u64 << 60;
    for mode in ["mode=sequential", "mode=iid", "mode=cyclic", "mode=cyclic,remainder=carry"] {
        for len in [world * 2, u64::MAX] {
            for step in [0, 1, u64::MAX] {
                for rank in [0, world - 1] {
                    let text =
                        format!("{mode},batch={},seed=1,rank={rank},world={world}", world * 2);
                    assert!(
                        batch(&sampler(&text, len), step).into_iter().all(|id| id < len),
                        "{text}"
                    );
                }
            }
        }
    }
}

#[test]
fn steps_per_cycle_and_cycle_of_are_as_documented() {
    let check = |text: &str, len, steps, cycles: &[(u64, u64)]| {
        let sampler = sampler(text, len);
        assert_eq!(sampler.steps_per_cycle(), steps, "{text}");
        for &(step, cycle) in cycles {
            assert_eq!(sampler.cycle_of(step), cycle, "{text} step {step}");
        }
    };
    check("batch=7", 100, 14, &[(13, 0), (14, 1), (u64::MAX, u64::MAX / 14)]);
    check("batch=7,remainder=carry", 100, 15, &[(14, 0), (15, 1), (28, 1), (29, 2)]);
    check("mode=sequential,batch=7", 100, 15, &[(14, 0), (15, 1)]);
    check("mode=iid,batch=7", 100, 14, &[(13, 0), (14, 1)]);
    check("mode=iid,batch=7", 3, 1, &[(5, 5)]);
    check("batch=1,remainder=carry", 1, 1, &[(u64::MAX, u64::MAX)]);
}

/// 100 records, batch 7: any step stands for itself, so a run taken up anywhere goes on as the unbroken one.
#[test]
fn a_resumed_run_is_the_unbroken_one() {
    for text in ["batch=7,seed=3", "batch=7,seed=3,remainder=carry"] {
        let unbroken = steps(&sampler(text, 100), 0..6 * 15);
        let per_cycle = sampler(text, 100).steps_per_cycle();
        for cycle in 0..3 {
            let at = cycle * per_cycle + 5;
            assert_eq!(
                steps(&sampler(text, 100), at..at + 3 * per_cycle),
                unbroken[(at * 7) as usize..][..(3 * per_cycle * 7) as usize]
            );
        }
    }
    let cycles: Vec<Vec<u64>> = (0..3)
        .map(|cycle| steps(&sampler("batch=7,seed=3", 100), cycle * 14..(cycle + 1) * 14))
        .collect();
    assert!(cycles.iter().all(|ids| ids.len() == 98 && most_often(ids) == 1));
    assert_ne!(cycles[0], cycles[1]);
    assert_ne!(cycles[1], cycles[2]);
    let left_out = |ids: &[u64]| (0..100).filter(|id| !ids.contains(id)).collect::<Vec<u64>>();
    assert_ne!(left_out(&cycles[0]), left_out(&cycles[1]));
}

/// One record, or as many as a batch: no hang, no short batch.
#[test]
fn tiny_data_gives_whole_batches() {
    for mode in ["mode=sequential", "mode=iid", "mode=cyclic", "mode=cyclic,remainder=carry"] {
        assert_eq!(steps(&sampler(&format!("{mode},batch=1"), 1), 0..5), [0; 5]);
    }
    assert_eq!(batch(&sampler("mode=iid,batch=4", 1), u64::MAX), [0; 4]);
    assert_eq!(batch(&sampler("mode=iid,batch=4", 3), 0).len(), 4);
    for step in 0..5 {
        let mut ids = batch(&sampler("batch=3", 3), step);
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2]);
    }
}

/// 500 records, batch 32: another number of ranks from step 6 on changes nothing; 3 and 5 ranks are refused.
#[test]
fn the_number_of_ranks_may_change() {
    let of_world = |world: u64, step: u64| -> Vec<u64> {
        (0..world)
            .flat_map(|rank| {
                batch(&sampler(&format!("batch=32,seed=1,rank={rank},world={world}"), 500), step)
            })
            .collect()
    };
    for world in [1, 2, 4, 8, 16, 32] {
        for step in [0, 5, 6, 14, 15, 1000] {
            assert_eq!(of_world(world, step), of_world(1, step));
        }
    }
    for world in [3, 5] {
        let message = format!("batch=32,world={world}").parse::<Spec>().unwrap_err().to_string();
        assert!(
            message.contains("batch=32") && message.contains(&format!("world={world}")),
            "{message}"
        );
    }
}

#[test]
#[should_panic(expected = "local_batch()")]
fn a_buffer_of_another_size_is_a_bug_of_the_caller() {
    sampler("batch=4", 10).ids(0, &mut [0; 3]);
}

#[test]
fn samplers_go_between_threads() {
    fn check<T: Clone + Send + Sync + std::fmt::Debug>() {}
    check::<Sampler>();
    check::<Spec>();
}
