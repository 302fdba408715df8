//! What is written is read, whatever its type, shape and order.
#![allow(clippy::unwrap_used)]
mod common;

use batchfs_store::{
    Codec, DType, Error, OpenOptions, Schema, Store, StoreWriter, Stream, Verify, WriteOptions,
};
use common::{gather, leap_day, noise, options, read, write};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_appended_is_gathered(
        dtype in prop::sample::select(DType::ALL),
        shape in prop::collection::vec(1u64..5, 0..4),
        cuts in prop::collection::vec(0usize..40, 0..5),
        shards in 1u32..9,
        stripe_log2 in 0u32..5,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        verify in prop::sample::select(&[Verify::First, Verify::Always, Verify::Never][..]),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let schema = Schema::dense(dtype, shape);
        let item = schema.item_bytes().unwrap() as usize;
        let n: usize = cuts.iter().sum();
        let data = noise(n * item, n as u64);

        let mut writer =
            StoreWriter::create(&dest, schema.clone(), options(shards, 1 << stripe_log2)).unwrap();
        let mut rest = data.as_slice();
        for cut in cuts {
            let (now, later) = rest.split_at(cut * item);
            writer.append(now).unwrap();
            rest = later;
        }
        prop_assert_eq!(writer.records(), n as u64);
        writer.finish().unwrap();

        let store = Store::open(&dest, OpenOptions { verify }).unwrap();
        prop_assert_eq!(store.schema(), &schema);
        prop_assert_eq!(store.len(), n as u64);
        prop_assert_eq!((store.shards(), store.stripe()), (shards, 1 << stripe_log2));
        let ids: Vec<u64> = if n == 0 { vec![] } else { picks.iter().map(|p| p.index(n) as u64).collect() };
        let want: Vec<u8> =
            ids.iter().flat_map(|i| &data[*i as usize * item..][..item]).copied().collect();
        for _ in 0..2 {
            prop_assert_eq!(&gather(&store, &ids).unwrap(), &want);
        }
        prop_assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
    }
}

#[test]
fn a_large_append_goes_over_threads_and_index_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data = noise(20_000 * 32, 5);
    write(&dest, Schema::dense(DType::Int32, [8]), options(4, 64), &data);
    assert_eq!(read(&dest, Verify::First).unwrap(), data);
    let done = std::sync::atomic::AtomicU64::new(0);
    let report = batchfs_store::verify(&dest, &|n| {
        done.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    });
    let report = report.unwrap();
    assert!(report.is_whole());
    assert_eq!((report.records, report.bytes), (20_000, data.len() as u64));
    assert_eq!(done.into_inner(), data.len() as u64);
}

#[test]
fn a_store_tells_about_itself() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::Float32, [2]), options(3, 2), &[7; 80]);
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    assert_eq!((store.created(), store.modified()), (leap_day(), leap_day()));
    assert_eq!((store.codec(), store.writer()), (Codec::Raw, "a test"));
    assert_eq!((store.payload_bytes(), store.origin()), (80, dest.as_path()));
}

#[test]
fn a_store_may_have_no_records() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::Bool, []), WriteOptions::default(), &[]);
    assert!(read(&dest, Verify::First).unwrap().is_empty());
    assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
}

#[test]
fn requests_that_do_not_fit_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::Int16, [3]), options(2, 1), &[1; 30]);
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let e = store.gather(&[0, 5], &mut [0; 12]).unwrap_err();
    assert!(matches!(e, Error::NoSuchRecord { record: 5, len: 5, .. }), "{e}");
    let e = store.gather(&[0, u64::MAX], &mut [0; 12]).unwrap_err();
    assert!(matches!(e, Error::NoSuchRecord { record: u64::MAX, .. }), "{e}");
    let e = store.gather(&[0, 1], &mut [0; 11]).unwrap_err();
    assert!(e.to_string().contains("2 records of 6 bytes"), "{e}");
}

#[test]
fn writers_refuse_what_no_store_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let refused = |schema: Schema, options: WriteOptions| {
        StoreWriter::create(&dest, schema, options).err().unwrap().to_string()
    };
    let one = || Schema::dense(DType::UInt8, []);
    let default = WriteOptions::default;
    assert!(refused(Schema::dense(DType::Int8, [3, 0]), default()).contains("no bytes"));
    assert!(refused(Schema::dense(DType::Int8, [1 << 31, 2]), default()).contains("2 GiB"));
    assert!(refused(Schema::dense(DType::Int64, [1 << 63, 9]), default()).contains("2 GiB"));
    assert!(refused(one(), WriteOptions { shards: 0, ..default() }).contains("1..=255"));
    assert!(refused(one(), WriteOptions { shards: 256, ..default() }).contains("1..=255"));
    assert!(refused(one(), WriteOptions { stripe: Some(3), ..default() }).contains("power of two"));
    assert!(refused(one(), WriteOptions { stripe: Some(1 << 63), ..default() }).contains("fit"));

    let mut writer =
        StoreWriter::create(&dest, Schema::dense(DType::Int32, [2]), default()).unwrap();
    assert!(writer.append(&[0; 12]).unwrap_err().to_string().contains("records of 8 bytes"));
    writer.append(&[0; 16]).unwrap();
    writer.finish().unwrap();
    assert_eq!(read(&dest, Verify::First).unwrap(), [0; 16]);
}

#[test]
fn many_axes_and_255_shards() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data = noise(1000, 3);
    write(&dest, Schema::dense(DType::UInt8, vec![1; 2000]), options(255, 1), &data);
    assert_eq!(read(&dest, Verify::Always).unwrap(), data);
}
