//! `index.bin`: one entry per record, in blocks, then one checksum per block.

use std::ops::Range;
use std::path::Path;

use crate::header::{INDEX, bad};
use crate::sys::AtomicBits;
use crate::write::Output;
use crate::{GuardedFile, Result, hash};

/// Bytes of a block at most.
const BLOCK: usize = 64 << 10;
/// Bytes of a block's checksum.
const SUM: u64 = 8;

/// How long entries are, and so how many make a block: the largest power of two of them within
/// 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    entry: usize,
    per_block_log2: u32,
}

impl Form {
    pub(crate) fn new(entry: usize) -> Self {
        Self { entry, per_block_log2: (BLOCK / entry.max(1)).max(1).ilog2() }
    }

    pub(crate) fn entry(self) -> usize {
        self.entry
    }

    fn per_block(self) -> u64 {
        1 << self.per_block_log2
    }

    /// The block that holds the entry of record `id`.
    #[inline]
    pub(crate) fn block_of(self, id: u64) -> u64 {
        id >> self.per_block_log2
    }
}

/// Writes entries in the order of ids. Memory: one block, and 8 bytes per block written.
pub(crate) struct IndexWriter {
    out: Output,
    form: Form,
    block: Vec<u8>,
    sums: Vec<u64>,
}

impl IndexWriter {
    pub(crate) fn create(folder: &Path, told: &Path, form: Form) -> Result<Self> {
        let out = Output::create(&folder.join(INDEX), told)?;
        Ok(Self { out, form, block: Vec::with_capacity(BLOCK), sums: Vec::new() })
    }

    /// Adds whole entries.
    pub(crate) fn push(&mut self, mut entries: &[u8]) -> Result<()> {
        let full = self.form.entry << self.form.per_block_log2;
        while !entries.is_empty() {
            let (now, later) = entries.split_at(entries.len().min(full - self.block.len()));
            self.block.extend_from_slice(now);
            entries = later;
            if self.block.len() == full {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            self.sums.push(hash::of(&self.block));
            self.out.append(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Writes the rest, to the disk, and gives the checksums of the blocks.
    pub(crate) fn finish(mut self) -> Result<Vec<u64>> {
        self.flush()?;
        let sums: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.out.append(&sums)?;
        self.out.sync()?;
        Ok(self.sums)
    }
}

/// Reads entries; a block is checked when first touched.
pub(crate) struct Index {
    file: GuardedFile,
    form: Form,
    records: u64,
    sums: Vec<u64>,
    checked: AtomicBits,
}

impl Index {
    /// Opens the index; the block sums are to be trusted only once the seal was compared.
    pub(crate) fn open(folder: &Path, records: u64, form: Form) -> Result<Self> {
        let file = GuardedFile::open(folder.join(INDEX))?;
        let blocks = records.div_ceil(form.per_block());
        let entries = records.checked_mul(form.entry as u64);
        let want = entries.and_then(|n| n.checked_add(blocks * SUM));
        let (Some(entries), true) = (entries, want == Some(file.len())) else {
            let why = format!(
                "has {} bytes, but the index of {records} records has {}",
                file.len(),
                want.map_or("more than a file can have".into(), |n| n.to_string())
            );
            return Err(bad(file.path(), why));
        };
        let mut sums = vec![0; (blocks * SUM) as usize];
        file.read_at(entries, &mut sums)?;
        let sums = sums.chunks_exact(SUM as usize).map(number).collect();
        Ok(Self { file, form, records, sums, checked: AtomicBits::new(blocks) })
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    pub(crate) fn block_sums(&self) -> &[u64] {
        &self.sums
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Checks the blocks that hold the entries of `ids`, those that were not yet.
    pub(crate) fn check(&self, ids: &[u64]) -> Result<()> {
        for id in ids {
            let block = self.form.block_of(*id);
            if !self.checked.get(block) {
                self.block(block)?;
                self.checked.set(block);
            }
        }
        Ok(())
    }

    /// Has the processor fetch an entry that [`peek`](Self::peek) will soon want.
    #[inline]
    pub(crate) fn prefetch(&self, id: u64) {
        self.file.prefetch(id * self.form.entry as u64, self.form.entry.min(64));
    }

    /// Bytes of an entry from `at` on, without a system call. They count only if
    /// [`damaged`](Self::damaged) says `false` afterwards, and if the block was checked.
    #[inline]
    pub(crate) fn peek<const N: usize>(&self, id: u64, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.copy_to(id * self.form.entry as u64 + at as u64, &mut bytes);
        bytes
    }

    /// Whether what [`peek`](Self::peek) gave cannot be trusted.
    pub(crate) fn damaged(&self) -> bool {
        self.file.damaged()
    }

    /// The checksum that record `id` was written with, where that is the whole entry.
    pub(crate) fn sum(&self, id: u64) -> Result<u64> {
        self.check(&[id])?;
        let sum = u64::from_le_bytes(self.peek(id, 0));
        if !self.damaged() {
            return Ok(sum);
        }
        let entries = self.block(self.form.block_of(id))?;
        Ok(number(&entries[self.within(id)]))
    }

    /// The bytes of its block that the entry of record `id` is.
    pub(crate) fn within(&self, id: u64) -> Range<usize> {
        let at = (id % self.form.per_block()) as usize * self.form.entry;
        at..at + self.form.entry
    }

    /// The entries of a block, checked.
    pub(crate) fn block(&self, block: u64) -> Result<Vec<u8>> {
        let first = block << self.form.per_block_log2;
        let count = self.form.per_block().min(self.records - first);
        let (at, len) = (first * self.form.entry as u64, count as usize * self.form.entry);
        let mut entries = vec![0; len];
        self.file.copy_to(at, &mut entries);
        if self.file.damaged() {
            self.file.read_at(at, &mut entries)?;
        }
        if hash::of(&entries) != self.sums[block as usize] {
            let why = format!(
                "block {block}, which tells of records {first}..{}, does not match its own checksum",
                first + count
            );
            return Err(bad(self.file.path(), why));
        }
        Ok(entries)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
