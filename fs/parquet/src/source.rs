use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use batchfs_store::{
    DType, Error, GroupCounts, GroupPlace, GroupRead, Result, Spare, TokenFile, TokenGroup,
    TokenSource,
};
use bytes::Bytes;
use twox_hash::XxHash3_128;
use url::Url;

use crate::chunk::Chunk;
use crate::column::Ints;
use crate::index::{Indexed, index};
use crate::local::Local;
use crate::place::{Place, bad_file, has_suffix, is_hidden};
use crate::remote::Remote;
use crate::{cache, decode, packed};

/// How a dataset is opened.
#[derive(Clone)]
pub struct Options {
    /// The column of tokens; dots lead into structs.
    pub column: String,
    /// Where the index is kept: `None` for the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Settings of the object store, such as `endpoint` and `region`, before the environment's.
    pub storage: BTreeMap<String, String>,
    /// Once this is set nobody waits any more: opening ends at the next file or row group.
    pub stop: Option<Arc<AtomicBool>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of settings may be secret.
        let Options { column, cache, storage, stop } = self;
        let mut all = f.debug_struct("Options");
        all.field("column", column).field("cache", cache).field("stop", stop);
        all.field("storage", &storage.keys()).finish()
    }
}

impl Default for Options {
    /// The column `tokens`, the index in the user's cache folder.
    fn default() -> Self {
        let column = "tokens".to_owned();
        Self { column, cache: None, storage: BTreeMap::new(), stop: None }
    }
}

/// Documents of tokens in the Parquet files of a dataset.
pub struct ParquetTokens {
    place: Box<dyn Place>,
    column: String,
    files: Vec<Indexed>,
    /// File and row group in it, for each row group of the dataset.
    groups: Vec<(u32, u32)>,
    counts: Vec<GroupCounts>,
    dtype: DType,
    fingerprint: u128,
    /// As many buffers of row groups as are decoded at a time.
    spare: Arc<Spare>,
}

/// How much is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCounts<'a> {
    /// Its name within the dataset.
    pub name: &'a str,
    /// Row groups.
    pub row_groups: u64,
    /// Tokens of all of them.
    pub tokens: u64,
    /// Documents of all of them, empty ones included.
    pub documents: u64,
}

/// Whether `source` is Parquet for all that can be seen without opening it: an address, a Parquet
/// file, or a folder that has one.
pub fn is_parquet(source: &str) -> bool {
    /// Each folder is looked into once, whatever links there are.
    fn holds(folder: &Path, seen: &mut HashSet<PathBuf>) -> bool {
        if !folder.canonicalize().is_ok_and(|real| seen.insert(real)) {
            return false;
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut folders = Vec::new();
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            if is_hidden(name.as_encoded_bytes()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if has_suffix(&name.to_string_lossy()) {
                return true;
            }
        }
        folders.iter().any(|folder| holds(folder, seen))
    }
    if source.contains("://") {
        return true;
    }
    let path = Path::new(source);
    if path.is_dir() { holds(path, &mut HashSet::new()) } else { has_suffix(source) }
}

impl ParquetTokens {
    /// Opens the dataset at `source`: a file, a folder, or an address.
    ///
    /// # Errors
    /// [`Error::BadStore`] for a file that is not Parquet or lacks the column, and for a dataset
    /// without any token; [`Error::RowGroup`] for a row group that cannot be right;
    /// [`Error::Io`] for what cannot be read.
    pub fn open(source: &str, options: &Options) -> Result<ParquetTokens> {
        let place = open_place(source, options)?;
        let files = place.list()?;
        if files.is_empty() {
            let why = "has no .parquet files in it (names that begin with a dot or _ do not count); name a folder that has some, at any depth";
            return Err(bad_file(place.origin().to_owned(), why));
        }
        let column = &options.column;
        let folder = options.cache.clone().or_else(cache::folder);
        let known = folder.as_deref().map(|f| cache::load(f, place.origin(), column));
        let known = known.unwrap_or_default();
        let stop = options.stop.clone().unwrap_or_default();
        let files = index(&*place, files, column, known.clone(), &stop)?;
        if let Some(folder) = folder.filter(|_| files != known) {
            cache::store(&folder, place.origin(), column, &files);
        }
        ParquetTokens::join(place, column.clone(), files)
    }

    fn join(place: Box<dyn Place>, column: String, files: Vec<Indexed>) -> Result<ParquetTokens> {
        let (mut groups, mut counts) = (Vec::new(), Vec::new());
        let mut print = XxHash3_128::new();
        let mut add = |text: &str| {
            print.write(text.as_bytes());
            print.write(b"\n");
        };
        for (f, indexed) in (0u32..).zip(&files) {
            add(inner_name(&*place, indexed));
            add(&indexed.footer);
            add(&format!("{:?}", indexed.column));
            for (g, chunk) in (0u32..).zip(&indexed.chunks) {
                groups.push((f, g));
                counts.push(GroupCounts {
                    tokens: chunk.tokens.unwrap_or(0),
                    documents: chunk.documents,
                });
            }
        }
        if counts.iter().all(|count| count.tokens == 0) {
            let why = format!(
                "has no tokens at all in column {column:?} of its {} file(s); name another column with --column, or other files",
                files.len()
            );
            return Err(bad_file(place.origin().to_owned(), why));
        }
        let unsigned = |indexed: &Indexed| indexed.column.ints == Ints::UInt32;
        let dtype = if files.iter().any(unsigned) { DType::UInt32 } else { DType::Int32 };
        let fingerprint = print.finish_128();
        let spare = Spare::new(std::thread::available_parallelism().map_or(1, usize::from));
        Ok(ParquetTokens { place, column, files, groups, counts, dtype, fingerprint, spare })
    }

    fn chunk(&self, group: usize) -> (&Indexed, &Chunk) {
        let (file, group) = self.groups[group];
        let indexed = &self.files[file as usize];
        (indexed, &indexed.chunks[group as usize])
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> (&Chunk, &crate::column::Column) {
        let (indexed, chunk) = self.chunk(0);
        (chunk, &indexed.column)
    }

    fn decode(&self, group: usize, bytes: Bytes) -> Result<TokenGroup> {
        let (indexed, chunk) = self.chunk(group);
        let decoded = decode::decode(chunk, &indexed.column, bytes, &self.spare);
        decoded.map_err(|failure| Error::RowGroup {
            file: self.place.name(&indexed.file.key),
            group: self.groups[group].1.into(),
            row: failure.row,
            why: failure.why,
        })
    }

    /// Files of the dataset, in its order.
    pub fn files(&self) -> impl Iterator<Item = FileCounts<'_>> {
        self.files.iter().map(|indexed| {
            let sum = |of: fn(&Chunk) -> u64| indexed.chunks.iter().map(of).sum();
            FileCounts {
                name: inner_name(&*self.place, indexed),
                row_groups: indexed.chunks.len() as u64,
                tokens: sum(|chunk| chunk.tokens.unwrap_or(0)),
                documents: sum(|chunk| chunk.documents),
            }
        })
    }
}

/// The name of a file within its dataset. One that is opened by itself is named as it is in a folder.
fn inner_name<'a>(place: &'a dyn Place, indexed: &'a Indexed) -> &'a str {
    match indexed.file.key.as_str() {
        "" => place.origin().rsplit('/').next().unwrap_or(""),
        key => key,
    }
}

fn open_place(source: &str, options: &Options) -> Result<Box<dyn Place>> {
    // A path may have a colon in it, but no scheme with two slashes.
    if !source.contains("://") {
        return Ok(Box::new(Local::new(Path::new(source))?));
    }
    if source.starts_with("file://") {
        let path = Url::parse(source).ok().and_then(|url| url.to_file_path().ok());
        let no = || {
            let why = "is no path on this machine; write file:///absolute/path, or the plain path";
            bad_file(source.to_owned(), why)
        };
        return Ok(Box::new(Local::new(&path.ok_or_else(no)?)?));
    }
    Ok(Box::new(Remote::new(source, &options.storage)?))
}

impl TokenSource for ParquetTokens {
    fn origin(&self) -> &str {
        self.place.origin()
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn groups(&self) -> &[GroupCounts] {
        &self.counts
    }

    fn place(&self, group: usize) -> GroupPlace {
        let (file, group) = self.groups[group];
        let indexed = &self.files[file as usize];
        GroupPlace {
            file: inner_name(&*self.place, indexed).to_owned(),
            group: group.into(),
            bytes: indexed.chunks[group as usize].bytes.clone(),
        }
    }

    fn read(&self, group: usize) -> Result<TokenGroup> {
        let (indexed, chunk) = self.chunk(group);
        let bytes = self.place.read(&indexed.file, chunk.bytes.clone())?;
        self.decode(group, bytes)
    }

    fn read_packed(&self, group: usize) -> Result<GroupRead> {
        let (indexed, chunk) = self.chunk(group);
        let bytes = self.place.read(&indexed.file, chunk.bytes.clone())?;
        let most = packed::most(chunk);
        match packed::pack(chunk, &indexed.column, bytes.clone(), &self.spare, most) {
            Some(packed) => Ok(GroupRead::Packed(Arc::new(packed))),
            None => self.decode(group, bytes).map(GroupRead::Whole),
        }
    }

    fn announce(&self, groups: &[usize]) {
        let range = |&group: &usize| {
            let (file, group) = self.groups[group];
            let indexed = &self.files[file as usize];
            (indexed.file.clone(), indexed.chunks[group as usize].bytes.clone())
        };
        self.place.announce(groups.iter().map(range).collect());
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn column(&self) -> &str {
        &self.column
    }

    fn token_files(&self) -> Vec<TokenFile> {
        let one = |indexed: &Indexed| TokenFile {
            name: inner_name(&*self.place, indexed).to_owned(),
            fingerprint: XxHash3_128::oneshot(indexed.footer.as_bytes()),
        };
        self.files.iter().map(one).collect()
    }

    fn modified(&self) -> SystemTime {
        let last = self.files.iter().map(|indexed| indexed.file.modified).max();
        SystemTime::UNIX_EPOCH + Duration::from_nanos(last.unwrap_or(0))
    }

    fn received_bytes(&self) -> u64 {
        self.place.received()
    }
}
