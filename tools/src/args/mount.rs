//! Mounting and unmounting.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args as ClapArgs;

use super::Types;
use super::tokens::{AnySpec, TokenArgs, any_spec};

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
  out        int32 (default) or uint32: the same bits
  rank, world  as above

Examples:
  batchfs mount train /mnt/ds
  batchfs mount train /mnt/ds --spec batch=256,seed=42
  batchfs mount images.npy /mnt/ds --spec mode=sequential,batch=32 -f
  python3 -c 'import numpy as np; print(np.load(\"/mnt/ds/images/batch/0.npy\", mmap_mode=\"r\").shape)'
  batchfs mount fineweb /mnt/ds --spec lanes=16,window=64,seq_len=512,seed=0
  batchfs mount web=fineweb,code=s3://bucket/stack /mnt/ds --mix web=0.7,code=0.3 --spec lanes=16
  batchfs umount /mnt/ds";

/// Mount a dataset on a folder; the batches of all steps are files there.
///
/// Goes to the background when the mount answers. As root the kernel reads and maps batches by
/// itself (FUSE passthrough); other users need fusermount3 and get cached replies.
#[derive(Debug, ClapArgs)]
#[command(after_help = SPEC)]
pub struct Mount {
    /// A store, a zrecord container, a .npy file, or a folder of these (aligned streams); or Parquet
    /// with a column of tokens: a file, a folder, or an address such as s3://bucket/prefix; with
    /// --mix several of these as NAME=PLACE, joined by commas
    pub source: PathBuf,
    /// The empty folder to mount on
    pub dir: PathBuf,
    /// The order, see below
    #[arg(long, value_parser = any_spec)]
    pub spec: Option<AnySpec>,
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
    /// Read all records into memory first, beside the bytes of --memory, each padded to whole pages;
    /// a batch's dma-buf is then made of the pages of its records, without a copy. Records that differ
    /// in length, or are less than half a page, stay where they are
    #[arg(long)]
    pub resident: bool,
    /// Put batches into memory that dma-bufs can be made of without a copy. It has huge pages only
    /// where shmem_enabled allows
    #[arg(long)]
    pub dmabuf: bool,
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
    /// Take options of object storage from standard input, too: a JSON list of names and values
    #[arg(long, hide = true)]
    pub storage_stdin: bool,
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

fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    match text.parse() {
        Ok(n) if n <= MOST => Ok(n),
        _ => Err(format!("there can be up to {MOST} threads, and 0 is one per core")),
    }
}
