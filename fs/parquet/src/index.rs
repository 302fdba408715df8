//! How much is in each row group of each file, and where.

use std::io::ErrorKind;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use batchfs_store::{Error, Result};
use parquet::file::metadata::{FooterTail, ParquetMetaDataReader};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::allowance::Allowance;
use crate::chunk::Chunk;
use crate::column::{self, Column};
use crate::count::count;
use crate::footer;
use crate::place::{File, Place, bad_file};

/// Bytes at the end of a file that are read at first: most footers are shorter.
const TAIL: u64 = 64 << 10;
/// Bytes behind a footer.
const FOOTER: u64 = 8;
/// Footers take ten times as much memory when they are decoded.
const LARGEST: u64 = 256 << 20;

/// Bytes of columns, and of large footers, that are looked at together. Many are waited for at a time.
const TOGETHER: u64 = 256 << 20;

/// A file and its row groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Indexed {
    pub(crate) file: File,
    pub(crate) column: Column,
    /// A hash of the footer: in another place or at another time the same for the same file.
    pub(crate) footer: String,
    pub(crate) chunks: Vec<Chunk>,
}

/// Indexes `files`. Those that `known` has in the same version are taken from there.
pub(crate) fn index(
    place: &dyn Place,
    files: Vec<File>,
    name: &str,
    known: Vec<Indexed>,
    stop: &AtomicBool,
) -> Result<Vec<Indexed>> {
    let limits = Limits { allowance: Allowance::new(TOGETHER), stop };
    index_within(place, files, name, known, &limits)
}

/// What bounds the work of all threads.
struct Limits<'a> {
    allowance: Allowance,
    stop: &'a AtomicBool,
}

impl Limits<'_> {
    fn check(&self, place: &dyn Place) -> Result<()> {
        if !self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::io(place.origin(), "cannot index")(ErrorKind::Interrupted.into()))
    }
}

fn index_within(
    place: &dyn Place,
    files: Vec<File>,
    name: &str,
    known: Vec<Indexed>,
    limits: &Limits<'_>,
) -> Result<Vec<Indexed>> {
    let mut known: std::collections::HashMap<String, Indexed> =
        known.into_iter().map(|indexed| (indexed.file.key.clone(), indexed)).collect();
    let old: Vec<Option<Indexed>> = files
        .iter()
        .map(|file| known.remove(&file.key).filter(|indexed| indexed.file == *file))
        .collect();
    let made: Vec<Mutex<Option<Result<Indexed>>>> =
        old.into_iter().map(|indexed| Mutex::new(indexed.map(Ok))).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        // The first file of those that are bad is reported, whatever thread was faster.
        if at >= files.len() || at > failed.load(Ordering::Relaxed) {
            return;
        }
        let mut slot = made[at].lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let one = index_file(place, &files[at], name, limits);
            if one.is_err() {
                failed.fetch_min(at, Ordering::Relaxed);
            }
            *slot = Some(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..place.parallel().min(files.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    made.into_iter()
        .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

fn index_file(place: &dyn Place, file: &File, name: &str, limits: &Limits<'_>) -> Result<Indexed> {
    limits.check(place)?;
    let shown = || place.name(&file.key);
    let bad = |why: String| bad_file(shown(), why);
    if file.size < 2 * FOOTER - 4 {
        return Err(bad(format!(
            "is {} bytes long, which is no Parquet file; remove it or write it again",
            file.size
        )));
    }
    let mut tail = place.read(file, file.size.saturating_sub(TAIL)..file.size)?;
    let not_parquet =
        |why: String| bad(format!("is no whole Parquet file: {why}; remove it or write it again"));
    let last: [u8; FOOTER as usize] = tail[tail.len() - FOOTER as usize..]
        .try_into()
        .map_err(|_| not_parquet("it is too short".to_owned()))?;
    let footer = FooterTail::try_new(&last).map_err(|e| not_parquet(e.to_string()))?;
    if footer.is_encrypted_footer() {
        let why = "is encrypted, which is not supported; write it without encryption";
        return Err(bad(why.to_owned()));
    }
    let len = footer.metadata_length() as u64;
    let Some(data) = (file.size - FOOTER).checked_sub(len).filter(|&data| data >= 4) else {
        return Err(not_parquet(format!("its footer says that it is {len} bytes long")));
    };
    if len > LARGEST {
        return Err(bad(format!(
            "has a footer of {len} bytes, and at most {LARGEST} are supported; write it with fewer row groups or columns"
        )));
    }
    let mut taken = None;
    if len + FOOTER > tail.len() as u64 {
        taken = Some(limits.allowance.take(len));
        tail = place.read(file, data..file.size)?;
    }
    let end = tail.len() - FOOTER as usize;
    let footer = &tail[end - len as usize..end];
    footer::check(footer).map_err(|why| {
        bad(format!("cannot be taken for Parquet: {why}; remove it or write it again"))
    })?;
    let meta = catch_unwind(|| ParquetMetaDataReader::decode_metadata(footer))
        .map_err(|_| not_parquet("its footer cannot be understood".to_owned()))?
        .map_err(|e| not_parquet(e.to_string()))?;
    let hash = format!("{:032x}", XxHash3_128::oneshot(footer));
    drop((tail, taken));
    let column = column::find(meta.file_metadata().schema_descr(), name).map_err(bad)?;
    let mut chunks = Vec::with_capacity(meta.num_row_groups());
    for (number, group) in (0u64..).zip(meta.row_groups()) {
        let error = |row, why| Error::RowGroup { file: shown(), group: number, row, why };
        let mut chunk = Chunk::new(group, &column, data).map_err(|why| error(None, why))?;
        if u32::try_from(chunk.levels).is_err() {
            let why = format!(
                "has {} values, and at most 4294967295 are supported; write smaller row groups",
                chunk.levels
            );
            return Err(error(None, why));
        }
        if chunk.tokens.is_none() {
            let taken = limits.allowance.take(chunk.bytes.end - chunk.bytes.start);
            limits.check(place)?;
            let bytes = place.read(file, chunk.bytes.clone())?;
            let tokens = count(&chunk, &column, bytes).map_err(|e| error(e.row, e.why))?;
            chunk.tokens = Some(tokens);
            drop(taken);
        }
        chunks.push(chunk);
    }
    Ok(Indexed { file: file.clone(), column, footer: hash, chunks })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI64;
    use std::time::Duration;

    use bytes::Bytes;
    use parquet::data_type::Int32Type;
    use parquet::file::properties::{EnabledStatistics, WriterProperties};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// Many copies of a file, which come slowly.
    struct Slow {
        file: Bytes,
        /// Bytes of columns in memory, and the most that there were.
        held: Arc<[AtomicI64; 2]>,
    }

    struct Held(Bytes, Arc<[AtomicI64; 2]>);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.1[0].fetch_sub(self.0.len() as i64, Ordering::SeqCst);
        }
    }

    impl Place for Slow {
        fn origin(&self) -> &str {
            "slow"
        }

        fn name(&self, key: &str) -> String {
            key.to_owned()
        }

        fn list(&self) -> Result<Vec<File>> {
            let size = self.file.len() as u64;
            let file = |n| File { key: format!("{n}"), size, version: String::new(), modified: 0 };
            Ok((0..32).map(file).collect())
        }

        fn read(&self, _: &File, range: Range<u64>) -> Result<Bytes> {
            let bytes = self.file.slice(range.start as usize..range.end as usize);
            if bytes.len() as u64 == TAIL {
                return Ok(bytes);
            }
            let now = self.held[0].fetch_add(bytes.len() as i64, Ordering::SeqCst);
            self.held[1].fetch_max(now + bytes.len() as i64, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            Ok(Bytes::from_owner(Held(bytes, self.held.clone())))
        }

        fn parallel(&self) -> usize {
            16
        }

        fn received(&self) -> u64 {
            0
        }
    }

    #[test]
    fn columns_that_are_counted_together_have_so_many_bytes_at_the_most_and_are_given_up() {
        let schema = parse_message_type("message m { repeated int32 tokens; }").unwrap();
        let properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::None)
            .set_dictionary_enabled(false);
        let properties = Arc::new(properties.build());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), properties).unwrap();
        let tokens = vec![7; 30_000];
        let (defs, reps) = (vec![1; tokens.len()], vec![0; tokens.len()]);
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&tokens, Some(&defs), Some(&reps)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let file = Bytes::from(writer.into_inner().unwrap());

        // Room for three, for less than one, and for all.
        for (most, held) in [(400_000, 3), (1000, 1), (u64::MAX, 16)] {
            let place = Slow { file: file.clone(), held: Default::default() };
            let files = place.list().unwrap();
            let stop = AtomicBool::new(false);
            let limits = Limits { allowance: Allowance::new(most), stop: &stop };
            let indexed =
                index_within(&place, files.clone(), "tokens", Vec::new(), &limits).unwrap();
            assert!(indexed.iter().all(|file| file.chunks[0].tokens == Some(30_000)));
            let column = indexed[0].chunks[0].bytes.end - indexed[0].chunks[0].bytes.start;
            assert!((120_000..130_000).contains(&column));
            let [left, largest] = &*place.held;
            assert_eq!(left.load(Ordering::SeqCst), 0);
            let largest = largest.load(Ordering::SeqCst) as u64 / column;
            assert!(largest <= held, "{largest} of {held}");
            assert!(held == 1 || largest > 1, "{largest} of {held}");

            // Nothing is read any more once nobody waits for it.
            stop.store(true, Ordering::Relaxed);
            let stopped = index_within(&place, files, "tokens", Vec::new(), &limits);
            assert!(stopped.unwrap_err().to_string().contains("slow: cannot index"));
        }
    }
}
