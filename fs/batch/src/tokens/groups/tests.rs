//! Who gets room in the budget, and when.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use batchfs_store::{DType, GroupPlace, GroupRead, PackedGroup, Result, TokenGroup};

use super::*;

/// Row groups of one document each, of so many tokens, which are read when the test says so.
struct Sizes {
    counts: Vec<GroupCounts>,
    /// Told of each read that begins; without it nothing waits.
    gate: Option<(Sender<usize>, Mutex<Receiver<()>>)>,
    announced: Mutex<Vec<Vec<usize>>>,
}

impl TokenSource for Sizes {
    fn origin(&self) -> &str {
        "sizes"
    }

    fn dtype(&self) -> DType {
        DType::Int32
    }

    fn groups(&self) -> &[GroupCounts] {
        &self.counts
    }

    fn place(&self, group: usize) -> GroupPlace {
        GroupPlace { file: "sizes".to_owned(), group: group as u64, bytes: 0..1 }
    }

    fn read(&self, group: usize) -> Result<TokenGroup> {
        if let Some((begun, go)) = &self.gate {
            begun.send(group).unwrap();
            go.lock().unwrap().recv().unwrap();
        }
        let tokens = self.counts[group].tokens;
        Ok(TokenGroup {
            tokens: vec![group as i32; tokens as usize].into(),
            lengths: vec![tokens as u32],
        })
    }

    fn announce(&self, groups: &[usize]) {
        self.announced.lock().unwrap().push(groups.to_vec());
    }

    fn fingerprint(&self) -> u128 {
        0
    }

    fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn received_bytes(&self) -> u64 {
        0
    }
}

fn sizes(tokens: &[u64]) -> Sizes {
    let counts = tokens.iter().map(|&tokens| GroupCounts { tokens, documents: 1 }).collect();
    Sizes { counts, gate: None, announced: Mutex::default() }
}

/// The budget for so many tokens of so many row groups.
fn budget(tokens: u64, groups: u64) -> u64 {
    GroupCounts { tokens, documents: groups }.decoded_bytes()
}

/// Until so many wait for room.
fn until_waiting(groups: &Groups, count: usize) {
    while groups.inner.lock().waiting.len() != count {
        thread::yield_now();
    }
}

#[test]
fn a_large_row_group_is_not_overtaken_by_small_ones() {
    let source = Arc::new(sizes(&[600, 900, 50, 50, 50]));
    // The first beside all small ones, or the large one beside one of them.
    let groups = Groups::new(source, vec![0], budget(950, 5), false, 0).unwrap();
    let (tell, told) = channel();
    thread::scope(|scope| {
        let first = groups.pin(&[0], &[], false).unwrap();
        for (waiting, group) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
            let (groups, tell) = (&groups, tell.clone());
            scope.spawn(move || {
                let pinned = groups.pin(&[group], &[], false).unwrap();
                let mut token = [0; 4];
                assert!(pinned.copy(group, 0, &mut token).unwrap());
                assert_eq!(i32::from_le_bytes(token), group as i32);
                tell.send((group, pinned)).unwrap();
            });
            // There is room for the small ones beside what is pinned, and yet they wait.
            until_waiting(groups, waiting);
        }
        drop(first);
        let (a, b) = (told.recv().unwrap(), told.recv().unwrap());
        let mut held = [a.0, b.0];
        held.sort_unstable();
        assert_eq!(held, [1, 2], "in the order in which they came, as many as there is room for");
        until_waiting(&groups, 2);
        drop((a, b));
        let mut rest = [told.recv().unwrap().0, told.recv().unwrap().0];
        rest.sort_unstable();
        assert_eq!(rest, [3, 4]);
    });
    assert!(groups.inner.lock().waiting.is_empty());
}

#[test]
fn nothing_is_begun_ahead_while_somebody_waits_for_room() {
    let (begun, seen) = channel();
    let (go, gate) = channel();
    let mut source = sizes(&[400, 400, 900]);
    source.gate = Some((begun, Mutex::new(gate)));
    let groups = Groups::new(Arc::new(source), vec![0], budget(900, 2), false, 1).unwrap();
    assert!(groups.ahead(&[0, 1]));
    assert_eq!(seen.recv().unwrap(), 0);
    thread::scope(|scope| {
        let large = scope.spawn(|| groups.pin(&[2], &[], false).map(drop));
        until_waiting(&groups, 1);
        go.send(()).unwrap();
        // The thread that decodes leaves the second one for later.
        assert_eq!(seen.recv().unwrap(), 2);
        go.send(()).unwrap();
        large.join().unwrap().unwrap();
    });
}

#[test]
fn what_row_groups_take_less_than_was_reckoned_with_is_for_others() {
    // Tokens that fit into 16 bits, and are reckoned with 32 before that is known.
    let four = |refund| {
        let source = Arc::new(sizes(&[400; 4]));
        let groups = Groups::new(source, vec![0], budget(1200, 3), refund, 0).unwrap();
        (0..4).for_each(|group| drop(groups.pin(&[group], &[], false).unwrap()));
        drop(groups.pin(&[0], &[], false).unwrap());
        if refund {
            // All four are there, and nobody waits for room that is not needed.
            let two = groups.pin(&[0, 1], &[], false).unwrap();
            let (tell, told) = channel();
            thread::scope(|scope| {
                scope.spawn(|| tell.send(groups.pin(&[2, 3], &[], false).is_ok()).unwrap());
                let there = told.recv_timeout(Duration::from_secs(20));
                drop(two);
                assert_eq!(there, Ok(true));
            });
        }
        groups.figures()
    };
    let refunded = four(true);
    assert_eq!((refunded.decoded, refunded.hits), (4, 5));
    assert_eq!(refunded.used, 4 * (800 + 48));
    let kept = four(false);
    assert_eq!((kept.decoded, kept.hits), (5, 0));
    assert_eq!(kept.used, 3 * (800 + 48));
}

#[test]
fn a_source_is_told_all_that_is_queued_what_is_waited_for_first() {
    let source = Arc::new(sizes(&[10; 8]));
    let groups = Groups::new(source.clone(), vec![0], budget(80, 8), false, 0).unwrap();
    let said = || std::mem::take(&mut *source.announced.lock().unwrap());
    assert!(groups.ahead(&[0, 1, 2]));
    assert_eq!(said(), [[0, 1, 2]]);
    // After a jump what was read ahead is still to come, but later.
    drop(groups.pin(&[5], &[], false).unwrap());
    assert_eq!(said(), [[5, 0, 1, 2]]);
    // One that was queued is waited for now.
    drop(groups.pin(&[1], &[], false).unwrap());
    assert!(groups.ahead(&[6, 2]));
    assert_eq!(said(), [[6, 2]]);
    // What is here is not asked for again, and that nothing else is queued is said, too.
    assert!(groups.ahead(&[5, 1]));
    assert_eq!(said(), [[0; 0]]);
}

/// Row groups of one document of 100 tokens, which come packed. That number 1 cannot be read, and number 2 is
/// damaged.
struct Packs {
    counts: Vec<GroupCounts>,
    reads: AtomicU64,
}

#[derive(Debug)]
struct Pack(usize);

impl PackedGroup for Pack {
    fn lengths(&self) -> &[u32] {
        &[100]
    }

    fn copy(&self, _: usize, out: &mut [u8]) -> bool {
        out.fill(0);
        self.0 != 2
    }

    fn unpack(&self) -> Option<TokenGroup> {
        (self.0 != 2).then(|| TokenGroup { tokens: vec![0; 100].into(), lengths: vec![100] })
    }
}

impl TokenSource for Packs {
    fn origin(&self) -> &str {
        "packs"
    }

    fn dtype(&self) -> DType {
        DType::Int32
    }

    fn groups(&self) -> &[GroupCounts] {
        &self.counts
    }

    fn place(&self, group: usize) -> GroupPlace {
        GroupPlace { file: "packs".to_owned(), group: group as u64, bytes: 0..1 }
    }

    fn read(&self, group: usize) -> Result<TokenGroup> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (file, row) = ("packs".to_owned(), Some(0));
        Err(Error::RowGroup { file, group: group as u64, row, why: "is damaged".to_owned() })
    }

    fn read_packed(&self, group: usize) -> Result<GroupRead> {
        match group {
            1 => Err(Error::io("packs", "cannot read")(ErrorKind::TimedOut.into())),
            _ => Ok(GroupRead::Packed(Arc::new(Pack(group)))),
        }
    }

    fn fingerprint(&self) -> u128 {
        0
    }

    fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn received_bytes(&self) -> u64 {
        0
    }
}

/// Without threads: whoever waits decodes.
fn packs() -> (Arc<Packs>, Groups) {
    let counts = vec![GroupCounts { tokens: 100, documents: 1 }; 3];
    let source = Arc::new(Packs { counts, reads: AtomicU64::new(0) });
    let groups = Groups::new(source.clone(), vec![0], u64::MAX, true, 0).unwrap();
    (source, groups)
}

#[test]
fn what_is_in_memory_is_given_while_its_source_is_silent() {
    let (_, groups) = packs();
    let first = groups.pin(&[0], &[], true).unwrap();
    assert!(groups.pin(&[1], &[], true).is_err());
    // It is packed, and then to be decoded.
    drop(groups.pin(&[0], &[], true).unwrap());
    first.done();
    assert!(groups.inner.lock().unpack.contains(&0));
    drop(groups.pin(&[0], &[], true).unwrap());
    for wanted in [&[1][..], &[0, 2]] {
        match groups.pin(wanted, &[], true).err() {
            Some(Error::Io { source, .. }) => assert_eq!(source.kind(), ErrorKind::TimedOut),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn figures_count_what_was_decoded_and_what_was_there() {
    let (_, groups) = packs();
    let figures = || {
        let figures = groups.figures();
        (figures.decoded, figures.ahead, figures.hits)
    };
    drop(groups.pin(&[0], &[], true).unwrap());
    assert_eq!(figures(), (1, 0, 0));
    drop(groups.pin(&[0], &[], true).unwrap());
    assert_eq!(figures(), (1, 0, 1));
    // Queued is not there yet.
    assert!(groups.ahead(&[2]));
    drop(groups.pin(&[0, 2], &[], true).unwrap());
    assert_eq!(figures(), (2, 0, 2));
    // What fails is not decoded.
    assert!(groups.pin(&[1], &[], true).is_err());
    assert_eq!(figures(), (2, 0, 2));
}

#[test]
fn a_damaged_row_group_is_read_once_for_all_its_pieces() {
    let (source, groups) = packs();
    let pinned = groups.pin(&[2], &[], true).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..10 {
                    let error = pinned.copy(2, at, &mut [0; 8]).unwrap_err();
                    assert!(error.to_string().contains("row group 2, row 0: is damaged"));
                }
            });
        }
    });
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
}
