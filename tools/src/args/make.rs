//! Commands that write data.

use std::path::PathBuf;

use batchfs_store::Codec;
use bytesize::ByteSize;
use clap::Args as ClapArgs;

use super::{Types, codec};

/// Make a record store from a .npy file, a zrecord container or another store; or a dataset of many.
///
/// It is there whole or not at all: it gets its name when everything is on the disk. A folder of
/// such sources, or several --from, become a folder of stores, one for each; they must have
/// as many records as one another. .npy files may be in Fortran order or big-endian: these are
/// converted.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs create train/images --from images.npy
  batchfs create train/labels --from labels.npy --codec zstd
  batchfs create train/x --from x.npy --dtype bfloat16
  batchfs create train/text --from values.npy --offsets cu.npy       records of different lengths
  batchfs create train --from arrays/               a dataset of all that is in the folder
  batchfs create train --from x=images.npy --from y=2024/labels.npy  a dataset with these names
  batchfs create train --from loaderx/train --codec zstd             containers of loaderx
  batchfs mount train /mnt/ds            a folder of stores is one dataset")]
pub struct Create {
    /// The store to make, or the folder of stores; must not exist
    pub dest: PathBuf,
    /// Where the records come from: a .npy file, whose first axis counts them, a zrecord container,
    /// a store, or a folder of these. May be given more than once: then each becomes a stream,
    /// called NAME, or after the path
    #[arg(long, value_name = "[NAME=]PATH", required = true)]
    pub from: Vec<PathBuf>,
    /// Files that the records are spread over, 1 to 255: more of them write and read in parallel
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub shards: u32,
    /// How records are kept: as they are, or compressed one by one, without or with a dictionary
    #[arg(long, default_value = "raw", value_name = "raw|zstd|zstd_dict", value_parser = codec)]
    pub codec: Codec,
    /// How hard zstd tries
    #[arg(long, default_value_t = 3, allow_negative_numbers = true)]
    pub level: i32,
    /// The dictionary for zstd_dict, made by `batchfs train-dict`
    #[arg(long, value_name = "FILE")]
    pub dict: Option<PathBuf>,
    /// Records of different lengths: where each starts in the one-dimensional values, and the end
    #[arg(long, value_name = "cu.npy")]
    pub offsets: Option<PathBuf>,
    /// The shapes of such records, (records, axes); without it they have one axis
    #[arg(long, value_name = "s.npy", requires = "offsets")]
    pub shapes: Option<PathBuf>,
    #[command(flatten)]
    pub types: Types,
}

/// Write a store or a dataset in a format of other programs: zrecord (loaderx) or .npy.
///
/// What is written is there whole or not at all. Of a dataset of several streams it is a folder,
/// with a container or a .npy file for each. Ragged records become a folder of values.npy,
/// cu_seqlens.npy and shapes.npy, which `batchfs create --from` and `mount` read.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs export train out --format zrecord --codec zstd
  batchfs export train/images images.npy --format npy
  batchfs export train/tokens out --format zrecord --codec zstd_dict --dict tokens.dict")]
pub struct Export {
    /// A store, a zrecord container, a .npy file, or a folder of these
    pub source: PathBuf,
    /// What to write; must not exist
    pub dest: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// Files that the records of a container are spread over, 1 to 255
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub shards: u32,
    /// How the records of a container are kept
    #[arg(long, default_value = "raw", value_name = "raw|zstd|zstd_dict", value_parser = codec)]
    pub codec: Codec,
    /// How hard zstd tries
    #[arg(long, default_value_t = 3, allow_negative_numbers = true)]
    pub level: i32,
    /// The dictionary for zstd_dict, made by `batchfs train-dict`
    #[arg(long, value_name = "FILE")]
    pub dict: Option<PathBuf>,
    #[command(flatten)]
    pub types: Types,
}

/// What streams are exported as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// Containers that loaderx reads
    Zrecord,
    /// Arrays that NumPy reads
    Npy,
}

/// Train a dictionary on a stream, for stores of many small and similar records.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs train-dict sample/tokens -o tokens.dict
  batchfs create train/tokens --from tokens.npy --codec zstd_dict --dict tokens.dict")]
pub struct TrainDict {
    /// A store, a zrecord container or a .npy file, as representative as can be
    pub source: PathBuf,
    /// The file to write; must not exist
    #[arg(short, long, value_name = "F")]
    pub output: PathBuf,
    /// How large it may become
    #[arg(long, default_value = "110KiB", value_name = "SIZE")]
    pub size: ByteSize,
    #[command(flatten)]
    pub types: Types,
}
