//! What is open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batchfs_batch::Batch;
use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};

/// The handle of everything that is passed through: the kernel needs us no more for it.
const PASSED: FileHandle = FileHandle(0);

/// An open file that is read through this process.
#[derive(Clone)]
pub(crate) enum Open {
    Region(Arc<Batch>),
    Text(Arc<str>),
}

impl Open {
    pub(crate) fn bytes(&self) -> std::io::Result<&[u8]> {
        match self {
            Open::Region(batch) => batch.region().bytes(),
            Open::Text(text) => Ok(text.as_bytes()),
        }
    }
}

/// A region that the kernel reads by itself, and all who have it open.
struct Passed {
    backing: Arc<BackingId>,
    // Held for its pin: the region must not be filled anew while the file is open.
    _batch: Batch,
    opens: usize,
}

#[derive(Default)]
pub(crate) struct Files {
    passed: Mutex<HashMap<u64, Passed>>,
    read: Mutex<Handles>,
}

#[derive(Default)]
struct Handles {
    last: u64,
    open: HashMap<u64, Open>,
}

impl Files {
    fn passed(&self) -> MutexGuard<'_, HashMap<u64, Passed>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> MutexGuard<'_, Handles> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the region to the kernel. While a file of this inode is open, the kernel takes no
    /// other backing id for it, so all opens share the first one, and its region.
    pub(crate) fn pass(&self, ino: u64, batch: Batch, reply: ReplyOpen) -> std::io::Result<()> {
        let mut passed = self.passed();
        let backing = match passed.get_mut(&ino) {
            Some(file) => {
                file.opens += 1;
                file.backing.clone()
            }
            None => {
                let made = reply.open_backing(batch.region().expose());
                let backing = match made {
                    Ok(backing) => Arc::new(backing),
                    Err(e) => {
                        drop(passed);
                        reply.error(fuser::Errno::EIO);
                        return Err(e);
                    }
                };
                let file = Passed { backing: backing.clone(), _batch: batch, opens: 1 };
                passed.insert(ino, file);
                backing
            }
        };
        drop(passed);
        reply.opened_passthrough(PASSED, FopenFlags::FOPEN_NOFLUSH, &backing);
        Ok(())
    }

    /// Answers an open whose reads come to this process.
    pub(crate) fn open(&self, file: Open, flags: FopenFlags, reply: ReplyOpen) {
        let mut read = self.read();
        read.last += 1;
        let handle = read.last;
        read.open.insert(handle, file);
        drop(read);
        reply.opened(FileHandle(handle), flags | FopenFlags::FOPEN_NOFLUSH);
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Open> {
        self.read().open.get(&handle.0).cloned()
    }

    pub(crate) fn release(&self, ino: u64, handle: FileHandle) {
        if handle != PASSED {
            let closed = self.read().open.remove(&handle.0);
            drop(closed);
            return;
        }
        let mut passed = self.passed();
        if let Some(file) = passed.get_mut(&ino) {
            file.opens -= 1;
            if file.opens == 0 {
                let closed = passed.remove(&ino);
                drop(passed);
                drop(closed);
            }
        }
    }
}
