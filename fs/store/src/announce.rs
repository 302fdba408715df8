use crate::GuardedFile;
use crate::sys::will_need;

/// Bytes of one of several files that will soon be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(crate) file: u32,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// Has the kernel read what is to come, in few calls and in the order of the disk.
pub(crate) fn announce(files: &[GuardedFile], mut wanted: Vec<Wanted>) {
    const GAP: u64 = 16 << 10;
    wanted.sort_unstable();
    let mut pages = Vec::with_capacity(wanted.len());
    let mut rest = wanted.into_iter().peekable();
    while let Some(Wanted { file, begin, mut end }) = rest.next() {
        while let Some(next) = rest.next_if(|n| n.file == file && n.begin <= end + GAP) {
            end = end.max(next.end);
        }
        pages.extend(files[file as usize].pages(begin, (end - begin) as usize));
    }
    will_need(&pages);
}
