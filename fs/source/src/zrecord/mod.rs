//! zrecord, the containers of loaderx, read in place. docs/sources.md tells the format.

mod index;
mod meta;
pub(crate) mod write;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use batchfs_store::{
    Codec, Error, GuardedFile, Layout, Locate as _, Place, Records, Result, Schema, Stream, Verify,
    check_request,
};

use self::index::{Entries, Width};
use self::meta::{ENTRY, FRONT, MAX_SHARDS, Meta};
use crate::bad;

pub(crate) const META: &str = "meta.zr";
const DICTIONARY: &str = "dict.zr";
/// The largest dictionary that is read.
const MAX_DICTIONARY: u64 = 256 << 20;
/// Records that tell how axes are written.
const LOOK_AT: u64 = 16;

/// A zrecord container as a stream, mapped and read in place.
///
/// Such a container has no magic number, no version and no checksums. What can be checked is: that
/// all of its parts have exactly the sizes that they give each other, that its records lie one
/// behind the other, and that each has the length of its shape. A flipped bit in the payload can
/// be other values, in compressed records too. Convert it to a store where that matters.
pub struct Zrecord {
    schema: Schema,
    records: Records<Entries>,
    codec: Codec,
    axes: Option<Width>,
    payload: u64,
    stored: u64,
    modified: SystemTime,
}

impl Zrecord {
    /// Opens the container in the folder `path`, and looks at all of its index: 16 bytes a record.
    ///
    /// # Errors
    /// [`Error::Io`] if files are missing or cannot be read; [`Error::BadStore`] with the reason
    /// for a `meta.zr` that cannot be one, sizes that do not agree, or a container whose writer
    /// never closed it; [`Error::Damaged`] with the record for an entry that cannot be right.
    pub fn open(path: impl AsRef<Path>) -> Result<Zrecord> {
        let path = path.as_ref();
        let place = path.join(META);
        let modified = place
            .metadata()
            .and_then(|m| m.modified())
            .map_err(Error::io(&place, "cannot open"))?;
        let file = GuardedFile::open(&place)?;
        let mut front = [0; FRONT];
        if file.len() < FRONT as u64 {
            return Err(bad(&place, format!("has {} bytes, fewer than its header", file.len())));
        }
        file.read_at(0, &mut front)?;
        let Meta { records, codec, schema, shard_bytes } =
            Meta::parse(&front).map_err(|why| bad(&place, why))?;

        check_closed(path, &file, records, &shard_bytes)?;
        let shards = open_shards(path, &shard_bytes)?;
        let dictionary = read_dictionary(path, codec)?;

        let ndim = match schema.layout {
            Layout::Dense { .. } => 0,
            Layout::Ragged { ndim } => ndim as usize,
        };
        let stored = shard_bytes.iter().fold(0, |n: u64, bytes| n.saturating_add(*bytes));
        let mut index = Entries {
            origin: path.into(),
            meta: file,
            records,
            shards: shard_bytes,
            codec,
            size: 1,
            item: schema.item_bytes(),
            ndim: 0,
            width: Width::U32,
        };
        let size = schema.dtype.size() as u64;
        let axes = match (ndim, records) {
            (0, _) | (_, 0) => None,
            _ => Some(axes_of(&index, (ndim, size), &shards, dictionary.as_deref())?),
        };
        (index.size, index.ndim) = (size, ndim);
        index.width = axes.unwrap_or(Width::U32);
        let payload = index.check_all()?.payload;
        let records = Records::new(path.into(), shards, index, dictionary.as_deref())?;
        Ok(Zrecord { schema, records, codec, axes, payload, stored, modified })
    }

    /// How the records are kept.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Number of files that the records are spread over.
    pub fn shards(&self) -> u32 {
        self.records.index().shards.len() as u32
    }

    /// Bytes that the records take on disk, without the index.
    pub fn stored_bytes(&self) -> u64 {
        self.stored
    }

    /// The version of loaderx that writes such containers, if this one tells: the axes of ragged
    /// records had 64 bits until 2.8.18.
    pub fn written_by(&self) -> Option<&'static str> {
        Some(match self.axes? {
            Width::U32 => "loaderx 2.8.19",
            Width::U64 => "loaderx 2.8.18",
        })
    }
}

/// Refuses what was never closed, and an index that is not as long as it has to be.
fn check_closed(path: &Path, meta: &GuardedFile, records: u64, shard_bytes: &[u64]) -> Result<()> {
    let data = (0..shard_bytes.len()).map(|k| shard_name(path, k));
    let data: u64 = data.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if records == 0 && shard_bytes.iter().all(|n| *n == 0) {
        if meta.len() > FRONT as u64 || data > 0 {
            let why = format!(
                "was never closed: its writer was killed, or is at work still; {META} counts no records, though there are {} in the index and {data} bytes of data; make it anew",
                (meta.len() - FRONT as u64) / ENTRY as u64,
            );
            return Err(bad(path, why));
        }
        return Ok(());
    }
    let want = records.checked_mul(ENTRY as u64).and_then(|n| n.checked_add(FRONT as u64));
    if want != Some(meta.len()) {
        let why = format!(
            "has {} bytes, but {records} records make it {}",
            meta.len(),
            want.map_or("more than a file can have".into(), |n| n.to_string())
        );
        return Err(bad(meta.path(), why));
    }
    Ok(())
}

fn shard_name(path: &Path, shard: usize) -> PathBuf {
    path.join(format!("data_{shard}.zr"))
}

fn open_shards(path: &Path, shard_bytes: &[u64]) -> Result<Vec<GuardedFile>> {
    let mut shards = Vec::with_capacity(shard_bytes.len());
    for (k, want) in shard_bytes.iter().enumerate() {
        let file = GuardedFile::open(shard_name(path, k))?;
        if file.len() != *want {
            let why = format!("has {} bytes, but {META} says {want}", file.len());
            return Err(bad(file.path(), why));
        }
        shards.push(file);
    }
    let next = shard_name(path, shards.len());
    if shards.len() < MAX_SHARDS && next.exists() {
        let why = format!("is there, but {META} tells of {} shard(s) only", shards.len());
        return Err(bad(&next, why));
    }
    Ok(shards)
}

fn read_dictionary(path: &Path, codec: Codec) -> Result<Option<Vec<u8>>> {
    let file = path.join(DICTIONARY);
    if codec != Codec::ZstdDict {
        return match file.exists() {
            true => Err(bad(&file, format!("is there, but the codec is {}", codec.name()))),
            false => Ok(None),
        };
    }
    let len = file.metadata().map_err(Error::io(&file, "cannot open"))?.len();
    if len == 0 || len > MAX_DICTIONARY {
        return Err(bad(&file, format!("has {len} bytes; no dictionary is like that")));
    }
    std::fs::read(&file).map(Some).map_err(Error::io(&file, "cannot read"))
}

/// How the axes of ragged records are written: no field says so, but the records' lengths do. To
/// `index` heads are part of the records still.
fn axes_of(
    index: &Entries,
    (ndim, size): (usize, u64),
    shards: &[GuardedFile],
    dictionary: Option<&[u8]>,
) -> Result<Width> {
    let looked = index.records.min(LOOK_AT);
    let step = index.records / looked.max(1);
    let mut found = None;
    for id in (0..looked).map(|i| i * step) {
        let mut place = [Place::default()];
        index.locate(&[id], &mut place)?;
        let [place] = place;
        let whole = u64::from(place.raw);
        let most = ndim * Width::U64 as usize;
        let head = head_of(&shards[place.file as usize], &place, most, dictionary)
            .map_err(|e| damage(index, id, e))?;
        let fits = |width: Width| {
            let head = head.get(..ndim * width as usize);
            head.is_some_and(|head| width.fits(head, size, whole))
        };
        let width = match (fits(Width::U32), fits(Width::U64)) {
            (true, false) => Width::U32,
            (false, true) => Width::U64,
            _ => {
                let why = format!(
                    "begins with no shape that makes its {whole} bytes, neither as loaderx 2.8.19 nor as 2.8.18 writes it"
                );
                return Err(index.damaged(id, why));
            }
        };
        if found.replace(width).is_some_and(|before| before != width) {
            let why = "has a shape written otherwise than those of other records".into();
            return Err(index.damaged(id, why));
        }
    }
    Ok(found.unwrap_or(Width::U32))
}

/// The first bytes of a record, `most` of them or what there is.
fn head_of(
    shard: &GuardedFile,
    place: &Place,
    most: usize,
    dictionary: Option<&[u8]>,
) -> Result<Vec<u8>> {
    if !place.frame {
        let mut head = vec![0; most.min(place.stored as usize)];
        shard.read_at(place.offset, &mut head)?;
        return Ok(head);
    }
    let mut frame = vec![0; place.stored as usize];
    shard.read_at(place.offset, &mut frame)?;
    let mut head = Vec::new();
    zstd::stream::read::Decoder::with_dictionary(frame.as_slice(), dictionary.unwrap_or_default())
        .and_then(|decoder| decoder.take(most as u64).read_to_end(&mut head))
        .map_err(|e| {
            bad(shard.path(), format!("holds a frame that cannot be decompressed: {e}"))
        })?;
    Ok(head)
}

fn damage(index: &Entries, record: u64, e: Error) -> Error {
    match e {
        Error::BadStore { why, .. } => index.damaged(record, why),
        e => e,
    }
}

impl Stream for Zrecord {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.records.index().records
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        // There are no checksums; shapes and frames are looked at in any case.
        self.records.gather(ids, out, Verify::Never)
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        check_request(self, ids, 1, out.len())?;
        self.records.index().elements(ids, out)
    }

    /// With more than one axis these are read from the records, which are decompressed for it.
    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        check_request(self, ids, self.schema.ndim(), out.len())?;
        match &self.schema.layout {
            Layout::Dense { item_shape } => {
                out.chunks_exact_mut(item_shape.len().max(1))
                    .for_each(|out| out.copy_from_slice(item_shape));
                Ok(())
            }
            Layout::Ragged { ndim: 1 } => self.records.index().elements(ids, out),
            Layout::Ragged { .. } => {
                let index = self.records.index();
                let mut heads = vec![0; ids.len() * index.head()];
                self.records.heads(ids, &mut heads)?;
                out.iter_mut().zip(index.width.axes(&heads)).for_each(|(out, n)| *out = n);
                Ok(())
            }
        }
    }

    fn origin(&self) -> &Path {
        self.records.origin()
    }

    /// The time of change of `meta.zr` when the container was opened.
    fn modified(&self) -> SystemTime {
        self.modified
    }
}
