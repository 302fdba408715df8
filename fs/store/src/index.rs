//! `index.bin`: one checksum per record, in blocks, then one checksum per block.

use std::path::Path;

use crate::header::{INDEX, bad};
use crate::sys::AtomicBits;
use crate::write::Output;
use crate::{GuardedFile, Result, hash};

const BLOCK: usize = 64 << 10;
const ENTRY: usize = 8;
pub(crate) const PER_BLOCK: u64 = (BLOCK / ENTRY) as u64;

/// Writes entries in the order of ids. Memory: one block, and 8 bytes per block written.
pub(crate) struct IndexWriter {
    out: Output,
    block: Vec<u8>,
    sums: Vec<u64>,
}

impl IndexWriter {
    pub(crate) fn create(folder: &Path, told: &Path) -> Result<Self> {
        let out = Output::create(&folder.join(INDEX), told)?;
        Ok(Self { out, block: Vec::with_capacity(BLOCK), sums: Vec::new() })
    }

    pub(crate) fn push(&mut self, mut sums: &[u64]) -> Result<()> {
        while !sums.is_empty() {
            let room = (BLOCK - self.block.len()) / ENTRY;
            let (now, later) = sums.split_at(sums.len().min(room));
            self.block.extend(now.iter().flat_map(|sum| sum.to_le_bytes()));
            sums = later;
            if self.block.len() == BLOCK {
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
    records: u64,
    sums: Vec<u64>,
    checked: AtomicBits,
}

impl Index {
    /// Opens the index; the block sums are to be trusted only once the seal was compared.
    pub(crate) fn open(folder: &Path, records: u64) -> Result<Self> {
        let file = GuardedFile::open(folder.join(INDEX))?;
        let blocks = records.div_ceil(PER_BLOCK);
        let want = records.checked_add(blocks).and_then(|n| n.checked_mul(ENTRY as u64));
        if want != Some(file.len()) {
            let why = format!(
                "has {} bytes, but the index of {records} records has {}",
                file.len(),
                want.map_or("more than a file can have".into(), |n| n.to_string())
            );
            return Err(bad(file.path(), why));
        }
        let mut sums = vec![0; blocks as usize * ENTRY];
        file.read_at(records * ENTRY as u64, &mut sums)?;
        let sums = sums.chunks_exact(ENTRY).map(entry_of).collect();
        Ok(Self { file, records, sums, checked: AtomicBits::new(blocks) })
    }

    pub(crate) fn block_sums(&self) -> &[u64] {
        &self.sums
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.sums.len() as u64
    }

    /// The checksum that record `id` was written with.
    pub(crate) fn entry(&self, id: u64) -> Result<u64> {
        let block = id / PER_BLOCK;
        if self.checked.get(block) {
            let mut entry = [0; ENTRY];
            self.file.copy_to(id * ENTRY as u64, &mut entry);
            if !self.file.damaged() {
                return Ok(u64::from_le_bytes(entry));
            }
        }
        let entries = self.block(block)?;
        self.checked.set(block);
        let at = (id % PER_BLOCK) as usize * ENTRY;
        Ok(entry_of(&entries[at..at + ENTRY]))
    }

    /// The entries of a block, checked.
    pub(crate) fn block(&self, block: u64) -> Result<Vec<u8>> {
        let first = block * PER_BLOCK;
        let count = PER_BLOCK.min(self.records - first);
        let mut entries = vec![0; count as usize * ENTRY];
        self.file.copy_to(first * ENTRY as u64, &mut entries);
        if self.file.damaged() {
            self.file.read_at(first * ENTRY as u64, &mut entries)?;
        }
        if hash::of(&entries) != self.sums[block as usize] {
            let why = format!(
                "block {block}, which holds the checksums of records {first}..{}, does not match its own checksum",
                first + count
            );
            return Err(bad(self.file.path(), why));
        }
        Ok(entries)
    }
}

fn entry_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
