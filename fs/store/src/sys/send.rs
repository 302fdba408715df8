use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::Mapping;

/// Ranges per call, the kernel's limit on such lists.
const MOST: usize = 1024;

/// Calls end at multiples of this in the file that is written, so that its pages can be huge ones.
const STRIDE: usize = 8 << 20;

/// Has the kernel write ranges of mappings, one after the other, to `file` from byte `at` on. Says
/// whether it wrote all of it: a range whose file was cut short it cannot read.
///
/// # Panics
/// If a range is not inside of its mapping.
pub(crate) fn send<'a>(
    ranges: impl Iterator<Item = (&'a Mapping, usize, usize)>,
    file: BorrowedFd<'_>,
    at: u64,
) -> io::Result<bool> {
    let mut call = Call { file, at, list: Vec::with_capacity(MOST), bytes: 0 };
    for (map, offset, len) in ranges {
        let (mut start, mut left) = (map.address(offset, len), len);
        while left > 0 {
            let room = STRIDE - (call.at as usize + call.bytes) % STRIDE;
            let now = left.min(room);
            call.list.push(libc::iovec { iov_base: start as *mut libc::c_void, iov_len: now });
            call.bytes += now;
            (start, left) = (start + now, left - now);
            if (now == room || call.list.len() == MOST) && !call.make()? {
                return Ok(false);
            }
        }
    }
    call.make()
}

struct Call<'a> {
    file: BorrowedFd<'a>,
    at: u64,
    list: Vec<libc::iovec>,
    bytes: usize,
}

impl Call<'_> {
    fn make(&mut self) -> io::Result<bool> {
        if self.bytes == 0 {
            return Ok(true);
        }
        // SAFETY: the list lives through the call, and so do the mappings that it was made from, as
        // `send` borrows them. The kernel only reads them, and gives an error where it cannot.
        let done = unsafe {
            libc::pwritev(
                self.file.as_raw_fd(),
                self.list.as_ptr(),
                self.list.len() as libc::c_int,
                self.at as libc::off_t,
            )
        };
        let whole = usize::try_from(done).is_ok_and(|n| n == self.bytes);
        if done < 0 {
            let e = io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::EFAULT | libc::EINTR) => {}
                _ => return Err(e),
            }
        }
        self.at += self.bytes as u64;
        self.bytes = 0;
        self.list.clear();
        Ok(whole)
    }
}
