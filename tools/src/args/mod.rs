//! The command line.

mod help;
mod look;
mod make;
mod mount;
mod tokens;

use std::path::Path;

use batchfs_source::{DTypes, Said};
use batchfs_store::{Codec, DType};
use clap::{Args as ClapArgs, Parser, Subcommand};

pub use help::{Completions, Demo, Doctor, Man};
pub use look::{Cat, Ids, Info, Ls, Order, Verify};
pub use make::{Create, Export, ExportFormat, TrainDict};
pub use mount::{Mount, Umount, When};
pub use tokens::{AnySpec, Index, Plan, TokenArgs, TokenSources};

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
    Ls(Ls),
    Cat(Cat),
    Mount(Mount),
    Umount(Umount),
    Doctor(Doctor),
    Demo(Demo),
    Completions(Completions),
    Man(Man),
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

fn codec(text: &str) -> Result<Codec, String> {
    text.parse().map_err(|e: batchfs_store::UnknownCodec| e.to_string())
}
