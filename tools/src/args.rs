use std::path::{Path, PathBuf};

use batchfs_sampler::Spec;
use batchfs_source::{DTypes, Said};
use batchfs_store::{Codec, DType};
use bytesize::ByteSize;
use clap::{Args as ClapArgs, Parser, Subcommand};

/// Training data as files: every batch of a training run has a path.
///
/// A dataset is mounted as a read-only filesystem in which <mount>/<stream>/batch/<step> is the
/// sampled batch of that step, ready to mmap from any language.
#[derive(Debug, Parser)]
#[command(name = "batchfs", version, arg_required_else_help = true, after_help = TOP)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

const TOP: &str = "\
Start here:
  batchfs demo                                   the whole of it, on real data, in seconds
  batchfs create train --from images.npy         make a store
  batchfs mount train /mnt/ds --spec batch=256   and read its batches as files
  batchfs doctor                                 what this machine can do";

#[derive(Debug, Subcommand)]
pub enum Command {
    Create(Create),
    TrainDict(TrainDict),
    Info(Info),
    Verify(Verify),
    Ids(Ids),
    Mount(Mount),
    Umount(Umount),
    Doctor(Doctor),
    Demo(Demo),
}

/// Make a record store from a .npy file.
///
/// The store is there whole or not at all: it gets its name when everything is on the disk.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs create train/images --from images.npy
  batchfs create train/labels --from labels.npy --codec zstd
  batchfs create train/x --from x.npy --dtype bfloat16
  batchfs create train/text --from values.npy --offsets cu.npy       records of different lengths
  batchfs mount train /mnt/ds            a folder of stores is one dataset")]
pub struct Create {
    /// The store to make; must not exist
    pub dest: PathBuf,
    /// Where the records come from: a .npy file, whose first axis counts them
    #[arg(long, value_name = "X.npy")]
    pub from: PathBuf,
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

/// What elements are where a file does not say it.
#[derive(Debug, Default, ClapArgs)]
pub struct Types {
    /// What the elements of .npy files are that NumPy has no name for (saved as V2, V1 or f1), such
    /// as bfloat16; of one stream alone with its name in front
    #[arg(long, value_name = "[STREAM=]DTYPE")]
    dtype: Vec<Said>,
}

impl Types {
    pub fn all(&self) -> DTypes {
        self.dtype.clone().into()
    }

    /// What was said of a single file.
    pub fn of(&self, path: &Path) -> Option<DType> {
        let stream = path.file_stem().and_then(|name| name.to_str());
        self.all().of(stream.unwrap_or_default())
    }
}

/// Train a dictionary on a stream, for stores of many small and similar records.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs train-dict sample/tokens -o tokens.dict
  batchfs create train/tokens --from tokens.npy --codec zstd_dict --dict tokens.dict")]
pub struct TrainDict {
    /// A store or a .npy file, as representative as can be
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

/// Show what a store, a folder of stores or a .npy file holds.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs info train
  batchfs info train/images --json")]
pub struct Info {
    /// A store, a folder of stores, or a .npy file
    pub path: PathBuf,
    #[command(flatten)]
    pub types: Types,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Read every byte of a store, or of a folder of stores, and compare all checksums.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs verify train            all streams; exits with 1 if anything is damaged
  batchfs verify train/images")]
pub struct Verify {
    /// A store or a folder of stores
    pub path: PathBuf,
    #[command(flatten)]
    pub types: Types,
}

/// Print the record ids of a step, one per line.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs ids train --spec batch=256,seed=42 --step 17
  batchfs ids train --spec batch=256,rank=3,world=8 --step 0")]
pub struct Ids {
    /// A store, a folder of stores, or a .npy file
    pub source: PathBuf,
    /// The order, see `batchfs mount --help`
    #[arg(long, default_value = "batch=256", value_parser = spec)]
    pub spec: Spec,
    /// The step, from 0 to 18446744073709551615
    #[arg(long)]
    pub step: u64,
    #[command(flatten)]
    pub types: Types,
}

const SPEC: &str = "\
The spec says which records make up which batch. Its keys, separated by commas:
  mode       cyclic (default): a fresh permutation of all records per cycle
             sequential: in order; iid: uniform, with replacement
  batch      records in the global batch, all ranks together (default 256)
  seed       of the order (default 0)
  remainder  for cyclic: drop (default) gives full batches of one cycle only,
             carry lets batches run across the end of a cycle
  rank, world  the rank's part of the global batch (default 0 of 1)

Examples:
  batchfs mount train /mnt/ds
  batchfs mount train /mnt/ds --spec batch=256,seed=42
  batchfs mount images.npy /mnt/ds --spec mode=sequential,batch=32 -f
  python3 -c 'import numpy as np; print(np.load(\"/mnt/ds/images/batch/0.npy\", mmap_mode=\"r\").shape)'
  batchfs umount /mnt/ds";

/// Mount a dataset on a folder; the batches of all steps are files there.
///
/// Goes to the background when the mount answers. As root the kernel reads and maps batches by
/// itself (FUSE passthrough); other users need fusermount3 and get cached replies.
#[derive(Debug, ClapArgs)]
#[command(after_help = SPEC)]
pub struct Mount {
    /// A store, a folder of stores (aligned streams), or a .npy file
    pub source: PathBuf,
    /// The empty folder to mount on
    pub dir: PathBuf,
    /// The order, see below
    #[arg(long, default_value = "batch=256", value_parser = spec)]
    pub spec: Spec,
    #[command(flatten)]
    pub types: Types,
    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(short, long)]
    pub foreground: bool,
    /// Bytes that all batches in memory may take together: filled ahead, and held by readers. A
    /// number, with KiB, MiB, GiB (1024) or kB, MB, GB (1000) behind it
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub memory: ByteSize,
    /// Let other users read, too
    #[arg(long)]
    pub allow_other: bool,
    /// Mount over a folder that is not empty; what is in it is hidden
    #[arg(long)]
    pub nonempty: bool,
    /// Answer reads from this process even where the kernel could read by itself
    #[arg(long)]
    pub cached: bool,
    /// When to compare a record's checksum: the first time it is read, always, or never
    #[arg(long, default_value = "first", value_enum)]
    pub verify: When,
    /// Threads that gather, up to 1024; 0 is one per core
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Write the daemon's log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Say on standard output when the mount answers, and let go of the terminal then
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// When checksums are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    First,
    Always,
    Never,
}

/// Unmount a batchfs mount.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs umount /mnt/ds
  batchfs umount --lazy /mnt/ds      even while it is in use")]
pub struct Umount {
    /// The folder it is mounted on
    pub dir: PathBuf,
    /// Detach it now, though files are open; they stay readable until closed
    #[arg(short, long)]
    pub lazy: bool,
}

/// Say what this machine can do for batchfs, and what to do about the rest.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs doctor
  batchfs doctor --json")]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Build, mount and read a small real dataset: handwritten digits and their labels.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs demo
  batchfs demo --keep      leave the dataset and the mount for you to look at")]
pub struct Demo {
    /// Leave the dataset and the mount in place, and say where
    #[arg(long)]
    pub keep: bool,
}

fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    match text.parse() {
        Ok(n) if n <= MOST => Ok(n),
        _ => Err(format!("there can be up to {MOST} threads, and 0 is one per core")),
    }
}

fn codec(text: &str) -> Result<Codec, String> {
    text.parse().map_err(|e: batchfs_store::UnknownCodec| e.to_string())
}

fn spec(text: &str) -> Result<Spec, String> {
    text.parse().map_err(|e: batchfs_sampler::SpecError| e.to_string())
}
