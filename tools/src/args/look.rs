//! Commands that look at data.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::Types;
use super::tokens::{AnySpec, TokenArgs, any_spec};

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
///
/// Of tokens these are the pieces of documents that the rows are made of, a line each: row, document,
/// its place in it and length in tokens; of a mixture with the name of the source in front.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs ids train --spec batch=256,seed=42 --step 17
  batchfs ids train --spec batch=256,rank=3,world=8 --step 0
  batchfs ids fineweb --spec lanes=16,seq_len=512 --step 17")]
pub struct Ids {
    /// What can be mounted: a store, a zrecord container, a .npy file, a folder of these, or Parquet
    pub source: PathBuf,
    #[command(flatten)]
    pub order: Order,
    /// The step, from 0 to 18446744073709551615
    #[arg(long)]
    pub step: u64,
}

/// List a folder of the mount that a dataset would be, without mounting it.
///
/// Folders end in a slash. Of batches one cycle is listed, though any step can be read.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs ls train
  batchfs ls train images/batch
  batchfs ls train view/batch=64,seed=7/index")]
pub struct Ls {
    /// What can be mounted: a store, a zrecord container, a .npy file, a folder of these, or Parquet
    pub source: PathBuf,
    /// The folder, as a path from the mount's root
    #[arg(default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub order: Order,
}

/// Print files of the mount that a dataset would be, without mounting it.
///
/// The names are those of the mount, and so are the bytes. `batchfs ls` lists them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs cat train README.txt
  batchfs cat train images/record/7.txt
  batchfs cat train images/batch/3.npy --spec batch=256,seed=42 > x.npy
  batchfs cat train all/batch/0.safetensors > step0.safetensors
  batchfs cat train view/batch=8/images/batch/0.json index/5.txt
  batchfs cat fineweb/ tokens/batch/0.txt --spec lanes=8,seq_len=128")]
pub struct Cat {
    /// What can be mounted: a store, a zrecord container, a .npy file, a folder of these, or Parquet
    pub source: PathBuf,
    /// The files, as paths from the mount's root; printed one after the other
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub order: Order,
    /// Print to a terminal what is not text
    #[arg(short, long)]
    pub force: bool,
}

/// Which order, and what the elements are.
#[derive(Debug, ClapArgs)]
pub struct Order {
    /// The order, see `batchfs mount --help`
    #[arg(long, value_parser = any_spec)]
    pub spec: Option<AnySpec>,
    #[command(flatten)]
    pub types: Types,
    #[command(flatten)]
    pub tokens: TokenArgs,
}
