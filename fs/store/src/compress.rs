//! Zstandard, record by record: contexts that are kept, and dictionaries prepared once.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use zstd::zstd_safe::{self, CCtx, CDict, CParameter, DCtx, DDict};

/// What a dictionary of the format begins with.
const MAGIC: [u8; 4] = 0xec30_a437u32.to_le_bytes();
/// The largest dictionary that a store has.
pub(crate) const MAX_DICTIONARY: usize = 16 << 20;
/// The longest head of a record.
pub(crate) const MAX_HEAD: usize = 512;
/// Scratch memory above this is not kept.
const KEEP: usize = 4 << 20;

/// The levels that there are.
pub(crate) fn levels() -> RangeInclusive<i32> {
    zstd_safe::min_c_level()..=zstd_safe::max_c_level()
}

pub(crate) fn check_level(level: i32) -> Result<(), String> {
    let levels = levels();
    if levels.contains(&level) {
        return Ok(());
    }
    Err(format!(
        "level {level} is not one of zstd, which has {} to {}",
        levels.start(),
        levels.end()
    ))
}

/// Whether bytes are a dictionary in the format of zstd.
pub(crate) fn check_dictionary(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MAX_DICTIONARY {
        return Err(format!(
            "a dictionary of {} bytes is larger than the {MAX_DICTIONARY} that a store takes",
            bytes.len()
        ));
    }
    if !bytes.starts_with(&MAGIC) || DDict::try_create(bytes).is_none() {
        return Err(format!(
            "the {} bytes given are not a zstd dictionary; train_dict makes one",
            bytes.len()
        ));
    }
    Ok(())
}

/// Makes frames, on any number of threads.
pub(crate) struct Encoder {
    level: i32,
    dictionary: Option<Vec<u8>>,
    idle: Mutex<Vec<CCtx<'static>>>,
}

impl Encoder {
    pub(crate) fn new(level: i32, dictionary: Option<&[u8]>) -> Result<Self, String> {
        check_level(level)?;
        if let Some(bytes) = dictionary {
            check_dictionary(bytes)?;
            if CDict::try_create(bytes, level).is_none() {
                return Err("zstd cannot use the dictionary".into());
            }
        }
        let dictionary = dictionary.map(<[u8]>::to_vec);
        Ok(Self { level, dictionary, idle: Mutex::new(Vec::new()) })
    }

    /// A context for [`Frames::push`]; it goes back to the others when dropped.
    pub(crate) fn frames(&self) -> Result<Frames<'_>, String> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let context = match idle {
            Some(context) => context,
            None => self.context()?,
        };
        Ok(Frames { encoder: self, context: Some(context) })
    }

    fn context(&self) -> Result<CCtx<'static>, String> {
        let mut context = CCtx::try_create().ok_or("no memory for compressing")?;
        // The index has each record's length, checksum and dictionary.
        for parameter in [
            CParameter::CompressionLevel(self.level),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).map_err(told)?;
        }
        if let Some(bytes) = &self.dictionary {
            context.load_dictionary(bytes).map_err(told)?;
        }
        Ok(context)
    }
}

/// Makes frames on one thread.
pub(crate) struct Frames<'a> {
    encoder: &'a Encoder,
    context: Option<CCtx<'static>>,
}

impl Frames<'_> {
    /// Adds to `into` the record as a frame, or as it is if that is not larger, and gives the
    /// number of bytes added: below `raw.len()` it is a frame.
    pub(crate) fn push(&mut self, raw: &[u8], into: &mut Vec<u8>) -> Result<usize, String> {
        let start = into.len();
        if let (Some(context), false) = (&mut self.context, raw.is_empty()) {
            into.resize(start + zstd_safe::compress_bound(raw.len()), 0);
            let len = context.compress2(&mut into[start..], raw).map_err(told)?;
            into.truncate(start + len);
            if len < raw.len() {
                return Ok(len);
            }
            into.truncate(start);
        }
        into.extend_from_slice(raw);
        Ok(raw.len())
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.encoder.idle.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        }
    }
}

/// Reads frames, on any number of threads.
pub(crate) struct Decoder {
    dictionary: Option<DDict<'static>>,
}

/// What a thread keeps for reading frames.
#[derive(Default)]
pub(crate) struct Scratch {
    context: Option<DCtx<'static>>,
    /// For a frame, copied out of its mapping: zstd must not see bytes that change.
    pub(crate) stored: Vec<u8>,
    /// For what a frame decompresses to, where that begins with a head.
    raw: Vec<u8>,
    /// The head of the last record that had one.
    pub(crate) head: Head,
}

/// Room for a head.
pub(crate) struct Head([u8; MAX_HEAD]);

impl Default for Head {
    fn default() -> Self {
        Self([0; MAX_HEAD])
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Head {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Scratch {
    /// Room for a frame of `len` bytes.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.stored.len() < len {
            self.stored.resize(len, 0);
        }
        &mut self.stored[..len]
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Calls `f`, which must not do so itself, with what this thread keeps.
pub(crate) fn with_scratch<T>(f: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        let done = f(scratch);
        for kept in [&mut scratch.stored, &mut scratch.raw] {
            if kept.capacity() > KEEP {
                *kept = Vec::new();
            }
        }
        done
    })
}

impl Decoder {
    /// A dictionary without the magic number of zstd's format is one of content alone.
    pub(crate) fn new(dictionary: Option<&[u8]>) -> Result<Self, String> {
        let Some(bytes) = dictionary else { return Ok(Self { dictionary: None }) };
        let dictionary = DDict::try_create(bytes).ok_or("is not a dictionary that zstd can use")?;
        Ok(Self { dictionary: Some(dictionary) })
    }

    /// Decodes the frame of `len` bytes that is in `scratch`, to exactly `head` bytes, which are
    /// left there, and then `out.len()` bytes.
    pub(crate) fn decode(
        &self,
        scratch: &mut Scratch,
        len: usize,
        head: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        let Scratch { context, stored, raw, head: kept } = scratch;
        let context = match context {
            Some(context) => context,
            none => none.insert(DCtx::try_create().ok_or("no memory for decompressing")?),
        };
        if head == 0 {
            return self.decode_to(context, &stored[..len], out);
        }
        let whole = head + out.len();
        if raw.len() < whole {
            raw.resize(whole, 0);
        }
        self.decode_to(context, &stored[..len], &mut raw[..whole])?;
        kept[..head].copy_from_slice(&raw[..head]);
        out.copy_from_slice(&raw[head..whole]);
        Ok(())
    }

    fn decode_to(
        &self,
        context: &mut DCtx<'static>,
        frame: &[u8],
        out: &mut [u8],
    ) -> Result<(), String> {
        let len = match &self.dictionary {
            Some(dictionary) => context.decompress_using_ddict(out, frame, dictionary),
            None => context.decompress(out, frame),
        };
        let len = len.map_err(|code| format!("cannot be decompressed: {}", told(code)))?;
        if len != out.len() {
            return Err(format!("decompresses to {len} bytes, not the {} of its shape", out.len()));
        }
        Ok(())
    }
}

fn told(code: usize) -> String {
    zstd_safe::get_error_name(code).to_owned()
}
