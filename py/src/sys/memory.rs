//! Memory that tensors share.

use std::any::Any;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use batchfs_region::Block;
use memmap2::{MmapMut, MmapOptions, MmapRaw};

/// Some bytes, and what keeps them alive. Cloning shares them.
///
/// Consumers of a tensor may write to its bytes at any time, as to any buffer in Python, so no Rust
/// reference to them outlives the call that made it.
#[derive(Clone)]
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address and an owner that is Send and Sync itself.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` bytes from `at` on, which live as long as `keep`.
    ///
    /// # Safety
    /// That must be so, wherever `keep` is moved to.
    pub unsafe fn new(at: NonNull<u8>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Memory {
        Memory { at, len, _keep: keep }
    }

    /// Where they are.
    pub fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Some of them; `None` if they do not lie within.
    pub fn part(&self, offset: usize, len: usize) -> Option<Memory> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset is within the allocation, as was just checked.
        let at = unsafe { self.at.add(offset) };
        Some(Memory { at, len, _keep: self._keep.clone() })
    }

    /// To be read within this call. Whoever writes to them meanwhile, in another thread, makes that
    /// what is read is unspecified.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: alive as long as `self` and of that length. A write by a consumer meanwhile is
        // a race that the caller of the Python function has to prevent, as with every buffer.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

/// The first `len` bytes of a block.
pub fn of_block(mut block: Block, len: usize) -> Memory {
    let bytes = block.bytes_mut();
    let len = len.min(bytes.len());
    let at = NonNull::from(bytes).cast();
    // SAFETY: a block's bytes do not move with it, and nobody refers to them but through this.
    unsafe { Memory::new(at, len, Arc::new(block)) }
}

/// The whole file. With `write`, pages that are written to become this process's own.
///
/// # Errors
/// If it cannot be mapped.
pub fn of_file(file: &File, len: usize, write: bool) -> io::Result<Memory> {
    lent_file(file, len, write, ())
}

/// The same; `lease` is dropped when nothing is mapped any more.
///
/// # Errors
/// If it cannot be mapped.
pub fn lent_file(
    file: &File,
    len: usize,
    write: bool,
    lease: impl Any + Send + Sync,
) -> io::Result<Memory> {
    let mut options = MmapOptions::new();
    options.len(len).no_reserve_swap();
    if write {
        // SAFETY: a private mapping. Files of a mount never change, which it promises.
        let mut map: MmapMut = unsafe { options.map_copy(file) }?;
        let at = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a mapping does not move with its handle, and has `len` bytes.
        return Ok(unsafe { Memory::new(at, len, Arc::new((map, lease))) });
    }
    let map: MmapRaw = options.map_raw_read_only(file)?;
    let at = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: as above.
    Ok(unsafe { Memory::new(at, len, Arc::new((map, lease))) })
}
