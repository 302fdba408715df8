use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::backing::{HUGE_FROM, HUGE_PAGE, fixed_memfd};
use crate::sys::Mapping;

/// Memory that is filled once and stays: a memfd of fixed size, in huge pages where
/// `shmem_enabled` allows, mapped into this process.
///
/// Its file may be lent to devices and processes that write it, so what it holds is copied out and
/// never borrowed once it is filled.
#[derive(Debug)]
pub struct Kept {
    file: OwnedFd,
    map: Mapping,
}

impl Kept {
    /// `len` bytes, which `fill` is to fill; they are zeros before.
    ///
    /// # Errors
    /// If there is no memory, and those of `fill`.
    pub fn new<E: From<io::Error>>(
        len: NonZeroUsize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Kept, E> {
        let file = fixed_memfd(len)?;
        let huge = NonZeroUsize::new(HUGE_PAGE as usize).filter(|_| len.get() as u64 >= HUGE_FROM);
        let mut map = Mapping::new(&file, len, huge)?;
        fill(map.bytes_mut())?;
        Ok(Kept { file, map })
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The memfd, sealed in its size.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the bytes from `at` on to `out`. Says whether all of them lie inside; if not, nothing
    /// was copied.
    #[must_use]
    pub fn copy(&self, at: usize, out: &mut [u8]) -> bool {
        self.map.copy(at, out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn what_was_filled_is_in_the_file_and_stays_as_long_as_it_is() {
        for len in [1usize, 5000, (2 << 20) + 7] {
            let size = NonZeroUsize::new(len).unwrap();
            let kept = Kept::new(size, |all| {
                all.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7) as u8);
                io::Result::Ok(())
            })
            .unwrap();
            let file = File::from(kept.file().try_clone_to_owned().unwrap());
            assert_eq!(file.metadata().unwrap().len(), len as u64);
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read.iter().enumerate().all(|(i, b)| *b == (i * 7) as u8));
            assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
            let mut last = [0];
            assert!(kept.copy(len - 1, &mut last));
            assert_eq!(last[0], ((len - 1) * 7) as u8);
            assert!(!kept.copy(len, &mut last) && !kept.copy(usize::MAX, &mut last));
        }
        let size = NonZeroUsize::new(1).unwrap();
        assert!(Kept::new(size, |_| Err(io::Error::other("no"))).is_err());
    }
}
