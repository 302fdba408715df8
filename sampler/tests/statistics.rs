//! The quality of the order, with fixed seeds: what passes once passes always.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use batchfs_sampler::Sampler;

/// Chi-square against equal counts as a number of standard deviations from what chance gives.
fn deviation(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let chi: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

fn whole_cycle(len: u64, seed: u64) -> Sampler {
    Sampler::new(format!("batch={len},seed={seed}").parse().unwrap(), len).unwrap()
}

/// The rank of a permutation among all in lexicographic order.
fn rank(ids: &[u64]) -> usize {
    (0..ids.len()).fold(0, |rank, i| {
        rank * (ids.len() - i) + ids[i + 1..].iter().filter(|&&id| id < ids[i]).count()
    })
}

fn small(seeds: u64) {
    for len in [1, 2, 3, 5, 6, 7, 8, 9, 100_usize] {
        let orders = if len <= 6 { (1..=len).product() } else { 1 };
        let (mut seen, mut next) = (vec![0; orders], vec![0; orders]);
        let mut first = vec![0; len];
        let mut gaps = vec![0; len];
        let mut epochs = vec![0; len];
        for seed in 0..seeds {
            let sampler = whole_cycle(len as u64, seed);
            let (mut ids, mut after) = (vec![0; len], vec![0; len]);
            sampler.ids(0, &mut ids);
            sampler.ids(1, &mut after);
            if orders > 1 {
                seen[rank(&ids)] += 1;
                next[rank(&after)] += 1;
            }
            first[ids.iter().position(|&id| id == 0).unwrap()] += 1;
            for pair in ids.windows(2) {
                gaps[((pair[1] + len as u64 - pair[0]) % len as u64) as usize] += 1;
            }
            for (x, y) in ids.iter().zip(&after) {
                epochs[((y + len as u64 - x) % len as u64) as usize] += 1;
            }
        }
        if len == 1 {
            continue;
        }
        let within = |what: &str, counts: &[u64]| {
            assert!(
                counts.iter().all(|&count| count > 0),
                "length {len}: {what} never has some value"
            );
            // Chi-square with one degree of freedom has a long tail.
            let z = deviation(counts);
            assert!(z < 6.0, "length {len}: {what} {z:.1}");
        };
        if orders > 1 {
            within("orders", &seen);
            within("orders of the next cycle", &next);
        }
        within("where record 0 lands", &first);
        within("differences between cycles", &epochs);
        if len > 2 {
            within("gaps", &gaps[1..]);
        }
    }
}

#[test]
fn few_records_come_in_every_order() {
    small(20_000);
}

#[test]
#[ignore = "heavy; run with --full"]
fn few_records_come_in_every_order_over_many_seeds() {
    small(400_000);
}

fn correlation(x: &[u64], y: &[u64]) -> f64 {
    let mean = (x.len() as f64 - 1.0) / 2.0;
    let product = |x: &[u64], y: &[u64]| -> f64 {
        x.iter().zip(y).map(|(&x, &y)| (x as f64 - mean) * (y as f64 - mean)).sum()
    };
    product(x, y) / product(x, x)
}

fn large(seeds: u64) {
    for len in [513_u64, 65_535, 65_536, 65_537] {
        let places = 64;
        let bucket = |id: u64| (id * places / len) as usize;
        let (mut first, mut gaps) = (vec![0; places as usize], vec![0; places as usize]);
        for seed in 0..seeds {
            let sampler = whole_cycle(len, seed);
            let (mut ids, mut after) = (vec![0; len as usize], vec![0; len as usize]);
            sampler.ids(0, &mut ids);
            sampler.ids(1, &mut after);
            let mut exact = vec![0_u32; len as usize];
            for pair in ids.windows(2) {
                let gap = (pair[1] + len - pair[0]) % len;
                gaps[bucket(gap)] += 1;
                exact[gap as usize] += 1;
            }
            // Poisson with mean 1: 14 of one kind in 65,536 kinds is one in a million.
            let most = exact.iter().max().copied().unwrap_or(0);
            assert!(most < 14, "length {len}, seed {seed}: one gap comes {most} times");
            first[bucket(ids.iter().position(|&id| id == 0).unwrap() as u64)] += 1;
            let bound = 4.5 / (len as f64).sqrt();
            let in_place: Vec<u64> = (0..len).collect();
            for (x, y) in [
                (&ids[..], &after[..]),
                (&ids[..], &in_place[..]),
                (&ids[1..], &ids[..ids.len() - 1]),
            ] {
                let r = correlation(x, y);
                assert!(r.abs() < bound, "length {len}, seed {seed}: correlation {r:.4}");
            }
            let same = ids.iter().zip(&after).filter(|(x, y)| x == y).count();
            assert!(same < 14, "length {len}, seed {seed}: {same} records keep their place");
        }
        // Of 513 records the buckets have 8 or 9.
        if len > 1000 {
            assert!(deviation(&gaps) < 4.5, "length {len}: gaps {:.1}", deviation(&gaps));
        }
        if seeds > 500 {
            assert!(
                deviation(&first) < 4.5,
                "length {len}: where record 0 lands {:.1}",
                deviation(&first)
            );
        }
    }
}

#[test]
fn many_records_have_no_pattern() {
    large(6);
}

#[test]
#[ignore = "heavy; run with --full"]
fn many_records_have_no_pattern_over_many_seeds() {
    large(1000);
}

/// Lengths that do not divide 2^32 or 2^64; 2^63 + 1 rejects almost every second draw.
#[test]
fn iid_is_uniform() {
    for (len, places) in [
        (2, 2),
        (3, 3),
        (1000, 1000),
        ((1 << 24) - 1, 96),
        ((1 << 24) + 1, 96),
        ((1 << 63) + 1, 96),
        (u64::MAX, 96),
    ] {
        let bucket = |id: u64| (u128::from(id) * places as u128 / u128::from(len)) as usize;
        let sampler = Sampler::new("mode=iid,batch=500,seed=5".parse().unwrap(), len).unwrap();
        let mut counts = vec![0; places];
        let mut pairs = vec![0; 64];
        let mut ids = vec![0; 500];
        let mut before = 0;
        for step in 0..400 {
            sampler.ids(step, &mut ids);
            for &id in &ids {
                counts[bucket(id)] += 1;
                if len > 1000 {
                    pairs[(bucket(before) / 12) * 8 + bucket(id) / 12] += 1;
                }
                before = id;
            }
        }
        assert!(deviation(&counts) < 4.5, "length {len}: {:.1}", deviation(&counts));
        assert!(
            len <= 1000 || deviation(&pairs) < 4.5,
            "length {len}: pairs {:.1}",
            deviation(&pairs)
        );
    }
}

#[test]
fn seeds_and_steps_do_not_repeat_each_other() {
    for mode in ["iid", "cyclic"] {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..100_u64 {
            let sampler =
                Sampler::new(format!("mode={mode},batch=64,seed={seed}").parse().unwrap(), 10_000)
                    .unwrap();
            for step in (0..100).chain(u64::MAX - 10..u64::MAX) {
                let mut ids = [0; 64];
                sampler.ids(step, &mut ids);
                assert!(seen.insert(ids), "{mode}: seed {seed} step {step} came before");
            }
        }
    }
}
