//! A source of tokens in memory.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use batchfs_store::{
    DType, Error as Store, GroupCounts, GroupPlace, GroupRead, PackedGroup, Result, TokenGroup,
    TokenSource,
};

/// Token number i of the dataset is `base` + i.
pub struct Memory {
    pub groups: Vec<Vec<u32>>,
    base: i32,
    counts: Vec<GroupCounts>,
    pub reads: AtomicU64,
    pub broken: Mutex<HashSet<usize>>,
    /// Microseconds that a read takes.
    pub slow: AtomicU64,
    /// Row groups that are not answered in time.
    pub late: Mutex<HashSet<usize>>,
    /// Row groups come packed. Then `broken` ones can be read, and their second half not be decoded.
    pub packed: AtomicBool,
}

#[derive(Debug)]
struct Packed {
    group: TokenGroup,
    good: usize,
}

impl PackedGroup for Packed {
    fn lengths(&self) -> &[u32] {
        &self.group.lengths
    }

    fn copy(&self, from: usize, out: &mut [u8]) -> bool {
        assert!(self.group.tokens.copy(from, out));
        from + out.len() / 4 <= self.good
    }

    fn unpack(&self) -> Option<TokenGroup> {
        let tokens = self.group.tokens.to_vec().into();
        let group = TokenGroup { tokens, lengths: self.group.lengths.clone() };
        (self.good == self.group.tokens.len()).then_some(group)
    }
}

impl Memory {
    #[allow(dead_code, reason = "each test is a crate of its own")]
    pub fn new(groups: Vec<Vec<u32>>) -> Arc<Memory> {
        Memory::from(0, groups)
    }

    #[allow(dead_code, reason = "each test is a crate of its own")]
    pub fn from(base: i32, groups: Vec<Vec<u32>>) -> Arc<Memory> {
        let counts = groups
            .iter()
            .map(|group| GroupCounts {
                tokens: group.iter().map(|&n| u64::from(n)).sum(),
                documents: group.len() as u64,
            })
            .collect();
        Arc::new(Memory {
            groups,
            base,
            counts,
            reads: AtomicU64::new(0),
            broken: Mutex::default(),
            slow: AtomicU64::new(0),
            late: Mutex::default(),
            packed: AtomicBool::new(false),
        })
    }

    fn group(&self, group: usize) -> TokenGroup {
        let first = self.base + self.first(group) as i32;
        let tokens: Vec<i32> = (first..first + self.counts[group].tokens as i32).collect();
        TokenGroup { tokens: tokens.into(), lengths: self.groups[group].clone() }
    }

    fn first(&self, group: usize) -> u64 {
        self.counts[..group].iter().map(|count| count.tokens).sum()
    }
}

impl TokenSource for Memory {
    fn origin(&self) -> &str {
        "memory"
    }

    fn dtype(&self) -> DType {
        DType::Int32
    }

    fn groups(&self) -> &[GroupCounts] {
        &self.counts
    }

    fn place(&self, group: usize) -> GroupPlace {
        GroupPlace { file: "memory".to_owned(), group: group as u64, bytes: 0..1 }
    }

    fn read(&self, group: usize) -> Result<TokenGroup> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.slow.load(Ordering::Relaxed) {
            0 => {}
            micros => std::thread::sleep(std::time::Duration::from_micros(micros)),
        }
        if self.late.lock().unwrap().contains(&group) {
            let why = format!("no answer about {group}");
            let source = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
            return Err(Store::Io { path: "memory".into(), action: "cannot read", source });
        }
        if self.broken.lock().unwrap().contains(&group) {
            let why = "is broken".to_owned();
            return Err(Store::RowGroup {
                file: "memory".into(),
                group: group as u64,
                row: None,
                why,
            });
        }
        Ok(self.group(group))
    }

    fn read_packed(&self, group: usize) -> Result<GroupRead> {
        if !self.packed.load(Ordering::Relaxed) {
            return self.read(group).map(GroupRead::Whole);
        }
        let broken = self.broken.lock().unwrap().contains(&group);
        let group = self.group(group);
        let good = group.tokens.len() / if broken { 2 } else { 1 };
        Ok(GroupRead::Packed(Arc::new(Packed { group, good })))
    }

    fn fingerprint(&self) -> u128 {
        7 + self.base as u128
    }

    fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn received_bytes(&self) -> u64 {
        0
    }
}
