//! Ragged and compressed records: what is written is read, and what cannot be is said so.
#![allow(clippy::unwrap_used)]
mod common;

use batchfs_store::{
    Codec, DType, Error, OpenOptions, Schema, Store, StoreWriter, Stream, Verify, WriteOptions,
};
use common::{dictionary, gather_any, noise, options, ragged, read, with_codec};
use proptest::prelude::*;

fn any_codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::ALL)
}

fn any_dictionary() -> Vec<u8> {
    let text: Vec<Vec<u8>> =
        (0..64).map(|i| noise(256, i % 8).iter().map(|b| b & 3).collect()).collect();
    dictionary(&text.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ragged_records_come_back_whatever_they_are(
        dtype in prop::sample::select(DType::ALL),
        (ndim, most) in prop::sample::select(&[(1, 400u64), (1, 3), (2, 20), (3, 7), (5, 3), (64, 1)][..]),
        records in 0usize..200,
        cut in 1usize..80,
        codec in any_codec(),
        level in -3i32..10,
        shards in 1u32..9,
        stripe_log2 in 0u32..7,
        seed in any::<u32>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        verify in prop::sample::select(&[Verify::First, Verify::Always, Verify::Never][..]),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let all = ragged(records, ndim, most, dtype.size(), u64::from(seed));
        let options = with_codec(codec, &any_dictionary(), options(shards, 1 << stripe_log2));
        let schema = Schema::ragged(dtype, ndim as u32);
        let mut writer =
            StoreWriter::create(&dest, schema.clone(), WriteOptions { level, ..options }).unwrap();
        all.append(&mut writer, cut);
        prop_assert_eq!(writer.records(), records as u64);
        writer.finish().unwrap();

        let store = Store::open(&dest, OpenOptions { verify }).unwrap();
        prop_assert_eq!((store.schema(), store.len(), store.codec()), (&schema, records as u64, codec));
        prop_assert_eq!(store.payload_bytes(), all.values.len() as u64);
        prop_assert!(store.stored_bytes() <= store.payload_bytes());
        let ids: Vec<u64> = match records {
            0 => vec![],
            n => picks.iter().map(|p| p.index(n) as u64).collect(),
        };
        let mut shapes = vec![0; ids.len() * ndim];
        store.shapes(&ids, &mut shapes).unwrap();
        let want: Vec<u64> =
            ids.iter().flat_map(|i| &all.shapes[*i as usize * ndim..][..ndim]).copied().collect();
        prop_assert_eq!(shapes, want);
        for _ in 0..2 {
            prop_assert_eq!(&gather_any(&store, &ids).unwrap(), &all.records(&ids));
        }
        prop_assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
    }

    #[test]
    fn dense_records_come_back_whatever_the_codec(
        dtype in prop::sample::select(DType::ALL),
        shape in prop::collection::vec(1u64..9, 0..4),
        cuts in prop::collection::vec(0usize..40, 0..5),
        codec in any_codec(),
        shards in 1u32..9,
        stripe_log2 in 0u32..5,
        seed in any::<u64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let schema = Schema::dense(dtype, shape);
        let item = schema.item_bytes().unwrap() as usize;
        let n: usize = cuts.iter().sum();
        let mut data = noise(n * item, seed);
        data.chunks_mut(item * 3).step_by(2).for_each(|part| part.iter_mut().for_each(|b| *b &= 1));
        let options = with_codec(codec, &any_dictionary(), options(shards, 1 << stripe_log2));
        let mut writer = StoreWriter::create(&dest, schema, options).unwrap();
        let mut rest = data.as_slice();
        for cut in cuts {
            let (now, later) = rest.split_at(cut * item);
            writer.append(now).unwrap();
            rest = later;
        }
        writer.finish().unwrap();
        prop_assert_eq!(&read(&dest, Verify::First).unwrap(), &data);
        prop_assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
    }
}

#[test]
fn large_appends_go_over_chunks_threads_and_index_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let all = ragged(70_000, 1, 200, 4, 7);
    for codec in Codec::ALL {
        let dest = dir.path().join(codec.name());
        all.write(&dest, DType::Int32, with_codec(*codec, &any_dictionary(), options(4, 256)));
        assert!(read(&dest, Verify::First).unwrap() == all.values, "{codec:?}");
        let done = std::sync::atomic::AtomicU64::new(0);
        let report = batchfs_store::verify(&dest, &|n| {
            done.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(report.unwrap().is_whole());
        assert_eq!(done.into_inner(), all.values.len() as u64);
    }
}

#[test]
fn any_number_of_empty_records_may_come_before_others() {
    let dir = tempfile::tempdir().unwrap();
    for codec in [Codec::Raw, Codec::Zstd] {
        let dest = dir.path().join(codec.name());
        let mut shapes = vec![0; 9000];
        shapes.extend([300_000, 0, 200_000]);
        let values = noise(500_000, 1);
        let schema = Schema::ragged(DType::UInt8, 1);
        let options = with_codec(codec, &[], options(2, 1));
        let mut writer = StoreWriter::create(&dest, schema, options).unwrap();
        writer.append_ragged(&values, &shapes).unwrap();
        writer.append_ragged(&[], &[]).unwrap();
        writer.append_ragged(&[], &[0; 3]).unwrap();
        writer.finish().unwrap();
        assert!(read(&dest, Verify::First).unwrap() == values);
        assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
    }
}

#[test]
fn the_same_records_make_the_same_bytes_however_they_are_appended() {
    let dir = tempfile::tempdir().unwrap();
    let all = ragged(3000, 2, 30, 2, 1);
    let files = |dest: &std::path::Path| {
        let mut files: Vec<_> = std::fs::read_dir(dest)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| (p.file_name().unwrap().to_owned(), std::fs::read(&p).unwrap()))
            .collect();
        files.sort();
        files
    };
    for codec in Codec::ALL {
        let write = |cut: usize| {
            let dest = dir.path().join(format!("{}-{cut}", codec.name()));
            let options = with_codec(*codec, &any_dictionary(), options(3, 16));
            let schema = Schema::ragged(DType::Int16, 2);
            let mut writer = StoreWriter::create(&dest, schema, options).unwrap();
            all.append(&mut writer, cut);
            writer.finish().unwrap();
            files(&dest)
        };
        let at_once = write(usize::MAX);
        assert!(write(1) == at_once && write(700) == at_once, "{codec:?}");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let all = ragged(10, 2, 6, 2, 5);
    all.write(&dest, DType::Int16, options(2, 4));
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let whole = all.values.len();
    let ids: Vec<u64> = (0..10).collect();
    for room in [0, whole - 1, whole + 1] {
        let e = store.gather(&ids, &mut vec![0; room]).unwrap_err();
        assert!(matches!(e, Error::Invalid { .. }), "{e}");
        assert!(e.to_string().contains("do not make"), "{e}");
    }
    for ids in [&[10][..], &[0, u64::MAX]] {
        let e = store.gather(ids, &mut [0; 8]).unwrap_err();
        assert!(matches!(e, Error::NoSuchRecord { len: 10, .. }), "{e}");
        let e = store.elements(ids, &mut vec![0; ids.len()]).unwrap_err();
        assert!(matches!(e, Error::NoSuchRecord { len: 10, .. }), "{e}");
    }
    assert!(store.elements(&ids, &mut [0; 9]).is_err());
    assert!(store.shapes(&ids, &mut [0; 10]).is_err());
    store.shapes(&ids, &mut [0; 20]).unwrap();
    assert_eq!(store.schema().item_bytes(), None);
}

#[test]
fn dense_streams_tell_sizes_and_shapes_as_well() {
    let dir = tempfile::tempdir().unwrap();
    for (codec, shape) in
        [(Codec::Raw, vec![2, 3]), (Codec::Zstd, vec![2, 3]), (Codec::Raw, vec![])]
    {
        let dest = dir.path().join(format!("{}{}", codec.name(), shape.len()));
        let schema = Schema::dense(DType::Int16, shape.clone());
        let data = noise(5 * schema.item_bytes().unwrap() as usize, 1);
        common::write(&dest, schema, with_codec(codec, &[], options(2, 1)), &data);
        let store = Store::open(&dest, OpenOptions::default()).unwrap();
        let (mut elements, mut shapes) = ([0; 2], vec![0; 2 * shape.len()]);
        store.elements(&[4, 0], &mut elements).unwrap();
        store.shapes(&[4, 0], &mut shapes).unwrap();
        assert_eq!(elements, [shape.iter().product::<u64>(); 2]);
        assert_eq!(shapes, [shape.clone(), shape].concat());
        assert!(store.elements(&[5], &mut [0]).is_err());
    }
}

#[test]
fn writers_refuse_what_no_store_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let refused = |schema: Schema, options: WriteOptions| {
        StoreWriter::create(&dest, schema, options).err().unwrap().to_string()
    };
    let one = || Schema::ragged(DType::UInt8, 1);
    let with = |codec, dictionary, level| WriteOptions {
        codec,
        dictionary,
        level,
        ..WriteOptions::default()
    };
    let said = refused(Schema::ragged(DType::UInt8, 0), WriteOptions::default());
    assert!(said.contains("0 axes") && said.contains("[]"), "{said}");
    assert!(refused(Schema::ragged(DType::UInt8, 65), WriteOptions::default()).contains("1..=64"));
    assert!(refused(one(), with(Codec::ZstdDict, None, 3)).contains("batchfs train-dict"));
    assert!(refused(one(), with(Codec::Zstd, Some(any_dictionary()), 3)).contains("takes no"));
    assert!(refused(one(), with(Codec::ZstdDict, Some(vec![1; 999]), 3)).contains("not a zstd"));
    assert!(refused(one(), with(Codec::ZstdDict, Some(vec![]), 3)).contains("not a zstd"));
    let mut broken = any_dictionary();
    broken[8..100].fill(0xff);
    assert!(refused(one(), with(Codec::ZstdDict, Some(broken), 3)).contains("not a zstd"));
    assert!(refused(one(), with(Codec::Zstd, None, 23)).contains("level 23"));
    assert!(!dest.exists());

    let mut writer =
        StoreWriter::create(&dest, Schema::ragged(DType::Int32, 2), options(2, 1)).unwrap();
    let mut refused = |values: &[u8], shapes: &[u64], says: &str| {
        let e = writer.append_ragged(values, shapes).unwrap_err();
        assert!(matches!(e, Error::Invalid { .. }) && e.to_string().contains(says), "{e}");
    };
    refused(&[0; 8], &[1, 1], "the shapes make 4 bytes, but there are 8");
    refused(&[0; 8], &[1, 1, 1], "3 numbers are not a whole number of shapes of 2");
    refused(&[0; 8], &[2, 1, 1 << 15, 1 << 15], "record 1 of the append, of shape [32768, 32768]");
    refused(&[0; 8], &[2, 1, 1 << 40, 0], "axis of 1099511627776");
    refused(&[], &[u32::MAX.into(), u32::MAX.into()], "2 GiB");
    let e = writer.append(&[0; 8]).unwrap_err().to_string();
    assert!(e.contains("append_ragged"), "{e}");
    writer.append_ragged(&[7; 8], &[2, 1, 0, u32::MAX.into()]).unwrap();
    writer.finish().unwrap();
    assert_eq!(read(&dest, Verify::First).unwrap(), [7; 8]);

    let dense = dir.path().join("dense");
    let mut writer =
        StoreWriter::create(&dense, Schema::dense(DType::Int8, []), options(1, 1)).unwrap();
    assert!(writer.append_ragged(&[1], &[1]).unwrap_err().to_string().contains("use append"));
}

#[test]
fn records_that_do_not_shrink_are_kept_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data = noise(100 * 64, 3);
    let options = with_codec(Codec::Zstd, &[], options(1, 1));
    common::write(&dest, Schema::dense(DType::UInt8, [64]), options, &data);
    assert_eq!(std::fs::read(dest.join("data-000.bin")).unwrap(), data);
    assert_eq!(read(&dest, Verify::Always).unwrap(), data);
}

#[test]
#[ignore = "heavy; needs some 9 GiB of memory"]
fn the_largest_record_there_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let size = 2 << 30;
    let options = with_codec(Codec::Zstd, &[], options(2, 1));
    let mut writer = StoreWriter::create(&dest, Schema::ragged(DType::UInt8, 1), options).unwrap();
    let mut values = vec![7; size + 5];
    writer.append_ragged(&values, &[3, size as u64, 2]).unwrap();
    writer.finish().unwrap();
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let want = std::mem::take(&mut values);
    assert!(gather_any(&store, &[1, 0, 2]).unwrap() == want);
    assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
}
