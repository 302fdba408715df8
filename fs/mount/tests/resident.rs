//! Batches made of the pages of records that stay in memory. Needs udmabuf: `tests/guest/run.py` runs it
//! on a kernel that has it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batchfs_batch::{Dataset, Face, Item, Key, NamedStream, Spec, View};
use batchfs_dmabuf::{Access, DmaBuf, Error, Range, Udmabuf};
use batchfs_region::{Arena, Backing, Config};
use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};

/// The device; `None` where the test is to be skipped.
fn udmabuf() -> Option<Udmabuf> {
    match Udmabuf::open() {
        Ok(device) => Some(device),
        Err(e) if std::env::var_os("BATCHFS_GUEST").is_some() => panic!("{e}"),
        Err(e) => {
            eprintln!("skipped: {e}");
            None
        }
    }
}

fn view(folder: &Path, shape: &[u64], records: u64, spec: &str) -> View {
    let path = folder.join("images");
    let item = shape.iter().product::<u64>();
    let schema = Schema::dense(DType::UInt8, shape);
    let mut writer = StoreWriter::create(&path, schema, WriteOptions::default()).unwrap();
    for record in 0..records {
        let bytes: Vec<u8> = (0..item).map(|i| (i / 7 * 3 + record * 31) as u8).collect();
        writer.append(&bytes).unwrap();
    }
    writer.finish().unwrap();
    let stream = Arc::new(Store::open(&path, OpenOptions::default()).unwrap());
    let named = NamedStream { name: "images".to_owned(), stream };
    let mut data = Dataset::new(folder, vec![named]).unwrap();
    data.make_resident(0).unwrap();
    assert!(data.notes().is_empty());
    View::new(0, "", Arc::new(data), spec.parse::<Spec>().unwrap()).unwrap()
}

fn key(step: u64) -> Key {
    Key { view: 0, item: Item::Batch(0), face: Face::Bare, number: step }
}

fn zero_copy(device: &Udmabuf, view: &View, step: u64) -> Result<DmaBuf, Error> {
    let resident = view.dataset().resident(0).unwrap();
    let pieces = resident.pieces(&view.plan(key(step)).unwrap()).unwrap();
    let memfd = resident.file();
    let ranges: Vec<_> =
        pieces.iter().map(|p| Range { memfd, offset: p.offset, len: p.len }).collect();
    device.create_list(&ranges)
}

fn gathered(view: &View, step: u64, out: &mut [u8]) {
    let stream = &view.dataset().stream(0).unwrap().stream;
    stream.gather(&view.plan(key(step)).unwrap(), out).unwrap();
}

#[test]
fn a_batch_of_the_records_own_pages_is_the_gathered_batch() {
    let Some(device) = udmabuf() else { return };
    for (shape, spec) in [
        (&[32, 32, 4][..], "batch=64,seed=3"),
        (&[51, 27, 3], "batch=64,seed=4"),
        (&[51, 27, 3], "batch=64,mode=sequential"),
        (&[51, 27, 3], "batch=64,mode=iid"),
        (&[4097], "batch=1"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let view = view(folder.path(), shape, 100, spec);
        let item = shape.iter().product::<u64>() as usize;
        let batch = view.local_batch() as usize;
        let stride = view.dataset().resident(0).unwrap().stride() as usize;
        let mut wanted = vec![0; item * batch];
        for step in [0, 1, 77] {
            let buffer = zero_copy(&device, &view, step).unwrap();
            assert_eq!(buffer.len().unwrap(), (batch * stride) as u64);
            gathered(&view, step, &mut wanted);
            let map = buffer.map().unwrap();
            let mut seen = vec![0; item];
            buffer.sync_start(Access::Read).unwrap();
            for (i, wanted) in wanted.chunks_exact(item).enumerate() {
                map.read(i * stride, &mut seen).unwrap();
                assert!(seen == wanted, "{spec}, step {step}, row {i}");
            }
            buffer.sync_end(Access::Read).unwrap();
        }
    }
}

#[test]
fn a_batch_of_too_many_pieces_says_what_the_limit_is() {
    let Some(device) = udmabuf() else { return };
    let most = device.limits().ranges.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("batch={},mode=iid", 2 * most);
    let view = view(folder.path(), &[4096], 2 * most, &spec);
    let refused = zero_copy(&device, &view, 0).unwrap_err();
    assert!(matches!(refused, Error::TooManyRanges { limit, .. } if limit == most), "{refused}");
}

/// Prints how long it takes to make a dma-buf of an image batch out of its records' pages, and how
/// long to gather it; asserts no time.
#[test]
fn zero_copy_beside_copying() {
    let Some(device) = udmabuf() else { return };
    let folder = tempfile::tempdir().unwrap();
    let view = view(folder.path(), &[224, 224, 3], 300, "batch=256,seed=1");
    let (item, batch) = (224 * 224 * 3, 256);
    let stride = view.dataset().resident(0).unwrap().stride() as usize;
    let arena = Arena::new(&Config { limit: 1 << 30, backing: Some(Backing::Memfd) }).unwrap();
    let zero = median(|step| drop(zero_copy(&device, &view, step).unwrap()));
    let copied = median(|step| {
        let mut region = arena.alloc(item * batch, "test".into()).unwrap();
        gathered(&view, step, region.bytes_mut().unwrap());
    });
    let read = median(|step| {
        let map = zero_copy(&device, &view, step).unwrap().map().unwrap();
        let mut row = vec![0; item];
        (0..batch).for_each(|i| map.read(i * stride, &mut row).unwrap());
    });
    println!(
        "figure: dma-buf of an image batch (256 x 147 KiB): of its records' own pages {zero:?}, gathered \
         into a kept region {copied:?}, ratio {:.1}; made and read by the processor {read:?}",
        copied.as_secs_f64() / zero.as_secs_f64()
    );
}

fn median(mut work: impl FnMut(u64)) -> Duration {
    let mut times: Vec<_> = (0..7)
        .map(|step| {
            let since = Instant::now();
            work(step);
            since.elapsed()
        })
        .collect();
    times.sort();
    times[3]
}
