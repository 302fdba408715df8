use super::*;

/// Records `0..len` in the cycle's order.
fn order(len: u64, seed: u64, cycle: u64) -> Vec<u64> {
    let mut out = vec![0; len as usize];
    Feistel::new(len).ids(seed, cycle, 0, &mut out);
    out
}

/// Chi-square against equal counts as a number of standard deviations from what chance gives.
fn deviation(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let chi: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn the_shape_wastes_less_than_a() {
    for len in [
        2,
        3,
        4,
        5,
        1024,
        1025,
        65_536,
        65_537,
        1 << 30,
        (1 << 30) + 1,
        1 << 62,
        (1 << 62) + 1,
        u64::MAX,
    ] {
        let Feistel { a, b, .. } = Feistel::new(len);
        let all = u128::from(a) * u128::from(b);
        assert!(all >= len.into() && all - u128::from(len) < a.into(), "{len}: {a} * {b}");
        assert!(b <= a && a <= 1 << 32);
        assert!(len > NARROW || a <= 1 << 15);
    }
}

#[test]
fn the_kernels_do_what_the_definition_says() {
    for len in [
        2,
        7,
        600,
        1025,
        200_000,
        1 << 30,
        (1 << 30) + 1,
        1 << 33,
        (1 << 62) - 5,
        1 << 62,
        (1 << 62) + 1,
        u64::MAX,
    ] {
        let shape = Feistel::new(len);
        for cycle in [0, 1, u64::MAX] {
            let keys = shape.keys(3, cycle);
            let count = len.min(700);
            for from in [0, (len - count) / 2, len - count] {
                let mut ids = vec![0; count as usize];
                shape.ids(3, cycle, from, &mut ids);
                for (&id, position) in ids.iter().zip(from..) {
                    let mut expected = keys.apply_one(&shape, position);
                    while expected >= len {
                        expected = keys.apply_one(&shape, expected);
                    }
                    assert_eq!(id, expected, "length {len}, position {position}");
                }
            }
        }
    }
}

#[test]
fn every_length_gives_a_permutation() {
    for len in (2..300).chain([1000, 1024, 1025, 5000, 65_535, 65_536, 65_537]) {
        let mut ids = order(len, len, 1);
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..len), "length {len}");
    }
}

/// Just above squares and powers of two, where most is wasted.
#[test]
fn few_positions_walk_and_not_far() {
    for len in [513, 1025, 4097, 65_537, (1 << 20) + 1, 24 * 24 + 1, 100 * 100 + 1, 1001 * 1001 + 1]
    {
        let shape = Feistel::new(len);
        let (mut passes, mut longest) = (0_u64, 0);
        let count = len.min(20_000);
        for cycle in 0..8 {
            let keys = shape.keys(1, cycle);
            for position in 0..count {
                let (mut value, mut walk) = (keys.apply_one(&shape, position), 1);
                while value >= len {
                    value = keys.apply_one(&shape, value);
                    walk += 1;
                }
                passes += walk;
                longest = longest.max(walk);
            }
        }
        let mean = passes as f64 / (8 * count) as f64;
        assert!(longest <= 6, "length {len}: {longest} passes");
        assert!(mean < 1.0 + 1.2 / (len as f64).sqrt(), "length {len}: {mean} passes on average");
    }
}

/// Forced onto few records, where a weakness of the network shows most.
#[test]
fn few_records_are_well_mixed() {
    for (len, cycles) in [(100_usize, 4000_u64), (513, 800), (1000, 400), (5000, 80)] {
        let size = len as u64;
        let b = Feistel::new(size).b as usize;
        let (mut first, mut near, mut below) = (vec![0; len], vec![0; len], vec![0; len]);
        let (mut square, mut epochs) = (vec![0; len], vec![0; len]);
        let mut before: Option<Vec<u64>> = None;
        for cycle in 0..cycles {
            let ids = order(size, 11, cycle);
            let minus = |x: u64, y: u64| ((x + size - y) % size) as usize;
            first[ids[0] as usize] += 1;
            for i in 0..len {
                let at = |shift: usize| ids[(i + shift) % len];
                near[minus(at(1), at(0))] += 1;
                below[minus(at(b), at(0))] += 1;
                square[((at(b + 1) + at(0) + 2 * size - at(b) - at(1)) % size) as usize] += 1;
                if let Some(before) = &before {
                    epochs[minus(ids[i], before[i])] += 1;
                }
            }
            before = Some(ids);
        }
        // Neighbours are never equal.
        let seen = [&first[..], &near[1..], &below[1..], &epochs[..]].map(deviation);
        assert!(seen.iter().all(|z| z.abs() < 4.5), "length {len}: {seen:.1?}");
        // Sums of four are uniform only in the limit of many records.
        if len > 500 {
            assert!(
                deviation(&square).abs() < 4.5,
                "length {len}: squares {:.1}",
                deviation(&square)
            );
        }
    }
}

/// Differences within one permutation, for digits and hashes of both widths.
#[test]
fn many_records_have_no_pattern() {
    for len in [200_000, 1_000_003, 1 << 30, (1 << 30) + 1, 1 << 33, 1 << 62] {
        let shape = Feistel::new(len);
        let minus = |x: u64, y: u64| if x >= y { x - y } else { len - (y - x) };
        let bucket = |x: u64| (u128::from(x) * 64 / u128::from(len)) as usize;
        for cycle in 0..4 {
            let mut row = vec![0; 8001];
            let mut under = vec![0; 8001];
            shape.ids(5, cycle, 77, &mut row);
            shape.ids(5, cycle, 77 + shape.b, &mut under);
            let mut counts = [[0_u64; 64]; 5];
            for i in 0..8000 {
                let (near, below) = (minus(row[i + 1], row[i]), minus(under[i], row[i]));
                counts[0][bucket(near)] += 1;
                counts[1][(near % 64) as usize] += 1;
                counts[2][bucket(below)] += 1;
                counts[3][(below % 64) as usize] += 1;
                counts[4][bucket(minus(minus(under[i + 1], under[i]), near))] += 1;
            }
            let seen = counts.map(|counts| deviation(&counts));
            assert!(seen.iter().all(|z| z.abs() < 4.5), "length {len}, cycle {cycle}: {seen:.1?}");
        }
    }
}

/// The worked example in the document: key, words and every round.
#[test]
fn the_document_shows_what_happens() {
    let document = include_str!("../../docs/order.md");
    let mut rng = chacha(42, KEY, 0, 0);
    let key: String = rng.get_seed().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(document.contains(&key), "{key}");
    for _ in 0..2 {
        let words: Vec<String> = (0..8).map(|_| format!("{:08x}", rng.next_u32())).collect();
        assert!(document.contains(&words.join(" ")), "{}", words.join(" "));
    }
    let shape = Feistel::new(2500);
    let keys = shape.keys(42, 0);
    let Keys::Narrow(rounds) = &keys else { panic!("2500 records take 16 bits") };
    let mut digits = [0, 17];
    for (index, &(multiplier, offset)) in rounds.iter().enumerate() {
        let (to, from) = (index % 2, (index + 1) % 2);
        let x = digits[from];
        let t = (x * u64::from(multiplier) + u64::from(offset)) % 65_536;
        let u = (t * t / 65_536 + t * t) % 65_536;
        let add = u * 50 / 65_536;
        digits[to] = (digits[to] + add) % 50;
        let [left, right] = digits;
        let row = format!(
            "| {index} | {multiplier} | {offset} | {x} | {t} | {u} | {add} | {left} | {right} |"
        );
        assert!(document.contains(&row), "{row}");
    }
    assert_eq!((digits[0] * 50 + digits[1], keys.apply_one(&shape, 17)), (803, 803));
}
