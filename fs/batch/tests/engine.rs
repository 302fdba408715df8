//! The engine over a real store: right bytes, the budget, prefetch, errors.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use batchfs_batch::{Batch, Dataset, Engine, Error, Face, Item, Key, NamedStream, Options, View};
use batchfs_region::{Arena, Config, page_size};
use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};

const RECORDS: u64 = 1000;
const ITEM: usize = 48;

/// Record `i` holds bytes that no other one has.
fn record(i: u64) -> Vec<u8> {
    (0..ITEM as u64).map(|j| (i * 31 + j * 7 + (i >> 3)) as u8).collect()
}

fn write(path: &Path) {
    let schema = Schema::dense(DType::UInt8, [3, 16]);
    let mut writer = StoreWriter::create(path, schema, WriteOptions::default()).unwrap();
    let all: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    writer.append(&all).unwrap();
    writer.finish().unwrap();
}

fn view(path: &Path, spec: &str) -> Arc<View> {
    let stream = Arc::new(Store::open(path, OpenOptions::default()).unwrap());
    let named = NamedStream { name: "x".to_owned(), stream };
    let data = Arc::new(Dataset::new(path, vec![named]).unwrap());
    Arc::new(View::new(0, "", data, spec.parse::<batchfs_batch::Spec>().unwrap()).unwrap())
}

fn engine(limit: u64) -> Engine {
    engine_with(limit, 2)
}

fn engine_with(limit: u64, threads: usize) -> Engine {
    let arena = Arena::new(&Config { limit, backing: None }).unwrap();
    Engine::new(arena, &Options { threads }).unwrap()
}

fn batch(step: u64) -> Key {
    Key { view: 0, item: Item::Batch(0), face: Face::Bare, number: step }
}

fn expected(view: &View, step: u64) -> Vec<u8> {
    view.plan(batch(step)).unwrap().into_iter().flat_map(record).collect()
}

fn bytes(batch: &Batch) -> &[u8] {
    batch.region().bytes().unwrap()
}

/// Waits for what another thread does; fails when it never comes.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_item_and_face_has_its_bytes() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=64,seed=3");
    let engine = engine(1 << 20);
    for step in [0, 1, 2, 3, 14, 15, 16, 1 << 50, u64::MAX] {
        let bare = engine.wait(batch(step), &view).unwrap();
        assert_eq!(bytes(&bare), expected(&view, step), "step {step}");
        let npy = engine.wait(Key { face: Face::Npy, ..batch(step) }, &view).unwrap();
        let (bare, npy) = (bytes(&bare), bytes(&npy));
        assert_eq!(npy.len(), 4096 + bare.len());
        assert!(npy.starts_with(b"\x93NUMPY\x01\x00"));
        assert_eq!(npy[4096..], bare[..]);
        let index = Key { item: Item::Index, ..batch(step) };
        let ids: Vec<u8> =
            view.plan(index).unwrap().iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(bytes(&engine.wait(index, &view).unwrap()), ids);
    }
    for id in [0, 1, 999] {
        let key = Key { item: Item::Record(0), ..batch(id) };
        assert_eq!(bytes(&engine.wait(key, &view).unwrap()), record(id));
    }
    let none = engine.wait(Key { item: Item::Record(0), ..batch(1000) }, &view);
    let said = none.err().unwrap().to_string();
    assert_eq!(said, "x/record/1000: there is no such record; there are 1000, numbered from 0");
}

#[test]
fn steps_in_order_are_found_ready() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=10");
    // With one thread they are filled in the order in which they were queued.
    let engine = engine_with(1 << 20, 1);
    let ready = || engine.metrics().prefetches.load(Ordering::Relaxed);
    for step in 0..50 {
        if step > 0 {
            // The step after the last opened one at least.
            until("the next step is filled ahead", || ready() >= step);
        }
        assert_eq!(bytes(&engine.wait(batch(step), &view).unwrap()), expected(&view, step));
    }
    assert_eq!(engine.metrics().hits.load(Ordering::Relaxed), 49);
    assert_eq!(engine.metrics().misses.load(Ordering::Relaxed), 1);
}

#[test]
fn readers_who_keep_everything_are_named_and_one_who_lets_go_helps() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    // 85 records of 48 bytes: a page each.
    let view = view(&path, "batch=85");
    let limit = 3 * page_size();
    let engine = engine(limit);
    let mut held: Vec<_> = [0, 100, 200].map(|s| engine.wait(batch(s), &view).unwrap()).into();
    let refused = engine.wait(batch(300), &view).err().unwrap();
    let said = refused.to_string();
    assert!(
        matches!(*refused, Error::NoRoom { used, limit: l, .. } if used == limit && l == limit),
        "{said}"
    );
    for name in ["x/batch/300", "x/batch/0", "x/batch/100", "x/batch/200", "--memory"] {
        assert!(said.contains(name), "{name} is not in: {said}");
    }
    let waits = || engine.metrics().waits.load(Ordering::Relaxed);
    let before = waits();
    let (tell, told) = std::sync::mpsc::channel();
    engine.open(batch(400), &view, move |made| tell.send(made).unwrap());
    until("the open waits for room", || waits() > before);
    held.pop();
    let made = told.recv().unwrap().unwrap();
    assert_eq!(bytes(&made), expected(&view, 400));
    assert_eq!(bytes(&held[0]), expected(&view, 0), "what is held does not change");
    assert_eq!(engine.open_handles(), 3);
    let large = engine.wait(Key { face: Face::Npy, ..batch(0) }, &view);
    assert!(large.is_err(), "no room beside those that are held");
    drop((held, made));
    assert_eq!(engine.open_handles(), 0);
}

#[test]
fn a_batch_larger_than_the_budget_is_refused_at_once() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=1000");
    let engine = engine(32 << 10);
    let refused = engine.wait(batch(0), &view).err().unwrap();
    assert!(
        matches!(*refused, Error::TooLarge { needed, limit: 32768, .. } if needed == Arena::charge(48_000)),
        "{refused}"
    );
    assert_eq!(engine.metrics().waits.load(Ordering::Relaxed), 0);
}

#[test]
fn a_damaged_record_fails_its_batches_and_no_others() {
    use std::os::unix::fs::FileExt as _;
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let shard = std::fs::OpenOptions::new().write(true).open(path.join("data-000.npy")).unwrap();
    shard.write_all_at(&[0xff], 4096 + 5 * ITEM as u64).unwrap();
    let view = view(&path, "batch=10,mode=sequential");
    let engine = engine(1 << 20);
    let said = engine.wait(batch(0), &view).err().unwrap().to_string();
    for part in ["x/batch/0", "shard 0", "record 5", &path.display().to_string()] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert_eq!(bytes(&engine.wait(batch(1), &view).unwrap()), expected(&view, 1));
    assert!(engine.wait(batch(0), &view).is_err(), "the same again");
    assert_eq!(engine.metrics().failures.load(Ordering::Relaxed), 2);
}

#[test]
fn everything_that_is_not_open_goes_when_nobody_comes() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=10");
    let engine = engine(1 << 20);
    for step in 0..20 {
        engine.wait(batch(step), &view).unwrap();
    }
    let kept = engine.wait(batch(3), &view).unwrap();
    until("only the open one is left", || engine.arena().stats().used == page_size());
    assert_eq!(bytes(&kept), expected(&view, 3));
    assert_eq!(engine.arena().stats().regions, 1);
}

#[test]
fn an_engine_that_ends_answers_those_who_wait() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=85");
    let engine = engine(page_size());
    let held = engine.wait(batch(0), &view).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    engine.open(batch(9), &view, move |made| tell.send(made).unwrap());
    until("the open waits for room", || engine.metrics().waits.load(Ordering::Relaxed) == 1);
    drop(engine);
    let refused = told.recv().unwrap().err().unwrap();
    assert!(matches!(*refused, Error::Stopped { .. }), "{refused}");
    assert_eq!(bytes(&held), expected(&view, 0), "what is open outlives the engine");
}

#[test]
fn streams_of_different_lengths_are_no_dataset() {
    let tmp = tempfile::tempdir().unwrap();
    let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
    write(&a);
    let mut short =
        StoreWriter::create(&b, Schema::dense(DType::UInt8, []), WriteOptions::default()).unwrap();
    short.append(&[1; 999]).unwrap();
    short.finish().unwrap();
    let open = |name: &str, path: &Path| NamedStream {
        name: name.to_owned(),
        stream: Arc::new(Store::open(path, OpenOptions::default()).unwrap()),
    };
    let refused = Dataset::new(tmp.path(), vec![open("a", &a), open("b", &b)]).err().unwrap();
    let said = refused.to_string();
    assert!(said.contains("1000") && said.contains("999"), "{said}");
}

#[test]
fn the_last_owner_may_be_whoever_is_called_back() {
    // Called on a thread of the engine, which then drops it and waits for its threads: not for itself.
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("s");
    write(&path);
    let view = view(&path, "batch=10,seed=1");
    for step in 0..20 {
        let engine = Arc::new(engine(4 << 20));
        let (let_go, may_go) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let last = engine.clone();
        engine.open(batch(step), &view, move |made| {
            may_go.recv().unwrap();
            let seen = made.map(|batch| bytes(&batch).to_vec());
            let on = std::thread::current().name().unwrap_or_default().to_owned();
            drop(last);
            tell.send((on, seen)).unwrap();
        });
        drop(engine);
        let_go.send(()).unwrap();
        let (on, seen) = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(on.starts_with("fill-"), "{on}");
        assert!(seen.unwrap() == expected(&view, step));
    }
}
