use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use batchfs_region::{Kept, page_size};
use batchfs_store::{Error, Result, Schema, Stream, check_ids, check_request};
use rayon::prelude::*;

/// Records that are gathered in one call where they lie back to back.
const LARGE: u64 = 4 << 20;

/// A stream whose records are in memory, each at a page of its own.
///
/// They were read, checked and decoded once. A batch can then be made of the pages of its records,
/// without a copy: see [`pieces`](Resident::pieces). Gathered batches are copied from there, too.
pub struct Resident {
    stream: Arc<dyn Stream>,
    memory: Kept,
    item: usize,
    stride: usize,
}

/// A part of the memory of a [`Resident`], in bytes; both are multiples of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

impl Resident {
    /// Bytes that the records of `stream` take.
    ///
    /// # Errors
    /// Why they cannot, or should not, be kept like this.
    pub fn needed(stream: &dyn Stream) -> Result<u64, String> {
        let Some(item) = stream.schema().item_bytes() else {
            return Err("records of different lengths are not kept in memory".to_owned());
        };
        if item == 0 || stream.is_empty() {
            return Err("it has no bytes".to_owned());
        }
        let stride = item.checked_next_multiple_of(page_size()).unwrap_or(u64::MAX);
        if stride > 2 * item {
            return Err(format!(
                "records of {item} bytes are not kept in memory: each would take {stride}"
            ));
        }
        let needed = stride.checked_mul(stream.len()).filter(|n| *n <= isize::MAX as u64);
        needed.ok_or_else(|| format!("{} records of {item} bytes are too many", stream.len()))
    }

    /// Reads all records, on the threads of rayon's current pool.
    ///
    /// # Errors
    /// Those of [`Stream::gather`], and if there is no memory.
    pub fn load(stream: Arc<dyn Stream>) -> Result<Resident> {
        let path = || stream.origin().to_owned();
        let needed =
            Resident::needed(&*stream).map_err(|why| Error::Invalid { path: path(), why })?;
        let item = stream.schema().item_bytes().unwrap_or(1);
        let stride = item.next_multiple_of(page_size());
        let len = NonZeroUsize::new(needed as usize).unwrap_or(NonZeroUsize::MIN);
        let count = if item == stride { (LARGE / item).max(1) } else { 1 };
        let memory = Kept::new(len, |all| {
            let parts = all.par_chunks_mut((count * stride) as usize).enumerate();
            parts.try_for_each(|(i, out)| {
                let first = i as u64 * count;
                let ids: Vec<u64> = (first..stream.len().min(first + count)).collect();
                let bytes = ids.len() as u64 * item;
                stream.gather(&ids, &mut out[..bytes as usize]).map_err(Failed::Stream)
            })
        });
        let memory = memory.map_err(|failed| match failed {
            Failed::Stream(e) => e,
            Failed::Io(source) => Error::io(path(), "cannot be kept in memory")(source),
        })?;
        Ok(Resident { memory, item: item as usize, stride: stride as usize, stream })
    }

    /// The memfd that has the records.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Bytes from the beginning of a record to that of the next, in a batch made of [pieces](Self::pieces).
    pub fn stride(&self) -> u64 {
        self.stride as u64
    }

    /// Where the records `ids` lie, in this order; neighbours are one piece.
    ///
    /// # Errors
    /// [`Error::NoSuchRecord`].
    pub fn pieces(&self, ids: &[u64]) -> Result<Vec<Piece>> {
        check_ids(self.origin(), ids, self.len())?;
        let len = self.stride();
        let mut pieces: Vec<Piece> = Vec::with_capacity(ids.len());
        for id in ids {
            let offset = id * len;
            match pieces.last_mut() {
                Some(last) if last.offset + last.len == offset => last.len += len,
                _ => pieces.push(Piece { offset, len }),
            }
        }
        Ok(pieces)
    }
}

enum Failed {
    Stream(Error),
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Failed {
        Failed::Io(e)
    }
}

impl Stream for Resident {
    fn schema(&self) -> &Schema {
        self.stream.schema()
    }

    fn len(&self) -> u64 {
        self.stream.len()
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        check_request(self, ids, self.item, out.len())?;
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(self.item)) {
            if !self.memory.copy(*id as usize * self.stride, out) {
                let (path, record, len) = (self.origin().to_owned(), *id, self.len());
                return Err(Error::NoSuchRecord { path, record, len });
            }
        }
        Ok(())
    }

    fn origin(&self) -> &Path {
        self.stream.origin()
    }

    fn modified(&self) -> SystemTime {
        self.stream.modified()
    }
}

/// Bytes that the system can still give, as far as it tells.
pub(crate) fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |n| n << 10)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use batchfs_store::{Codec, DType, OpenOptions, Store, StoreWriter, WriteOptions};
    use proptest::prelude::*;

    use super::*;

    fn store(folder: &Path, schema: Schema, records: usize, codec: Codec) -> Arc<dyn Stream> {
        let item = schema.item_bytes().unwrap_or(0) as usize;
        let bytes: Vec<u8> = (0..item * records).map(|i| (i / 5 + i / 4093) as u8).collect();
        let path = folder.join("s");
        let options = WriteOptions { codec, ..WriteOptions::default() };
        let mut writer = StoreWriter::create(&path, schema, options).unwrap();
        writer.append(&bytes).unwrap();
        writer.finish().unwrap();
        Arc::new(Store::open(&path, OpenOptions::default()).unwrap())
    }

    #[test]
    fn records_in_memory_are_those_of_the_stream_each_at_a_page() {
        let page = page_size();
        let more = vec![3, page / 2 + 2];
        for (shape, stride) in [(vec![page], page), (vec![page + 1], 2 * page), (more, 2 * page)] {
            for codec in [Codec::Raw, Codec::Zstd] {
                let folder = tempfile::tempdir().unwrap();
                let schema = Schema::dense(DType::UInt8, shape.clone());
                let stream = store(folder.path(), schema, 2100, codec);
                let resident = Resident::load(stream.clone()).unwrap();
                assert_eq!((resident.stride(), resident.bytes()), (stride, 2100 * stride));
                let ids = [0, 2099, 7, 7, 1024];
                let item = shape.iter().product::<u64>() as usize;
                let (mut a, mut b) = (vec![0; 5 * item], vec![1; 5 * item]);
                stream.gather(&ids, &mut a).unwrap();
                resident.gather(&ids, &mut b).unwrap();
                assert!(a == b);
                let file = std::fs::File::from(resident.file().try_clone_to_owned().unwrap());
                for (i, id) in ids.iter().enumerate() {
                    let mut seen = vec![0; item];
                    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, id * stride)
                        .unwrap();
                    assert!(seen == a[i * item..][..item]);
                }
                assert!(resident.gather(&[2100], &mut a[..item]).is_err());
                assert!(resident.pieces(&[2100]).is_err());
            }
        }
    }

    #[test]
    fn what_is_not_kept_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let labels = store(folder.path(), Schema::dense(DType::Int64, []), 10, Codec::Raw);
        let why = Resident::needed(&*labels).unwrap_err();
        let page = page_size();
        let wanted = format!("records of 8 bytes are not kept in memory: each would take {page}");
        assert_eq!(why, wanted);
        let folder = tempfile::tempdir().unwrap();
        let half = store(folder.path(), Schema::dense(DType::UInt8, [page / 2]), 10, Codec::Raw);
        assert_eq!(Resident::needed(&*half), Ok(10 * page));
        let folder = tempfile::tempdir().unwrap();
        let schema = Schema::dense(DType::UInt8, [2048]);
        let empty = store(folder.path(), schema, 0, Codec::Raw);
        assert_eq!(Resident::needed(&*empty).unwrap_err(), "it has no bytes");
        assert!(Resident::load(empty).is_err());
    }

    proptest! {
        #[test]
        fn pieces_joined_are_the_records_in_order(ids in proptest::collection::vec(0u64..20, 1..60)) {
            static STREAM: OnceLock<Resident> = OnceLock::new();
            let resident = STREAM.get_or_init(|| {
                let folder = tempfile::tempdir().unwrap();
                let schema = Schema::dense(DType::UInt8, [page_size()]);
                Resident::load(store(folder.path(), schema, 20, Codec::Raw)).unwrap()
            });
            let pieces = resident.pieces(&ids).unwrap();
            let pages: Vec<u64> = pieces
                .iter()
                .flat_map(|p| p.offset / page_size()..(p.offset + p.len) / page_size())
                .collect();
            prop_assert_eq!(pages, ids.clone());
            let runs = 1 + ids.windows(2).filter(|w| w[1] != w[0] + 1).count();
            prop_assert_eq!(pieces.len(), runs);
        }
    }
}
