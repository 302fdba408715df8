use std::path::{Path, PathBuf};

use batchfs_sampler::Spec;
use batchfs_sampler::lanes::LaneSpec;
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
    Export(Export),
    TrainDict(TrainDict),
    Info(Info),
    Index(Index),
    Plan(Plan),
    Verify(Verify),
    Ids(Ids),
    Mount(Mount),
    Umount(Umount),
    Doctor(Doctor),
    Demo(Demo),
}

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

/// Show what a store, a zrecord container, a .npy file or a folder of these holds.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs info train
  batchfs info train/images --json")]
pub struct Info {
    /// A store, a zrecord container, a .npy file, or a folder of these
    pub path: PathBuf,
    #[command(flatten)]
    pub types: Types,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Read every byte of a dataset, and compare all checksums that there are.
///
/// Stores have one for each record. zrecord containers have none: of these every record is read and
/// decompressed, and its length compared to its shape.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs verify train            all streams; exits with 1 if anything is damaged
  batchfs verify train/images")]
pub struct Verify {
    /// A store, a zrecord container, a .npy file, or a folder of these
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
    /// A store, a zrecord container, a .npy file, or a folder of these
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

Of tokens, it says how documents are packed into full rows:
  lanes      rows of a step, all ranks together (default 256)
  window     row groups whose documents are shuffled among each other (default 64)
  seq_len    tokens of a row (default 2048)
  seed       of the order (default 0)
  pieces     room per row for pieces of documents in .safetensors
  rank, world  as above

Examples:
  batchfs mount train /mnt/ds
  batchfs mount train /mnt/ds --spec batch=256,seed=42
  batchfs mount images.npy /mnt/ds --spec mode=sequential,batch=32 -f
  python3 -c 'import numpy as np; print(np.load(\"/mnt/ds/images/batch/0.npy\", mmap_mode=\"r\").shape)'
  batchfs mount s3://bucket/fineweb /mnt/ds --spec lanes=512,window=64,seq_len=2048,seed=0
  batchfs umount /mnt/ds";

/// Mount a dataset on a folder; the batches of all steps are files there.
///
/// Goes to the background when the mount answers. As root the kernel reads and maps batches by
/// itself (FUSE passthrough); other users need fusermount3 and get cached replies.
#[derive(Debug, ClapArgs)]
#[command(after_help = SPEC)]
pub struct Mount {
    /// A store, a zrecord container, a .npy file, or a folder of these (aligned streams); or Parquet
    /// with a column of tokens: a file, a folder, or an address such as s3://bucket/prefix
    pub source: PathBuf,
    /// The empty folder to mount on
    pub dir: PathBuf,
    /// The order, see below
    #[arg(long, value_parser = order)]
    pub spec: Option<Order>,
    #[command(flatten)]
    pub types: Types,
    #[command(flatten)]
    pub tokens: TokenArgs,
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

/// A spec, of whichever kind the data want.
#[derive(Clone, Debug)]
pub struct Order(String);

impl Order {
    /// As one of records.
    pub fn records(&self) -> anyhow::Result<Spec> {
        self.0.parse().map_err(|e| self.refused("records", "mode, batch", &e))
    }

    /// As one of tokens.
    pub fn tokens(&self) -> anyhow::Result<LaneSpec> {
        self.0.parse().map_err(|e| self.refused("tokens", "lanes, window, seq_len", &e))
    }

    fn refused(&self, of: &str, keys: &str, error: &batchfs_sampler::SpecError) -> anyhow::Error {
        anyhow::anyhow!("--spec {}: the source is one of {of} ({keys}): {error}", self.0)
    }
}

fn order(text: &str) -> Result<Order, String> {
    const OF_TOKENS: [&str; 4] = ["lanes", "window", "seq_len", "pieces"];
    let of_tokens = text
        .split(',')
        .any(|item| item.split_once('=').is_some_and(|(key, _)| OF_TOKENS.contains(&key)));
    let checked =
        if of_tokens { text.parse::<LaneSpec>().map(drop) } else { text.parse::<Spec>().map(drop) };
    checked.map(|()| Order(text.to_owned())).map_err(|e| e.to_string())
}

fn storage_option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_lowercase(), value.to_owned())),
        _ => Err("a storage option is KEY=VALUE, such as region=eu-west-1".to_owned()),
    }
}

/// Of Parquet sources: which column, where from, how much memory.
#[derive(Debug, ClapArgs)]
pub struct TokenArgs {
    /// The column of tokens in Parquet files; dots lead into structs
    #[arg(long, default_value = "tokens", value_name = "NAME")]
    pub column: String,
    /// Bytes that decoded row groups may take: 4 a token and 48 a document. Left out, what the spec
    /// needs and a window more to read ahead; later epochs are fast if all of the data fits
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<ByteSize>,
    /// How to reach object storage, such as endpoint=http://host:9000; besides AWS_* and the like in
    /// the environment. Secrets belong there, since others can see a command line
    #[arg(long, value_name = "KEY=VALUE", value_parser = storage_option)]
    pub storage_option: Vec<(String, String)>,
}

/// Show what Parquet files hold: row groups, tokens, documents.
///
/// Reads the footers, and columns whose footers do not prove how many tokens there are; what was
/// found is kept for the next time.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs index fineweb/
  batchfs index s3://bucket/fineweb --column input_ids --spec lanes=512,seq_len=2048")]
pub struct Index {
    /// A Parquet file, a folder of them, or an address
    pub source: PathBuf,
    #[command(flatten)]
    pub tokens: TokenArgs,
    /// Show the lengths of epochs under this spec, too
    #[arg(long, value_parser = order)]
    pub spec: Option<Order>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show which bytes of which Parquet files a step reads, without reading them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs plan s3://bucket/fineweb --spec lanes=512,rank=3,world=8 --step 1000")]
pub struct Plan {
    /// A Parquet file, a folder of them, or an address
    pub source: PathBuf,
    #[command(flatten)]
    pub tokens: TokenArgs,
    /// The order, see `batchfs mount --help`
    #[arg(long, value_parser = order)]
    pub spec: Option<Order>,
    /// The step, from 0 to 18446744073709551615
    #[arg(long)]
    pub step: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn spec(text: &str) -> Result<Spec, String> {
    text.parse().map_err(|e: batchfs_sampler::SpecError| e.to_string())
}
