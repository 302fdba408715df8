//! The views in use: the data under other specs than the mount's own.
//!
//! A view has a number, which its inodes and regions carry. It is interned from the lookup of its
//! folder until the kernel has forgotten every inode of it: lookups are counted per view, since
//! several threads may answer, and so take the forgets in another order than the kernel sent them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batchfs_batch::{Engine, Error, View, ViewSpec};

/// As many numbers as inode numbers have room for; 0 is the mount's own view.
const MOST: u16 = 127;

/// When so many are in use, those that were longest idle are taken out of the kernel's cache.
const CROWDED: usize = 96;

pub(crate) struct Views {
    main: Arc<View>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: BTreeMap<u16, Used>,
    /// The number that was given out last: each is used again as late as possible.
    last: u16,
    time: u64,
}

struct Used {
    view: Arc<View>,
    name: String,
    /// Of its folder and everything below, less what was forgotten.
    lookups: u64,
    /// Folders of it that are open.
    folders: usize,
    /// When something of it was last looked up.
    time: u64,
}

/// Why there is no folder for a spec.
pub(crate) enum NoView {
    /// The spec does not fit the data.
    Unfit(Error),
    /// All numbers are in use.
    Full,
}

impl Views {
    pub(crate) fn new(main: Arc<View>) -> Views {
        Views { main, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of the mount itself.
    pub(crate) fn main(&self) -> &Arc<View> {
        &self.main
    }

    /// The view with this number.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<View>> {
        if number == self.main.number() {
            return Some(self.main.clone());
        }
        self.lock().used.get(&number).map(|used| used.view.clone())
    }

    /// A view of the same data, without a number that anybody else knows.
    pub(crate) fn check(&self, spec: ViewSpec) -> Result<(), Error> {
        self.make(0, spec).map(drop)
    }

    fn make(&self, number: u16, spec: ViewSpec) -> Result<View, Error> {
        View::new(number, &format!("view/{spec}/"), self.main.dataset().clone(), spec)
    }

    /// The number of the view with this spec, new or known. Counts as a lookup of its folder.
    pub(crate) fn look_up(
        &self,
        spec: impl Into<ViewSpec>,
        engine: &Engine,
    ) -> Result<u16, NoView> {
        let spec = spec.into();
        let mut state = self.lock();
        state.time += 1;
        let time = state.time;
        let known = state.used.iter_mut().find(|(_, u)| u.view.spec() == spec);
        if let Some((number, used)) = known {
            used.lookups += 1;
            used.time = time;
            return Ok(*number);
        }
        // Regions and readers of an earlier view may still carry its number.
        let number = (1..=MOST)
            .map(|i| (state.last + i - 1) % MOST + 1)
            .find(|n| !state.used.contains_key(n) && engine.retire(*n))
            .ok_or(NoView::Full)?;
        let view = Arc::new(self.make(number, spec).map_err(NoView::Unfit)?);
        state.last = number;
        let name = view.spec().to_string();
        state.used.insert(number, Used { view, name, lookups: 1, folders: 0, time });
        Ok(number)
    }

    /// The kernel is told of an inode of this view; of its folder, if there is a name, which then
    /// has to be the view's still. Returns whether there is such a view.
    pub(crate) fn told(&self, number: u16, name: Option<&str>) -> bool {
        if number == self.main.number() {
            return true;
        }
        let mut state = self.lock();
        state.time += 1;
        let time = state.time;
        match state.used.get_mut(&number) {
            Some(used) if name.is_none_or(|n| n == used.name) => {
                used.lookups += 1;
                used.time = time;
                true
            }
            _ => false,
        }
    }

    /// The kernel forgot so many lookups of inodes of this view.
    pub(crate) fn forget(&self, number: u16, lookups: u64, engine: &Engine) {
        if number == self.main.number() {
            return;
        }
        let mut state = self.lock();
        let Some(used) = state.used.get_mut(&number) else { return };
        if lookups > used.lookups {
            tracing::warn!(
                "view {}: {lookups} lookups forgotten, {} were known",
                used.name,
                used.lookups
            );
        }
        used.lookups = used.lookups.saturating_sub(lookups);
        if used.lookups == 0 {
            state.used.remove(&number);
            // What it does not give up now is given up when the number is wanted.
            engine.retire(number);
        }
    }

    /// Numbers and names of the views in use.
    pub(crate) fn list(&self) -> Vec<(u16, String)> {
        self.lock().used.iter().map(|(number, used)| (*number, used.name.clone())).collect()
    }

    /// A folder of this view was opened, or closed.
    pub(crate) fn folder(&self, number: u16, opened: bool) {
        if let Some(used) = self.lock().used.get_mut(&number) {
            let folders = used.folders;
            used.folders = if opened { folders + 1 } else { folders.saturating_sub(1) };
        }
    }

    /// When many are in use, the names of those that were idle longest, and are not open: taken from
    /// the kernel's cache while it is open, a view could not be found there again later.
    pub(crate) fn idle(&self, engine: &Engine) -> Vec<String> {
        let state = self.lock();
        if state.used.len() < CROWDED {
            return Vec::new();
        }
        let closed = |(number, used): &(&u16, &Used)| used.folders == 0 && !engine.in_use(**number);
        let all = state.used.iter().filter(closed).map(|(_, used)| (used.time, &used.name));
        let mut all: Vec<(u64, &String)> = all.collect();
        all.sort_unstable();
        all.into_iter().take(CROWDED / 2).map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use batchfs_batch::{Dataset, NamedStream, Options, Spec};
    use batchfs_region::{Arena, Config};
    use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};

    use super::*;

    fn spec(batch: u64, seed: u64) -> ViewSpec {
        let spec: Spec = format!("batch={batch},seed={seed}").parse().unwrap();
        spec.into()
    }

    #[test]
    fn numbers_live_until_all_is_forgotten() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("s");
        let schema = Schema::dense(DType::UInt8, []);
        let mut writer = StoreWriter::create(&path, schema, WriteOptions::default()).unwrap();
        writer.append(&[7; 100]).unwrap();
        writer.finish().unwrap();
        let stream = Arc::new(Store::open(&path, OpenOptions::default()).unwrap());
        let named = NamedStream { name: "s".to_owned(), stream };
        let data = Arc::new(Dataset::new(&path, vec![named]).unwrap());
        let main = Arc::new(View::new(0, "", data, spec(10, 0)).unwrap());
        let arena = Arena::new(&Config { limit: 1 << 20, backing: None }).unwrap();
        let engine = Engine::new(arena, &Options { threads: 1 }).unwrap();
        let views = Views::new(main);

        let number = |seed| views.look_up(spec(10, seed), &engine).ok();
        let first = number(0).unwrap();
        assert_eq!(number(0), Some(first));
        assert!(views.told(first, None));
        assert!(!views.told(first, Some("another")));
        assert_eq!(views.list(), [(first, "mode=cyclic,batch=10,seed=0".to_owned())]);
        // A forget of what lies below may come after that of the folder.
        views.forget(first, 2, &engine);
        assert!(views.get(first).is_some());
        views.forget(first, 1, &engine);
        assert!(views.get(first).is_none() && views.list().is_empty());

        let all: Vec<u16> = (0..MOST.into()).map(|seed| number(seed).unwrap()).collect();
        assert_eq!(views.list().len(), 127);
        assert!(matches!(views.look_up(spec(10, 500), &engine), Err(NoView::Full)));
        assert_eq!(views.idle(&engine).len(), 48);
        assert!(views.idle(&engine).contains(&spec(10, 0).to_string()), "the oldest are idle");
        views.folder(all[0], true);
        assert!(!views.idle(&engine).contains(&spec(10, 0).to_string()), "it is open");
        views.forget(all[5], 1, &engine);
        assert_eq!(number(500), Some(all[5]));
        let unfit = views.look_up(spec(101, 0), &engine);
        assert!(matches!(unfit, Err(NoView::Full)));
        views.forget(all[6], 1, &engine);
        let unfit = views.look_up(spec(101, 0), &engine);
        assert!(matches!(unfit, Err(NoView::Unfit(e)) if e.to_string().contains("batch=101")));
    }
}
