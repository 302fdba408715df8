//! The spec's grammar, its canonical spelling and its refusals.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use batchfs_sampler::{Mode, Remainder, Sampler, Spec, SpecError};
use proptest::prelude::*;

fn refusal(text: &str) -> String {
    text.parse::<Spec>().expect_err(text).to_string()
}

#[test]
fn left_out_keys_take_the_defaults() {
    let spec: Spec = "seed=7".parse().unwrap();
    assert_eq!(spec, Spec { seed: 7, ..Spec::default() });
    assert_eq!(Spec::default().to_string(), "mode=cyclic,batch=256,seed=0");
}

#[test]
fn keys_come_in_any_order_and_are_spelled_in_one() {
    for (text, canonical) in [
        ("world=8,rank=3,seed=7,mode=iid,batch=64", "mode=iid,batch=64,seed=7,rank=3,world=8"),
        ("remainder=carry,batch=32", "mode=cyclic,batch=32,seed=0,remainder=carry"),
        ("remainder=drop,batch=32", "mode=cyclic,batch=32,seed=0"),
        ("rank=0,world=1,batch=1", "mode=cyclic,batch=1,seed=0"),
        ("mode=sequential,seed=9", "mode=sequential,batch=256"),
        ("seed=18446744073709551615", "mode=cyclic,batch=256,seed=18446744073709551615"),
    ] {
        assert_eq!(text.parse::<Spec>().unwrap().to_string(), canonical);
    }
}

#[test]
fn refusals_name_what_is_wrong_and_what_would_be_right() {
    for (text, parts) in [
        ("", &["key=value", "mode=cyclic"][..]),
        ("mode", &["\"mode\"", "key=value"]),
        ("batch=1,", &["\"\""]),
        ("bacth=3", &["bacth", "did you mean batch?", "mode, batch, seed, remainder, rank, world"]),
        ("Mode=iid", &["Mode", "did you mean mode?"]),
        ("size=3", &["unknown key \"size\"; the keys"]),
        ("batch=3,batch=3", &["batch is given twice"]),
        ("mode=random", &["random", "sequential, iid or cyclic"]),
        ("remainder=keep", &["keep", "drop or carry"]),
        ("mode=iid,remainder=drop", &["remainder", "mode=iid", "mode=cyclic"]),
        ("mode=sequential,remainder=carry", &["remainder", "mode=sequential"]),
        ("batch=0", &["batch=0"]),
        ("world=0", &["world=0"]),
        ("rank=8,world=8", &["rank=8", "world=8", "= 7"]),
        ("rank=1", &["rank=1", "world=1"]),
        ("batch=32,world=3", &["batch=32", "world=3"]),
        ("mode=iid,batch=2305843009213693953", &["2305843009213693953", "2^61"]),
    ] {
        let message = refusal(text);
        for part in parts {
            assert!(message.contains(part), "{text:?}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn numbers_are_plain_decimals() {
    for bad in [
        "",
        "+1",
        "-1",
        "01",
        "00",
        " 1",
        "1 ",
        "1e3",
        "0x1",
        "1_000",
        "1.0",
        "٣",
        "18446744073709551616",
    ] {
        let message = refusal(&format!("seed={bad}"));
        assert!(message.contains("plain decimal"), "{message}");
    }
    assert_eq!("seed=0".parse::<Spec>().unwrap().seed, 0);
}

#[test]
fn a_spec_is_checked_against_the_data() {
    let sampler = |text: &str, len| Sampler::new(text.parse().unwrap(), len);
    assert_eq!(sampler("batch=1", 0).unwrap_err(), SpecError::EmptyData);
    for mode in ["mode=cyclic", "mode=cyclic,remainder=carry", "mode=sequential"] {
        let message = sampler(&format!("{mode},batch=4"), 3).unwrap_err().to_string();
        for part in ["batch=4", "3 records", "mode=iid"] {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
        assert!(sampler(&format!("{mode},batch=3"), 3).is_ok());
    }
    assert!(sampler("mode=iid,batch=4", 3).is_ok());
    let by_hand = Spec { remainder: Remainder::Carry, mode: Mode::Iid, ..Spec::default() };
    assert!(Sampler::new(by_hand, 1000).is_err());
}

fn specs() -> impl Strategy<Value = Spec> {
    let modes = [Mode::Sequential, Mode::Iid, Mode::Cyclic];
    (
        prop::sample::select(modes.to_vec()),
        1..=1_u64 << 40,
        1..=1_u64 << 20,
        any::<u64>(),
        any::<u64>(),
        any::<bool>(),
    )
        .prop_map(|(mode, share, world, rank, seed, carry)| Spec {
            mode,
            batch: share * world,
            seed: if mode == Mode::Sequential { 0 } else { seed },
            remainder: if carry && mode == Mode::Cyclic {
                Remainder::Carry
            } else {
                Remainder::Drop
            },
            rank: rank % world,
            world,
        })
}

proptest! {
    #[test]
    fn parsing_a_spelling_gives_the_spec_back(spec in specs()) {
        let text = spec.to_string();
        prop_assert_eq!(text.parse::<Spec>(), Ok(spec));
        prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'=' || b == b','));
    }

    #[test]
    fn any_text_is_a_spec_or_a_refusal(text in "([a-z]{1,9}=[a-z0-9]{0,21},?){0,4}|.{0,40}") {
        if let Ok(spec) = text.parse::<Spec>() {
            prop_assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
        }
    }
}
